//! PURE. Endpoints that are no nodes of ours: a GPU server, a hosted API. They stand beside the
//! nodes, and are chosen only for requests that may go there.

use std::time::Duration;

use inference_protocol::fleet::NodeStatus;

use super::{Endpoint, EndpointId, Fleet, RouteConstraints};
use crate::access::spend::Prices;

/// On which terms an external endpoint serves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Its share of requests beside others, by its slots.
    pub weight: u32,
    /// What it costs.
    pub prices: Prices,
}

impl<L> Fleet<L> {
    /// An external endpoint. Another of its name is over, and returned.
    pub fn add_external(
        &mut self,
        link: L,
        status: NodeStatus,
        terms: Terms,
        now: Duration,
    ) -> (EndpointId, Option<L>) {
        let mut endpoint = Endpoint::new(link, status, now, self.claims);
        endpoint.external = Some(terms);
        self.insert(endpoint, now)
    }

    /// Whether there are any.
    pub fn has_externals(&self) -> bool {
        !self.externals.is_empty()
    }

    /// Whether a model is served by external endpoints alone.
    pub fn is_external_only(&self, model: &str) -> bool {
        self.index.of(model).is_none() && self.externals.of(model).is_some()
    }

    /// The external endpoint for a request: the one with the largest share of free slots by weight,
    /// of those that it may go to and that `may_pay` says can be paid.
    pub fn pick_external(
        &self,
        model: &str,
        constraints: &RouteConstraints,
        may_pay: impl Fn(&str, &Prices) -> bool,
    ) -> Option<EndpointId> {
        let all = self.externals.of(model)?.all();
        let suiting = all.filter_map(|id| {
            let endpoint = self.endpoints.get(&id)?;
            let terms = endpoint.external?;
            let suits = endpoint.has_free_slot()
                && endpoint.suits(model, constraints)
                && !endpoint.has_failed(id, &constraints.tried)
                && may_pay(&endpoint.status.node, &terms.prices);
            let room = f64::from(endpoint.status.slots) * f64::from(terms.weight);
            suits.then(|| (f64::from(endpoint.busy() + 1) / room, endpoint.last_claim, id))
        });
        let first = suiting.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        first.map(|(.., id)| id)
    }

    /// What tokens of a model would cost outside, where that is known: the least.
    pub fn external_prices(&self, model: &str) -> Option<Prices> {
        let all = self.externals.of(model)?.all();
        let prices = all.filter_map(|id| Some(self.endpoints.get(&id)?.external?.prices));
        let by_token = prices.filter(Prices::are_by_token);
        by_token.min_by(|a, b| (a.prompt + a.completion).total_cmp(&(b.prompt + b.completion)))
    }
}
