//! Accounts for the parts of a split request. Each part has a record of its own, which books what
//! the part used. The record of the request adds the parts up, so they are one request in metrics,
//! history, and log.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use super::Record;
use super::usage::plus;
use crate::context::Gateway;
use crate::scheduler::fleet::Terms;
use crate::scheduler::usage::UsageLimits;
use crate::types::api::RequestedApi;
use crate::types::class::Class;
use crate::types::request_context::RequestContext;
use crate::types::user::UserId;

/// What a record is of.
#[derive(Debug, Default)]
pub(super) enum Scope {
    /// A request.
    #[default]
    Request,
    /// A request whose parts have records of their own.
    Split(Arc<PartTotals>),
    /// A part of a request.
    Part(Arc<PartTotals>),
}

/// What the parts of a request that have ended used together.
#[derive(Debug, Default)]
pub(super) struct PartTotals(Mutex<Sums>);

/// Totals of parts.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// Tokens.
    pub usage: Usage,
    /// Amount paid to external endpoints.
    pub spent: f64,
    retries: u32,
    /// Where the first of them was served.
    route: Option<PartRoute>,
}

#[derive(Debug)]
struct PartRoute {
    model: Arc<ModelStatus>,
    node: Arc<str>,
    terms: Option<Terms>,
    queue_wait: Option<Duration>,
}

impl PartTotals {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a part that used `usage` and `spent`.
    pub(super) fn add(&self, part: &Record, usage: Usage, spent: f64) {
        let mut sums = self.lock();
        sums.usage = plus(sums.usage, usage);
        sums.spent += spent;
        sums.retries += part.retries;
        if let (None, Some(model), Some(node)) = (&sums.route, &part.model, &part.node) {
            let (model, node) = (model.clone(), node.clone());
            let (terms, queue_wait) = (part.terms, part.queue_wait);
            sums.route = Some(PartRoute { model, node, terms, queue_wait });
        }
    }
}

/// Opens the records of a request's parts.
#[derive(Debug)]
pub(crate) struct PartRecords {
    gateway: Gateway,
    api: RequestedApi,
    context: Arc<RequestContext>,
    class: Option<Class>,
    user: Option<(UserId, usize)>,
    totals: Arc<PartTotals>,
}

impl PartRecords {
    /// Opens the record of a part that can use up to `limits`. It must be dropped before the record
    /// of the request.
    pub(crate) fn open(&self, limits: UsageLimits) -> Record {
        let context = self.context.clone();
        let mut record = Record::new(self.gateway.clone(), self.api, context, Instant::now());
        (record.class, record.user) = (self.class, self.user);
        record.limits = Some(limits);
        record.scope = Scope::Part(self.totals.clone());
        record
    }
}

impl Record {
    /// How many of `wanted` parts may run at a time by the limits on concurrent requests of key and
    /// user. Claims a place for each until the request ends.
    pub(crate) fn widen(&mut self, wanted: usize) -> usize {
        let permits = [&mut self.user_permit, &mut self.permit].into_iter().flatten();
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        permits.fold(wanted, |places, permit| permit.widen(places)) as usize
    }

    /// The records of the request's parts.
    pub(crate) fn split(&mut self) -> PartRecords {
        let totals = Arc::<PartTotals>::default();
        self.scope = Scope::Split(totals.clone());
        PartRecords {
            gateway: self.gateway.clone(),
            api: self.api,
            context: self.context.clone(),
            class: self.class,
            user: self.user,
            totals,
        }
    }

    /// Takes over what the parts did.
    pub(super) fn take_parts(&mut self) -> Sums {
        let Scope::Split(totals) = &self.scope else { return Sums::default() };
        let mut sums = take(&mut *totals.lock());
        self.retries += sums.retries;
        if let Some(route) = sums.route.take() {
            self.set_queue_wait(route.queue_wait.unwrap_or_default());
            self.model = Some(route.model);
            (self.node, self.terms) = (Some(route.node), route.terms);
        }
        sums
    }
}
