//! PURE. Limits how much of the queue each model and tenant may fill.
//!
//! Besides the limits of the whole queue, each model and each tenant has a share, and each user has
//! a share of what its tenant may use. Without a configured limit, the share is dynamic: three
//! times the free space (Choudhury and Hahne, 1998).
//! A single flood fills three quarters of the queue, and any number of them together never fill it,
//! so another model or tenant always finds space. If there is no other one, it may use the whole
//! queue.

use std::collections::BTreeMap;

use crate::types::class::Class;
use crate::types::limits::{QueueBounds, QueueLimit, QueueShare};
use crate::types::user::UserId;

/// A dynamic share is this many times the free space.
const SHARE_OF_FREE: usize = 3;

/// What a request would take of the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpaceClaim<'a> {
    /// The class.
    pub class: Class,
    /// The tenant and its configured share.
    pub tenant: (&'a str, QueueShare),
    /// The user of the tenant, if its requests name users.
    pub user: Option<UserId>,
    /// The model, if known.
    pub model: Option<&'a str>,
    /// True if other models are served as well.
    pub has_models: bool,
    /// 1, or 0 for a body that is being read.
    pub depth: usize,
    /// Bytes of the body.
    pub bytes: usize,
}

/// Used space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Queued requests.
    pub depth: usize,
    /// Bytes of their bodies and of bodies being read.
    pub bytes: usize,
}

impl Occupancy {
    fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// What a tenant that has taken this much can still take of the free space.
    fn left(self, share: QueueShare, free: Self) -> Self {
        let left = |taken: usize, limit: Option<usize>, free: usize| {
            let limit = limit.unwrap_or(free.saturating_mul(SHARE_OF_FREE));
            limit.saturating_sub(taken).min(free)
        };
        Self {
            depth: left(self.depth, share.depth_max, free.depth),
            bytes: left(self.bytes, share.bytes_max, free.bytes),
        }
    }

    /// True if `more` fits into a share, given the free space.
    fn fits(self, share: QueueShare, free: Self, more: Self) -> bool {
        let fits = |taken: usize, more: usize, limit: Option<usize>, free: usize| {
            let limit = limit.unwrap_or(free.saturating_mul(SHARE_OF_FREE));
            more == 0 || taken.saturating_add(more) <= limit
        };
        fits(self.depth, more.depth, share.depth_max, free.depth)
            && fits(self.bytes, more.bytes, share.bytes_max, free.bytes)
    }
}

/// Used space of the queue. Lists only models and tenants that use some.
#[derive(Debug, Default)]
pub(crate) struct QueueSpace {
    all: Occupancy,
    /// Bytes of bodies being read.
    reading: usize,
    models: BTreeMap<String, Occupancy>,
    tenants: BTreeMap<String, Occupancy>,
    /// Queued requests by tenant and user, of tenants whose requests name users.
    users: BTreeMap<String, BTreeMap<UserId, Occupancy>>,
}

impl QueueSpace {
    /// In total.
    pub(crate) fn total(&self) -> Occupancy {
        self.all
    }

    /// Bytes of bodies being read.
    pub(crate) fn body_bytes(&self) -> usize {
        self.reading
    }

    /// By model.
    pub(crate) fn models(&self) -> &BTreeMap<String, Occupancy> {
        &self.models
    }

    /// By tenant.
    pub(crate) fn tenants(&self) -> &BTreeMap<String, Occupancy> {
        &self.tenants
    }

    /// True if a request waits for the model.
    pub(crate) fn has_waiting(&self, model: &str) -> bool {
        self.models.contains_key(model)
    }

    /// Checks whether a claim fits.
    ///
    /// # Errors
    /// The limit that leaves no space.
    pub(crate) fn check(
        &self,
        bounds: &QueueBounds,
        claim: &SpaceClaim<'_>,
    ) -> Result<(), QueueLimit> {
        let more = Occupancy { depth: claim.depth, bytes: claim.bytes };
        let [depth_max, bytes_max] =
            [bounds.depth_max, bounds.bytes_max].map(|bound| claim.class.share_of(bound));
        let whole = QueueShare { depth_max: Some(depth_max), bytes_max: Some(bytes_max) };
        if !self.all.fits(whole, Occupancy::default(), more) {
            return Err(QueueLimit::Queue);
        }
        let free = Occupancy {
            depth: bounds.depth_max.saturating_sub(self.all.depth),
            bytes: bounds.bytes_max.saturating_sub(self.all.bytes),
        };
        let (tenant, share) = claim.tenant;
        let share = or_whole(share.or(bounds.per_tenant), bounds.has_tenants);
        let taken = self.tenants.get(tenant).copied().unwrap_or_default();
        if !taken.fits(share, free, more) {
            return Err(QueueLimit::Tenant);
        }
        if claim.user.is_some_and(|user| {
            let left = taken.left(share, free);
            !self.user(tenant, user).fits(QueueShare::default(), left, more)
        }) {
            return Err(QueueLimit::User);
        }
        let Some(model) = claim.model else { return Ok(()) };
        let taken = self.models.get(model).copied().unwrap_or_default();
        match taken.fits(or_whole(bounds.per_model, claim.has_models), free, more) {
            true => Ok(()),
            false => Err(QueueLimit::Model),
        }
    }

    fn user(&self, tenant: &str, user: UserId) -> Occupancy {
        let users = self.users.get(tenant);
        users.and_then(|users| users.get(&user)).copied().unwrap_or_default()
    }

    /// Adds a queued request of a tenant, and of its user if its requests name users.
    pub(crate) fn add_request(
        &mut self,
        model: &str,
        (tenant, user): (&str, Option<UserId>),
        bytes: usize,
    ) {
        let more = Occupancy { depth: 1, bytes };
        add(&mut self.all, more);
        change(&mut self.models, model, |taken| add(taken, more));
        change(&mut self.tenants, tenant, |taken| add(taken, more));
        if let Some(user) = user {
            let users = self.users.entry(tenant.to_string()).or_default();
            add(users.entry(user).or_default(), more);
        }
    }

    /// Removes a queued request.
    pub(crate) fn remove_request(
        &mut self,
        model: &str,
        (tenant, user): (&str, Option<UserId>),
        bytes: usize,
    ) {
        let less = Occupancy { depth: 1, bytes };
        subtract(&mut self.all, less);
        change(&mut self.models, model, |taken| subtract(taken, less));
        change(&mut self.tenants, tenant, |taken| subtract(taken, less));
        if let Some((user, users)) = user.zip(self.users.get_mut(tenant)) {
            let taken = users.entry(user).or_default();
            subtract(taken, less);
            if taken.is_empty() {
                users.remove(&user);
            }
            if users.is_empty() {
                self.users.remove(tenant);
            }
        }
    }

    /// Adds bytes of a tenant's body being read.
    pub(crate) fn add_body(&mut self, tenant: &str, bytes: usize) {
        let more = Occupancy { depth: 0, bytes };
        self.reading += bytes;
        add(&mut self.all, more);
        change(&mut self.tenants, tenant, |taken| add(taken, more));
    }

    /// Removes such bytes.
    pub(crate) fn remove_body(&mut self, tenant: &str, bytes: usize) {
        let less = Occupancy { depth: 0, bytes };
        self.reading = self.reading.saturating_sub(bytes);
        subtract(&mut self.all, less);
        change(&mut self.tenants, tenant, |taken| subtract(taken, less));
    }
}

fn add(taken: &mut Occupancy, more: Occupancy) {
    taken.depth += more.depth;
    taken.bytes = taken.bytes.saturating_add(more.bytes);
}

fn subtract(taken: &mut Occupancy, less: Occupancy) {
    taken.depth = taken.depth.saturating_sub(less.depth);
    taken.bytes = taken.bytes.saturating_sub(less.bytes);
}

/// The share, or without others the whole queue.
fn or_whole(share: QueueShare, has_others: bool) -> QueueShare {
    let whole = QueueShare { depth_max: Some(usize::MAX), bytes_max: Some(usize::MAX) };
    if has_others { share } else { share.or(whole) }
}

/// Changes an entry and drops it once it is empty.
fn change(map: &mut BTreeMap<String, Occupancy>, name: &str, change: impl FnOnce(&mut Occupancy)) {
    let taken = match map.get_mut(name) {
        Some(taken) => taken,
        None => map.entry(name.to_string()).or_default(),
    };
    change(taken);
    if taken.is_empty() {
        map.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::secret::KeyDigest;

    fn bounds(has_tenants: bool) -> QueueBounds {
        QueueBounds { has_tenants, ..QueueBounds::new(1000, 1_000_000) }
    }

    fn claim<'a>(tenant: &'a str, model: Option<&'a str>) -> SpaceClaim<'a> {
        let tenant = (tenant, QueueShare::default());
        let has_models = model.is_some();
        SpaceClaim {
            class: Class::Interactive,
            tenant,
            user: None,
            model,
            has_models,
            depth: 1,
            bytes: 1,
        }
    }

    /// Queues requests until there is no space; returns how many fit and which limit was reached.
    fn fill(
        room: &mut QueueSpace,
        bounds: &QueueBounds,
        claim: &SpaceClaim<'_>,
    ) -> (usize, QueueLimit) {
        for count in 0.. {
            match room.check(bounds, claim) {
                Ok(()) => {
                    let payer = (claim.tenant.0, claim.user);
                    room.add_request(claim.model.unwrap_or("m"), payer, claim.bytes);
                }
                Err(full) => return (count, full),
            }
        }
        unreachable!("there are bounds")
    }

    #[test]
    fn the_only_tenant_of_the_only_model_may_fill_the_whole_queue() {
        let filled = fill(&mut QueueSpace::default(), &bounds(false), &claim("t", None));
        assert_eq!(filled, (1000, QueueLimit::Queue));
    }

    #[test]
    fn tenants_that_flood_never_fill_the_queue_for_another_one() {
        let (mut room, bounds) = (QueueSpace::default(), bounds(true));
        assert_eq!(fill(&mut room, &bounds, &claim("0", None)), (750, QueueLimit::Tenant));
        for tenant in 1..50 {
            let (count, full) = fill(&mut room, &bounds, &claim(&tenant.to_string(), None));
            assert!(count > 0 && full == QueueLimit::Tenant, "{tenant}: {count}");
            // Each leaves a quarter of the space it found.
            assert!(room.total().depth < 1000);
            if room.total().depth > 990 {
                return;
            }
        }
    }

    #[test]
    fn models_have_shares_where_there_is_more_than_one() {
        let (mut room, bounds) = (QueueSpace::default(), bounds(false));
        assert_eq!(fill(&mut room, &bounds, &claim("t", Some("a"))), (750, QueueLimit::Model));
        assert_eq!(room.check(&bounds, &claim("t", Some("b"))), Ok(()));
        assert!(room.has_waiting("a") && !room.has_waiting("b"));
    }

    #[test]
    fn configured_shares_hold_also_for_the_only_one_and_a_keys_own_wins() {
        let per_tenant = QueueShare { depth_max: Some(10), bytes_max: None };
        let bounds = QueueBounds { per_tenant, ..bounds(false) };
        assert_eq!(
            fill(&mut QueueSpace::default(), &bounds, &claim("t", None)),
            (10, QueueLimit::Tenant)
        );
        let own = QueueShare { depth_max: Some(20), bytes_max: Some(15) };
        let mut own = SpaceClaim { tenant: ("t", own), ..claim("t", None) };
        assert_eq!(
            fill(&mut QueueSpace::default(), &bounds, &own),
            (15, QueueLimit::Tenant),
            "by bytes"
        );
        own.bytes = 0;
        assert_eq!(fill(&mut QueueSpace::default(), &bounds, &own), (20, QueueLimit::Tenant));
    }

    #[test]
    fn bodies_that_are_being_read_take_room_and_give_it_back() {
        let (mut room, bounds) = (QueueSpace::default(), bounds(true));
        let body = SpaceClaim { depth: 0, bytes: 700_000, ..claim("t", None) };
        assert_eq!(room.check(&bounds, &body), Ok(()));
        room.add_body("t", body.bytes);
        assert_eq!(
            room.check(&bounds, &SpaceClaim { bytes: 250_000, ..body }),
            Err(QueueLimit::Tenant)
        );
        let other = SpaceClaim { tenant: ("u", QueueShare::default()), bytes: 250_000, ..body };
        assert_eq!(room.check(&bounds, &other), Ok(()));
        assert_eq!(
            room.check(&bounds, &SpaceClaim { bytes: 300_001, ..other }),
            Err(QueueLimit::Queue)
        );
        room.remove_body("t", body.bytes);
        assert_eq!((room.total(), room.body_bytes()), (Occupancy::default(), 0));
        assert!(room.tenants().is_empty(), "nobody is listed who has nothing");
    }

    #[test]
    fn a_user_that_floods_leaves_room_for_other_users_of_the_tenant() {
        let user = |id: &str| Some(UserId::new(&KeyDigest::of("key"), id.as_bytes()));
        let claim = |id| SpaceClaim { user: user(id), ..claim("t", None) };
        let room = &mut QueueSpace::default();
        assert_eq!(fill(room, &bounds(false), &claim("a")), (750, QueueLimit::User));
        assert_eq!(fill(room, &bounds(false), &claim("b")), (188, QueueLimit::User));
        // A configured share of the tenant is divided likewise.
        let per_tenant = QueueShare { depth_max: Some(100), bytes_max: None };
        let bounds = QueueBounds { per_tenant, ..bounds(true) };
        let room = &mut QueueSpace::default();
        assert_eq!(fill(room, &bounds, &claim("a")), (75, QueueLimit::User));
        assert_eq!(room.check(&bounds, &claim("b")), Ok(()));
        for _ in 0..75 {
            room.remove_request("m", ("t", user("a")), 1);
        }
        assert!(room.users.is_empty() && room.tenants.is_empty());
    }
}
