//! What a request has used, and what was paid for it.

use std::time::SystemTime;

use inference_protocol::resume::Usage;
use inference_protocol::time::unix_seconds;

use super::super::admit::Admitted;
use super::{ExternalCost, Record, Tokens};
use crate::dispatcher::Lease;
use crate::observability::metrics::{EndpointKind, MetricLabels, SpendKind};
use crate::store::{UsageKey, UsageSum, UserKey, minute_of};

impl Record {
    /// Books the cost of an attempt at an external endpoint, whatever its result.
    pub(crate) fn record_payment(&mut self, lease: &Lease, admitted: &Admitted, usage: Usage) {
        let Some(terms) = lease.terms() else { return };
        let amount = terms.prices.of(usage);
        let tenant = &*admitted.tenant;
        let key = MetricLabels {
            api: self.api,
            class: admitted.class,
            tenant: Some(tenant),
            model: Some(&lease.model().id),
            endpoint: EndpointKind::External,
        };
        self.gateway.metrics.series(key).record_usage(usage);
        self.gateway.metrics.add_spend(lease.node(), SpendKind::Tokens(tenant), amount);
        let paid = Some((lease.node(), amount));
        let model = lease.model().clone();
        let sum = UsageSum::new(usage, amount);
        lease.note_paid(sum.cost);
        // First: what is booked twice for a moment exceeds no budget.
        self.book((tenant, &model.id, lease.node()), sum);
        self.gateway.dispatcher.book_usage(tenant, self.user, usage, paid);
        self.external.usage = plus(self.external.usage, usage);
        self.external.amount += amount;
    }

    /// Returns unused reservations and counts what was used. Returns the total usage and the amount
    /// spent. External endpoints were paid per attempt already.
    pub(super) fn settle(&mut self) -> (Usage, f64) {
        let own = self.used_at_nodes();
        let parts = self.take_parts();
        if let (Some(usage), Some(model)) = (own, &self.model) {
            self.count(&model.id, usage);
        }
        let ExternalCost { usage: external, amount } = self.external;
        let usage = plus(plus(own.unwrap_or_default(), external), parts.usage);
        let tokens = usage.prompt.saturating_add(usage.completion);
        if let Some(budget) = &mut self.budget {
            budget.settle(tokens);
        }
        for permit in [self.user_permit.take(), self.permit.take()].into_iter().flatten() {
            permit.settle(tokens);
        }
        (usage, amount + parts.spent)
    }

    /// Notes what is used so far, for the case that this gateway is killed.
    pub(super) fn follow(&mut self) {
        let (Some(budget), Some(limits)) = (&mut self.budget, &self.limits) else { return };
        if self.is_followed {
            let Tokens { reported, generated } = self.used;
            let Usage { prompt, completion, .. } = reported.unwrap_or(limits.estimate(generated));
            budget.note(prompt.saturating_add(completion));
        }
    }

    /// Tokens used on our nodes: as reported, otherwise estimated. A client that left, or whose
    /// request was too large or took too long, has used its prompt. If a node failed or refused the
    /// request before the first token, the client has used nothing.
    fn used_at_nodes(&self) -> Option<Usage> {
        if self.terms.is_some() || self.node.is_none() || self.is_continued {
            return None;
        }
        let Tokens { reported, generated } = self.used;
        let has_worked = self.outcome.has_worked(self.is_at_node, self.first_token.is_some());
        let estimated = || self.limits.map(|limits| limits.estimate(generated));
        has_worked.then(|| reported.or_else(estimated)).flatten()
    }

    fn count(&self, model: &str, usage: Usage) {
        let series = self.gateway.metrics.series(self.labels());
        series.record_usage(usage);
        let tenant = self.context.tenant().unwrap_or_default();
        self.book((tenant, model, ""), UsageSum::new(usage, 0.0));
        self.gateway.dispatcher.book_usage(tenant, self.user, usage, None);
        if let Some(prices) = self.gateway.dispatcher.external_prices(model) {
            series.add_savings(prices.of(usage));
        }
    }

    /// Books usage for the store, if there is one.
    fn book(&self, (tenant, model, endpoint): (&str, &str, &str), sum: UsageSum) {
        if self.gateway.store.is_none() {
            return;
        }
        let key = UsageKey {
            minute: minute_of(unix_seconds(SystemTime::now())),
            tenant: tenant.into(),
            class: self.class_name(),
            model: model.into(),
            endpoint: endpoint.into(),
        };
        if let Some((user, users_max)) = self.user.filter(|_| self.has_user_budget) {
            let (month, tenant) = (key.date().month, key.tenant.clone());
            self.gateway.usage.book_user(UserKey { month, tenant, user, users_max }, sum);
        }
        self.gateway.usage.book(key, sum);
    }
}

pub(super) fn plus(a: Usage, b: Usage) -> Usage {
    Usage {
        prompt: a.prompt.saturating_add(b.prompt),
        completion: a.completion.saturating_add(b.completion),
        cached: a.cached.saturating_add(b.cached),
    }
}
