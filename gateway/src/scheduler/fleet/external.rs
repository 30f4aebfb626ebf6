//! PURE. External endpoints, such as a GPU server or a hosted API. They are picked only for
//! requests that may go there.

use std::time::Duration;

use inference_protocol::fleet::NodeStatus;

use super::{Endpoint, EndpointId, Fleet, RouteConstraints};
use crate::access::spend::Prices;

/// Terms of an external endpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Terms {
    /// Weight of its slots relative to other external endpoints.
    pub weight: u32,
    /// Its prices.
    pub prices: Prices,
}

impl<L> Fleet<L> {
    /// Adds an external endpoint. If another one has the same name, removes it and returns its
    /// link.
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

    /// True if there are external endpoints.
    pub(crate) fn has_externals(&self) -> bool {
        !self.externals.is_empty()
    }

    /// True if only external endpoints serve the model.
    pub(crate) fn is_external_only(&self, model: &str) -> bool {
        self.index.of(model).is_none() && self.externals.of(model).is_some()
    }

    /// Picks the external endpoint with the largest weighted share of free slots among those that
    /// meet the constraints and have budget left according to `may_pay`.
    pub(crate) fn pick_external(
        &self,
        model: &str,
        constraints: &RouteConstraints,
        mut may_pay: impl FnMut(&str, &Prices) -> bool,
    ) -> Option<EndpointId> {
        let all = self.externals.of(model)?.all();
        let suiting = all.filter_map(|id| {
            let endpoint = self.endpoints.get(&id)?;
            let terms = endpoint.external?;
            let suits = endpoint.has_free_slot()
                && endpoint.can_serve(model, constraints)
                && !endpoint.has_failed(id, &constraints.tried)
                && may_pay(&endpoint.status.node, &terms.prices);
            let room = f64::from(endpoint.status.slots) * f64::from(terms.weight);
            suits.then(|| (f64::from(endpoint.busy() + 1) / room, endpoint.last_claim, id))
        });
        let first = suiting.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        first.map(|(.., id)| id)
    }

    /// The lowest external price of a model, among endpoints with prices per token.
    pub(crate) fn external_prices(&self, model: &str) -> Option<Prices> {
        let all = self.externals.of(model)?.all();
        let prices = all.filter_map(|id| Some(self.endpoints.get(&id)?.external?.prices));
        let by_token = prices.filter(Prices::are_by_token);
        by_token.min_by(|a, b| (a.prompt + a.completion).total_cmp(&(b.prompt + b.completion)))
    }
}
