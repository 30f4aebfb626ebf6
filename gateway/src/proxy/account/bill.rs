//! What an attempt at an external endpoint costs. Booked by its Drop, once, however the attempt
//! ends: answered, lost to a faster one, timed out, broken off, or without its client.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;

use crate::access::spend::Prices;
use crate::context::Gateway;
use crate::dispatcher::Lease;
use crate::observability::metrics::{EndpointKind, Key, Paid};
use crate::scheduler::usage::{Measured, UsageLimits};
use crate::types::api::Api;
use crate::types::class::Class;

/// What the external attempts of a request have cost together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Booked {
    /// Tokens.
    pub usage: Usage,
    /// What was paid for them.
    pub amount: f64,
}

/// The sum, which the request's record reads at its end.
pub type Sum = Arc<Mutex<Booked>>;

/// Whose request it is, and what it can use.
#[derive(Debug, Clone)]
pub struct Payer {
    /// The gateway whose books these are.
    pub gateway: Gateway,
    /// Which endpoint of the API.
    pub api: Api,
    /// How urgent it is.
    pub class: Class,
    /// Who asks.
    pub tenant: Arc<str>,
    /// What the request can use.
    pub limits: UsageLimits,
    /// Where the request's record finds the sum.
    pub sum: Sum,
}

/// A slot, and what is to be paid for the attempt there, if it is an external endpoint's.
#[derive(Debug)]
pub struct Metered {
    /// Dropped before the slot is given back.
    bill: Option<Bill>,
    lease: Lease,
}

#[derive(Debug)]
struct Bill {
    payer: Payer,
    model: Arc<ModelStatus>,
    endpoint: Arc<str>,
    prices: Prices,
    measured: Measured,
}

impl Metered {
    /// An attempt at the endpoint of `lease`.
    pub fn new(lease: Lease, payer: impl FnOnce() -> Payer) -> Self {
        let bill = lease.terms().map(|terms| Bill {
            payer: payer(),
            model: lease.model().clone(),
            endpoint: lease.name(),
            prices: terms.prices,
            measured: Measured::default(),
        });
        Self { bill, lease }
    }

    /// Whether it is an external endpoint's.
    pub fn is_external(&self) -> bool {
        self.bill.is_some()
    }

    /// Changes what was seen of an external attempt.
    pub fn measure(&mut self, change: impl FnOnce(&mut Measured)) {
        if let Some(bill) = &mut self.bill {
            change(&mut bill.measured);
        }
    }
}

impl Deref for Metered {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl DerefMut for Metered {
    fn deref_mut(&mut self) -> &mut Lease {
        &mut self.lease
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        let Self { payer, model, endpoint, prices, measured } = self;
        let Some(usage) = measured.usage(&payer.limits) else { return };
        let amount = prices.of(usage);
        let Payer { gateway, api, class, tenant, sum, .. } = payer;
        let key = Key {
            api: *api,
            class: *class,
            tenant: Some(&**tenant),
            model: Some(&model.id),
            endpoint: EndpointKind::External,
        };
        gateway.metrics.series(key).used(usage);
        gateway.metrics.spent(endpoint, Paid::Tokens(tenant), amount);
        gateway.dispatcher.account(tenant, usage, Some((&**endpoint, amount)));
        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
        sum.usage = plus(sum.usage, usage);
        sum.amount += amount;
    }
}

/// Both together.
pub fn plus(a: Usage, b: Usage) -> Usage {
    Usage {
        prompt: a.prompt.saturating_add(b.prompt),
        completion: a.completion.saturating_add(b.completion),
        cached: a.cached.saturating_add(b.cached),
    }
}
