//! The users behind one API key: who they are, and their limits.
//!
//! A program such as Open WebUI serves many people with one key. If the key says where its requests
//! name their user, each user is a part of the tenant with its own limits and its own fair share of
//! the tenant's turns.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName};
use inference_protocol::openai::{ParseError, RoutingFields};

use crate::access::limiter::{KeyLimits, Limiter, Permit};
use crate::access::spend::Budget;
use crate::types::error::Error;
use crate::types::limits::{LimitScope, RateLimit};
use crate::types::secret::KeyDigest;
use crate::types::user::UserId;

/// Users that a key may have at a time, unless it says otherwise.
pub(crate) const USERS_MAX: usize = 1000;

/// Bytes of a user's id. OpenAI allows 512 in `metadata`, and 64 in `safety_identifier`.
const ID_BYTES_MAX: usize = 512;

/// Headers that name the user, in order of precedence: of Open WebUI, LibreChat and similar
/// programs, and of LiteLLM's proxy.
pub static HEADERS: [HeaderName; 3] = [
    HeaderName::from_static("x-openwebui-user-id"),
    HeaderName::from_static("x-user-id"),
    HeaderName::from_static("x-litellm-end-user-id"),
];

/// Where the requests of a key name their user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UserSource {
    /// Nowhere: the key is one tenant.
    #[default]
    None,
    /// In a header.
    Header,
    /// In a field of the body.
    Field,
}

impl UserSource {
    /// All values.
    pub const ALL: [Self; 3] = [Self::None, Self::Header, Self::Field];

    /// Name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Header => "header",
            Self::Field => "field",
        }
    }
}

/// What a key says about its users.
#[derive(Debug, Clone, PartialEq)]
pub struct UserPolicy {
    /// Where requests name their user.
    pub source: UserSource,
    /// The header that names the user, instead of [`HEADERS`].
    pub header: Option<HeaderName>,
    /// Most users that the gateway tracks.
    pub users_max: usize,
    /// Rate limits of each user.
    pub limits: KeyLimits,
    /// Monthly budget of each user.
    pub budget: Budget,
}

impl Default for UserPolicy {
    fn default() -> Self {
        let (limits, budget) = (KeyLimits::default(), Budget::default());
        Self { source: UserSource::None, header: None, users_max: USERS_MAX, limits, budget }
    }
}

impl UserPolicy {
    /// The user by the head of a request. `None` if the head does not say who it is. Requests
    /// without an id count as one user: leaving it out evades no limit.
    ///
    /// # Errors
    /// The id is too long.
    pub(crate) fn user_of_head(
        &self,
        key: &KeyDigest,
        headers: &HeaderMap,
    ) -> Result<Option<UserId>, Error> {
        if self.source != UserSource::Header {
            return Ok(None);
        }
        let mut sent = self
            .header_names()
            .iter()
            .filter_map(|name| Some((name, headers.get(name)?.as_bytes())));
        match sent.find(|(_, id)| !id.is_empty()) {
            Some((name, id)) if id.len() > ID_BYTES_MAX => {
                Err(Error::Header(name.clone(), format!("at most {ID_BYTES_MAX} bytes")))
            }
            sent => Ok(Some(UserId::new(key, sent.map_or(b"", |(_, id)| id)))),
        }
    }

    /// Headers that may name the user.
    pub(crate) fn header_names(&self) -> &[HeaderName] {
        self.header.as_ref().map_or(&HEADERS[..], std::slice::from_ref)
    }

    /// The user by the body of a request, likewise.
    ///
    /// # Errors
    /// The id is too long.
    pub(crate) fn user_of_body(
        &self,
        key: &KeyDigest,
        fields: &RoutingFields,
    ) -> Result<Option<UserId>, Error> {
        if self.source != UserSource::Field {
            return Ok(None);
        }
        match fields.user_id() {
            Some((name, id)) if id.len() > ID_BYTES_MAX => Err(Error::Invalid(ParseError {
                message: format!("{name} must be at most {ID_BYTES_MAX} bytes long"),
                param: Some(name.into()),
            })),
            sent => Ok(Some(UserId::new(key, sent.map_or(b"", |(_, id)| id.as_bytes())))),
        }
    }
}

/// The users of a key and the use of their limits. Forgets the user who has been idle the longest
/// when there are too many. A forgotten user starts with full limits, so the limits of users do not
/// bind a client that invents ids: the key's own limits do.
#[derive(Debug)]
pub struct Users {
    policy: UserPolicy,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    users: HashMap<UserId, Entry>,
    /// Users by their last request.
    by_use: BTreeMap<u64, UserId>,
    requests: u64,
}

#[derive(Debug)]
struct Entry {
    limiter: Arc<Limiter>,
    last_use: u64,
}

/// What became of a user's request.
#[derive(Debug)]
pub(crate) struct Entered {
    /// The claim on the user's limits, or why there is none.
    pub permit: Result<Permit, Error>,
    /// Users that are tracked now.
    pub tracked: usize,
    /// True if another user was forgotten.
    pub has_evicted: bool,
}

impl Users {
    /// Starts without users.
    pub(crate) fn new(policy: &UserPolicy) -> Self {
        Self { policy: policy.clone(), table: Mutex::default() }
    }

    /// The policy that it was created with.
    pub(crate) fn policy(&self) -> &UserPolicy {
        &self.policy
    }

    /// Checks the limits of a user that do not depend on the size of the request.
    pub(crate) fn enter(&self, user: UserId) -> Entered {
        self.enter_with(user, Limiter::admit)
    }

    /// The same for a request that was counted when it was stored.
    pub(crate) fn enter_again(&self, user: UserId) -> Entered {
        self.enter_with(user, Limiter::admit_again)
    }

    fn enter_with(
        &self,
        user: UserId,
        admit: impl FnOnce(&Arc<Limiter>) -> Result<Permit, Error>,
    ) -> Entered {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !table.users.contains_key(&user);
        let has_evicted =
            is_new && table.users.len() >= self.policy.users_max && table.evict_idle();
        if is_new && table.users.len() >= self.policy.users_max {
            let (limit, wait) = (RateLimit::Users, Duration::from_secs(1));
            let permit = Err(Error::RateLimited { limit, scope: LimitScope::Key, wait });
            return Entered { permit, tracked: table.users.len(), has_evicted };
        }
        let limiter = table.touch(user, &self.policy.limits);
        let tracked = table.users.len();
        drop(table);
        Entered { permit: admit(&limiter), tracked, has_evicted }
    }
}

impl Table {
    fn touch(&mut self, user: UserId, limits: &KeyLimits) -> Arc<Limiter> {
        self.requests += 1;
        let now = self.requests;
        let new = || Entry { limiter: Arc::new(Limiter::of_user(limits)), last_use: now };
        let entry = self.users.entry(user).or_insert_with(new);
        self.by_use.remove(&entry.last_use);
        self.by_use.insert(now, user);
        entry.last_use = now;
        entry.limiter.clone()
    }

    /// Forgets the user without running requests who has been idle the longest. Returns false if
    /// there is none.
    fn evict_idle(&mut self) -> bool {
        // A permit holds the limiter.
        let is_idle = |user: &UserId| {
            self.users.get(user).is_none_or(|entry| Arc::strong_count(&entry.limiter) == 1)
        };
        let Some((at, user)) = self.by_use.iter().find(|(_, user)| is_idle(user)) else {
            return false;
        };
        let (at, user) = (*at, *user);
        self.by_use.remove(&at);
        self.users.remove(&user).is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use hyper::header::HeaderValue;

    use super::*;

    fn users(users_max: usize, requests: u32) -> Users {
        let requests_per_minute = NonZeroU32::new(requests);
        let limits = KeyLimits { requests_per_minute, ..KeyLimits::default() };
        Users::new(&UserPolicy { users_max, limits, ..UserPolicy::default() })
    }

    fn user(number: usize) -> UserId {
        UserId::new(&KeyDigest::of("key"), number.to_string().as_bytes())
    }

    #[test]
    fn each_user_has_the_limits_and_the_refusal_is_the_users() {
        let users = users(9, 2);
        for number in [1, 1, 2, 2] {
            assert!(users.enter(user(number)).permit.is_ok());
        }
        for number in [1, 2] {
            let refused = users.enter(user(number)).permit.unwrap_err();
            assert_eq!(refused.reason(), "limit_user_requests");
            assert!(refused.to_string().contains("this user"), "{refused}");
        }
        assert!(users.enter(user(3)).permit.is_ok());
    }

    #[test]
    fn a_million_users_stay_within_the_bound_and_the_idle_longest_goes_first() {
        let users = users(100, 1);
        let first = users.enter(user(0));
        let mut evicted = 0;
        for number in 1..1_000_000 {
            let entered = users.enter(user(number));
            assert!(entered.permit.is_ok() && entered.tracked <= 100);
            evicted += usize::from(entered.has_evicted);
        }
        assert_eq!(evicted, 1_000_000 - 100);
        let table = users.table.lock().unwrap();
        assert_eq!((table.users.len(), table.by_use.len()), (100, 100));
        assert!(table.users.contains_key(&user(0)), "it has a running request");
        assert!(table.users.contains_key(&user(999_999 - 98)), "the recent ones are kept");
        drop(first);
    }

    #[test]
    fn more_users_at_once_than_allowed_are_refused_until_one_is_done() {
        let users = users(2, 9);
        let [first, _second] = [1, 2].map(|number| users.enter(user(number)).permit.unwrap());
        let refused = users.enter(user(3));
        assert_eq!(refused.permit.unwrap_err().reason(), "limit_users");
        assert_eq!((refused.tracked, refused.has_evicted), (2, false));
        assert!(users.enter(user(1)).permit.is_ok(), "a known user continues");
        drop(first);
        assert!(users.enter(user(3)).permit.is_ok());
    }

    #[test]
    fn the_header_names_the_user_and_without_one_all_are_one_user() {
        let key = KeyDigest::of("key");
        let policy = UserPolicy { source: UserSource::Header, ..UserPolicy::default() };
        let of = |policy: &UserPolicy, pairs: &[(&'static str, &str)]| {
            let pair = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            };
            policy.user_of_head(&key, &pairs.iter().map(pair).collect())
        };
        let id = |id: &str| Ok(Some(UserId::new(&key, id.as_bytes())));
        let both = [("x-user-id", "b"), ("x-openwebui-user-id", "a")];
        assert_eq!(of(&policy, &both), id("a"));
        assert_eq!(of(&policy, &[("x-openwebui-user-id", ""), ("x-user-id", "b")]), id("b"));
        assert_eq!(of(&policy, &[("x-mine", "c")]), id(""));
        let mine = UserPolicy { header: Some(HeaderName::from_static("x-mine")), ..policy.clone() };
        assert_eq!(of(&mine, &[("x-mine", "c"), ("x-user-id", "b")]), id("c"));
        let long = "x".repeat(513);
        let refused = of(&policy, &[("x-user-id", &long)]).unwrap_err().to_string();
        assert_eq!(refused, "x-user-id: expected at most 512 bytes");
        let none = UserPolicy::default();
        assert_eq!(of(&none, &both), Ok(None));
    }

    #[test]
    fn the_body_names_the_user_in_one_of_three_fields() {
        let key = KeyDigest::of("key");
        let policy = UserPolicy { source: UserSource::Field, ..UserPolicy::default() };
        let of = |more: &str| {
            let body = format!(r#"{{"model":"m"{more}}}"#);
            policy.user_of_body(&key, &inference_protocol::openai::parse(body.as_bytes()).unwrap())
        };
        let id = |id: &str| Ok(Some(UserId::new(&key, id.as_bytes())));
        assert_eq!(of(r#","user":"b","safety_identifier":"a""#), id("a"));
        assert_eq!(of(r#","user":"b","metadata":{"user_id":"c"}"#), id("b"));
        assert_eq!(of(r#","metadata":{"user_id":"c","more":[1]}"#), id("c"));
        assert_eq!(of(r#","user":"","metadata":{"user_id":7}"#), id(""), "no id");
        let refused = of(&format!(r#","user":"{}""#, "x".repeat(513))).unwrap_err();
        assert_eq!((refused.status(), refused.param().as_deref()), (400, Some("user")));
        let header = UserPolicy { source: UserSource::Header, ..policy.clone() };
        assert_eq!(header.user_of_head(&key, &HeaderMap::new()), id(""));
    }
}
