//! Responses in memory, for `previous_response_id` and `GET /v1/responses/{id}`.
//!
//! A [`Store`] belongs to one gateway or agent. Tenants do not see each other's responses; the
//! program that stores one says which of the tenant's users owns it, and checks who reads it. A
//! response shares the turns before it with the responses of those turns, so a conversation costs
//! each turn once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) mod ids;
mod page;
mod path;
mod resource;
mod saved;

pub use page::Page;
pub use path::Path;
pub use saved::{Ended, TurnDocument};

/// Bounds of a [`Store`].
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of all responses with what they continue.
    pub bytes_max: usize,
    /// Bytes of one tenant's.
    pub tenant_bytes_max: usize,
    /// A response is deleted at this age, in seconds.
    pub age_s_max: u64,
}

/// One request's own input, and its response.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The random number of the response's id.
    pub(crate) key: u128,
    /// The `input` of the request, as JSON, with references resolved.
    pub(crate) input: Box<[u8]>,
    /// The response object, as JSON; the turn's other items are its `output`.
    pub(crate) response: Box<[u8]>,
}

/// What a response costs beside its texts, estimated.
const OVERHEAD_BYTES: usize = 512;

#[derive(Deserialize)]
struct Output {
    output: Vec<Value>,
}

/// Reading parses it, so that storing, which is far more common, need not.
impl Turn {
    /// Its items, oldest first, in the form in which they are listed.
    pub(crate) fn items(&self) -> impl Iterator<Item = Value> {
        let output = serde_json::from_slice(&self.response).map(|Output { output }| output);
        self.input().chain(output.unwrap_or_default())
    }

    /// The items of its input.
    fn input(&self) -> impl Iterator<Item = Value> {
        let items = match serde_json::from_slice(&self.input) {
            Ok(Value::Array(items)) => items,
            Ok(Value::String(text)) => vec![json!({"role": "user", "content": text})],
            _ => Vec::new(),
        };
        items.into_iter().enumerate().map(|(index, item)| resource::complete(item, self.key, index))
    }

    fn bytes(&self) -> usize {
        self.input.len() + self.response.len()
    }
}

/// A finished response, and the conversation that led to it.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The turns before it, oldest first.
    pub(crate) earlier: Vec<Arc<Turn>>,
    /// Its own turn.
    pub(crate) own: Arc<Turn>,
    /// The tenant's user whose response it is.
    pub(crate) owner: Option<u64>,
}

impl Stored {
    /// The response's id.
    pub fn id(&self) -> String {
        ids::response(self.own.key)
    }

    /// The response object, as JSON: the body of `GET /v1/responses/{id}`.
    pub fn response(&self) -> &[u8] {
        &self.own.response
    }

    /// The tenant's user whose response it is, by a number of the program that stores it.
    pub fn owner(&self) -> Option<u64> {
        self.owner
    }

    /// The response of this user.
    #[must_use]
    pub fn owned_by(self, owner: Option<u64>) -> Self {
        Self { owner, ..self }
    }

    /// The turns, oldest first; the last is the response's own.
    pub(crate) fn turns(&self) -> impl Iterator<Item = &Arc<Turn>> {
        self.earlier.iter().chain([&self.own])
    }

    /// What the response costs without its turns.
    fn bytes(&self) -> usize {
        self.earlier.len() * 64 + OVERHEAD_BYTES
    }
}

/// Responses by tenant and id.
#[derive(Debug)]
pub struct Store {
    limits: Limits,
    tenants: HashMap<Arc<str>, Tenant>,
    /// Whose responses are how old, oldest first: time of insertion and tenant, by number.
    order: BTreeMap<u64, (u64, Arc<str>)>,
    /// Number of the next response.
    next: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Tenant {
    responses: HashMap<u128, (u64, Arc<Stored>)>,
    /// Keys of responses by number, oldest first.
    order: BTreeMap<u64, u128>,
    /// How many responses have a turn.
    turns: HashMap<u128, usize>,
    bytes: usize,
}

impl Store {
    /// Creates an empty store.
    pub fn new(limits: Limits) -> Self {
        let (tenants, order) = (HashMap::new(), BTreeMap::new());
        Self { limits, tenants, order, next: 0, bytes: 0 }
    }

    /// Applies other limits.
    pub fn configure(&mut self, now: u64, limits: Limits) {
        self.limits = limits;
        self.expire(now);
        let names: Vec<_> = self.tenants.keys().cloned().collect();
        names.iter().for_each(|name| self.shrink(name));
    }

    /// Number of responses.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True without responses.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Bytes of all responses, estimated.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Stores a response. `now` is in seconds and does not go back. Makes room by deleting the
    /// tenant's oldest responses beyond its limit, and beyond the limit of all, the oldest of the
    /// tenant that has most. Returns false if the response did not find room.
    pub fn insert(&mut self, now: u64, tenant: &str, stored: Stored) -> bool {
        self.expire(now);
        let bytes = stored.bytes() + stored.turns().map(|turn| turn.bytes()).sum::<usize>();
        if bytes > self.limits.tenant_bytes_max.min(self.limits.bytes_max) {
            return false;
        }
        self.remove_known(tenant, stored.own.key);
        let number = self.next;
        self.next += 1;
        let known = self.tenants.get_key_value(tenant).map(|(name, _)| name.clone());
        let name = known.unwrap_or_else(|| tenant.into());
        self.order.insert(number, (now, name.clone()));
        let own = self.tenants.entry(name.clone()).or_default();
        self.bytes += own.insert(number, stored);
        self.shrink(&name);
        self.order.contains_key(&number)
    }

    /// Deletes until a tenant and all together are within their limits.
    fn shrink(&mut self, name: &str) {
        while self.tenants.get(name).is_some_and(|own| own.bytes > self.limits.tenant_bytes_max) {
            self.evict(name);
        }
        while self.bytes > self.limits.bytes_max {
            let largest = self.tenants.iter().max_by_key(|(_, tenant)| tenant.bytes);
            let Some(largest) = largest.map(|(name, _)| name.clone()) else { break };
            self.evict(&largest);
        }
    }

    /// A tenant's response.
    pub fn get(&mut self, now: u64, tenant: &str, id: &str) -> Option<Arc<Stored>> {
        self.expire(now);
        Some(self.tenants.get(tenant)?.responses.get(&ids::number(id)?)?.1.clone())
    }

    /// Deletes a tenant's response. Later responses of its conversation keep its turn. Returns
    /// false if there is none.
    pub fn delete(&mut self, now: u64, tenant: &str, id: &str) -> bool {
        self.expire(now);
        ids::number(id).is_some_and(|key| self.remove_known(tenant, key))
    }

    fn remove_known(&mut self, tenant: &str, key: u128) -> bool {
        let found = self.tenants.get(tenant).and_then(|own| own.responses.get(&key));
        let number = found.map(|(number, _)| *number);
        number.is_some_and(|number| self.remove(number))
    }

    fn expire(&mut self, now: u64) {
        while let Some((&number, (at, _))) = self.order.first_key_value()
            && at.saturating_add(self.limits.age_s_max) <= now
        {
            self.remove(number);
        }
    }

    fn evict(&mut self, tenant: &str) {
        let oldest = self.tenants.get(tenant).and_then(|own| own.order.keys().next().copied());
        if let Some(number) = oldest {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) -> bool {
        let Some((_, name)) = self.order.remove(&number) else { return false };
        if let Some(tenant) = self.tenants.get_mut(&name) {
            self.bytes -= tenant.remove(number);
            if tenant.responses.is_empty() {
                self.tenants.remove(&name);
            }
        }
        true
    }
}

impl Tenant {
    /// Returns how many bytes there are more.
    fn insert(&mut self, number: u64, stored: Stored) -> usize {
        let mut bytes = stored.bytes();
        for turn in stored.turns() {
            let users = self.turns.entry(turn.key).or_default();
            *users += 1;
            bytes += if *users == 1 { turn.bytes() } else { 0 };
        }
        self.order.insert(number, stored.own.key);
        self.responses.insert(stored.own.key, (number, Arc::new(stored)));
        self.bytes += bytes;
        bytes
    }

    /// Returns how many bytes there are fewer.
    fn remove(&mut self, number: u64) -> usize {
        let found = self.order.remove(&number).and_then(|key| self.responses.remove(&key));
        let Some((_, stored)) = found else { return 0 };
        let mut bytes = stored.bytes();
        for turn in stored.turns() {
            if let Some(users) = self.turns.get_mut(&turn.key) {
                *users -= 1;
                if *users == 0 {
                    self.turns.remove(&turn.key);
                    bytes += turn.bytes();
                }
            }
        }
        self.bytes -= bytes;
        bytes
    }
}

#[cfg(test)]
mod tests;
