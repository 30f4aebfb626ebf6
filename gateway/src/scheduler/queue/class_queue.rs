//! PURE. The queued requests of one class. Its tenants take fair turns, and the users of a tenant
//! take fair turns within those of the tenant. So a tenant gains nothing by inventing users.

use std::collections::{BTreeMap, BTreeSet};

use super::virtual_times::VirtualTimes;
use super::{Ticket, TicketId};
use crate::types::user::UserId;

/// While a request waits, other tenants keep sending: their queued work counts this many times.
/// Without this factor, simulations predicted waits in an overload a third too short; a larger
/// factor makes predictions in a peak too long.
const ASK_ON: f64 = 2.0;

/// Tickets by id.
type Tickets<S> = BTreeMap<TicketId, Ticket<S>>;

/// The queued requests of a class.
#[derive(Debug, Default)]
pub(super) struct ClassQueue {
    tenants: BTreeMap<String, TenantQueue>,
    turns: VirtualTimes<String>,
    /// Turns of the users of those tenants whose requests name users.
    user_turns: BTreeMap<String, VirtualTimes<Option<UserId>>>,
    depth: usize,
}

/// A tenant's queued requests, by user. `None` is all of a tenant whose requests name no users.
#[derive(Debug, Default)]
struct TenantQueue {
    users: BTreeMap<Option<UserId>, UserQueue>,
}

/// A user's queued requests.
#[derive(Debug, Default)]
struct UserQueue {
    models: BTreeMap<String, ModelQueue>,
}

/// Those of them for one model.
#[derive(Debug, Default)]
struct ModelQueue {
    /// In order of arrival.
    ids: BTreeSet<TicketId>,
    work: f64,
}

impl ClassQueue {
    /// Number of queued requests.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// True if nothing is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Users whose turns are remembered.
    #[cfg(test)]
    pub(super) fn remembered_users(&self) -> usize {
        self.user_turns.values().map(VirtualTimes::len).sum()
    }

    /// Adds a request.
    pub(super) fn add<S>(&mut self, ticket: &Ticket<S>) {
        let Ticket { id, model, tenant, user, work, .. } = ticket;
        if !self.tenants.contains_key(tenant) {
            self.turns.arrive(tenant);
        }
        let queue = self.tenants.entry(tenant.clone()).or_default();
        if user.is_some() && !queue.users.contains_key(user) {
            self.user_turns.entry(tenant.clone()).or_default().arrive(user);
        }
        let models = &mut queue.users.entry(*user).or_default().models;
        let waiting = models.entry(model.clone()).or_default();
        waiting.ids.insert(*id);
        waiting.work += work;
        self.depth += 1;
    }

    /// Removes a request that was added.
    pub(super) fn remove<S>(&mut self, ticket: &Ticket<S>) {
        let Ticket { id, model, tenant, user, work, .. } = ticket;
        let Some(queue) = self.tenants.get_mut(tenant) else { return };
        let Some(models) = queue.users.get_mut(user).map(|user| &mut user.models) else { return };
        self.depth -= 1;
        if let Some(waiting) = models.get_mut(model) {
            waiting.ids.remove(id);
            waiting.work -= work;
            if waiting.ids.is_empty() {
                models.remove(model);
            }
        }
        if !models.is_empty() {
            return;
        }
        queue.users.remove(user);
        let has_left = queue.users.is_empty();
        if has_left {
            self.tenants.remove(tenant);
            self.turns.leave(tenant);
        }
        if user.is_some() {
            self.leave_user(tenant, *user, has_left);
        }
    }

    fn leave_user(&mut self, tenant: &str, user: Option<UserId>, has_tenant_left: bool) {
        let Some(turns) = self.user_turns.get_mut(tenant) else { return };
        turns.leave(&user);
        if has_tenant_left && turns.is_settled() {
            self.user_turns.remove(tenant);
        }
    }

    /// Charges the tenant and its user for work that is done in their turn.
    pub(super) fn charge(&mut self, tenant: &str, user: Option<UserId>, work: f64) {
        self.turns.charge(tenant, work);
        if let Some(turns) = self.user_turns.get_mut(tenant) {
            turns.charge(&user, work);
        }
    }

    /// Charges the tenant and its user for work that did not wait in line.
    pub(super) fn charge_unqueued(&mut self, tenant: &str, user: Option<UserId>, work: f64) {
        self.turns.charge_unqueued(tenant, work);
        // While no user waits, all of them are even.
        if let Some(turns) = self.user_turns.get_mut(tenant) {
            turns.charge_unqueued(&user, work);
        }
    }

    /// Corrects the charge of a tenant and its user. Returns by how much the tenant's virtual time
    /// moved.
    pub(super) fn correct(&mut self, tenant: &str, user: Option<UserId>, more: f64) -> f64 {
        if user.is_some() && more > 0.0 && !self.user_turns.contains_key(tenant) {
            self.user_turns.insert(tenant.to_string(), VirtualTimes::default());
        }
        if let Some(turns) = self.user_turns.get_mut(tenant) {
            turns.correct(&user, more);
        }
        self.turns.correct(tenant, more)
    }

    /// The first request of the user whose turn it is, of the tenant whose turn it is.
    pub(super) fn head<'t, S>(
        &self,
        tickets: &'t Tickets<S>,
        may: &impl Fn(&str) -> bool,
    ) -> Option<&'t Ticket<S>> {
        let heads = self.tenants.iter().filter_map(|(tenant, queue)| {
            let first = queue.head(self.user_turns.get(tenant), tickets, may)?;
            Some((self.turns.finish_time(tenant, first.work), first))
        });
        earliest(heads)
    }

    /// All queued work for a model.
    pub(super) fn work(&self, model: &str) -> f64 {
        self.tenants.values().map(|queue| queue.work(model)).sum()
    }

    /// Estimates the work for `model` ahead of a new request: the user's own requests, and of each
    /// other user of the tenant as much as it has queued or will add meanwhile, up to the user's
    /// own work; and likewise of each other tenant.
    pub(super) fn work_ahead(
        &self,
        (tenant, user): (&str, Option<UserId>),
        model: &str,
        work: f64,
    ) -> f64 {
        let own = self.tenants.get(tenant).map_or(0.0, |queue| queue.work_ahead(user, model, work));
        let others = self.tenants.iter().filter(|(name, _)| *name != tenant);
        let others = others.map(|(_, queue)| queue.work(model));
        own + others.map(|queued| (queued * ASK_ON).min(own + work)).sum::<f64>()
    }
}

impl TenantQueue {
    fn work(&self, model: &str) -> f64 {
        self.users.values().map(|user| user.work(model)).sum()
    }

    fn work_ahead(&self, user: Option<UserId>, model: &str, work: f64) -> f64 {
        let own = self.users.get(&user).map_or(0.0, |queue| queue.work(model));
        let others = self.users.iter().filter(|(other, _)| **other != user);
        let others = others.map(|(_, queue)| queue.work(model));
        own + others.map(|queued| (queued * ASK_ON).min(own + work)).sum::<f64>()
    }

    fn head<'t, S>(
        &self,
        turns: Option<&VirtualTimes<Option<UserId>>>,
        tickets: &'t Tickets<S>,
        may: &impl Fn(&str) -> bool,
    ) -> Option<&'t Ticket<S>> {
        let heads = self.users.iter().filter_map(|(user, queue)| {
            let first = tickets.get(&queue.first(may)?)?;
            let finish = turns.map_or(first.work, |turns| turns.finish_time(user, first.work));
            Some((finish, first))
        });
        earliest(heads)
    }
}

impl UserQueue {
    fn work(&self, model: &str) -> f64 {
        self.models.get(model).map_or(0.0, |waiting| waiting.work)
    }

    fn first(&self, may: &impl Fn(&str) -> bool) -> Option<TicketId> {
        let models = self.models.iter().filter(|(model, _)| may(model));
        models.filter_map(|(_, waiting)| waiting.ids.first()).min().copied()
    }
}

/// The request that finishes first; of several, the one that came first.
fn earliest<'t, S: 't>(heads: impl Iterator<Item = (f64, &'t Ticket<S>)>) -> Option<&'t Ticket<S>> {
    let first = heads.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.id.cmp(&b.1.id)));
    first.map(|(_, ticket)| ticket)
}
