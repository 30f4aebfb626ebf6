//! Stage 7: the request is over. One record, completed by its Drop: metrics, one line in the
//! access log, and a span where it is traced. Prompts and answers are never part of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;
use prometheus::local::LocalHistogram;

use super::accept::Received;
use super::admit::Admitted;
use crate::access::limiter::Permit;
use crate::context::Gateway;
use crate::dispatcher::Lease;
use crate::observability::history::{self, End};
use crate::observability::metrics::{Again, Ended, EndpointKind, Key, NODE_LEAVES, Paid};
use crate::observability::traces::{Spans, Trace, span};
use crate::scheduler::fleet::Terms;
use crate::scheduler::usage::UsageLimits;
use crate::types::api::Api;
use crate::types::class::Class;
use crate::types::error::{Error, Origin, REFUSED_BY_NODE};
use crate::types::request_id::RequestId;

/// What is known of a request. Dropped at the end of its response.
#[derive(Debug)]
pub struct Record {
    gateway: Gateway,
    api: Api,
    client: IpAddr,
    request_id: RequestId,
    begun: Instant,
    tenant: Option<Arc<str>>,
    class: Option<Class>,
    model: Option<Arc<ModelStatus>>,
    /// The model that it waited for in vain.
    asked: Option<String>,
    node: Option<Arc<str>>,
    /// Its terms, if it is an external endpoint.
    terms: Option<Terms>,
    /// What it can use.
    limits: Option<UsageLimits>,
    /// Whether a node of ours is at work on it.
    is_at_node: bool,
    /// What attempts at external endpoints have cost.
    external: Booked,
    queue_wait: Option<Duration>,
    first_token: Option<Duration>,
    /// When the last piece of the answer came.
    last_piece: Option<Instant>,
    /// The gaps between its pieces, where there are two.
    gaps: Option<LocalHistogram>,
    /// Attempts after the first.
    retries: u32,
    outcome: Outcome,
    bytes: usize,
    /// What the key's limits gave.
    permit: Option<Permit>,
    used: Tokens,
    /// Where its span goes, if it has one.
    trace: Option<Box<(Trace, Spans)>>,
}

/// Tokens that a request has used, as far as its answer tells.
#[derive(Debug, Clone, Copy, Default)]
struct Tokens {
    /// Of prompt and answer.
    told: Option<Usage>,
    /// Of the answer so far.
    generated: u64,
}

/// What the attempts of a request at external endpoints have cost together.
#[derive(Debug, Clone, Copy, Default)]
struct Booked {
    /// Tokens.
    usage: Usage,
    /// What was paid for them.
    amount: f64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The client left before the end.
    ClientGone,
    /// Answered, with this status of the node.
    Answered(u16),
    /// Refused or broken off, for this reason.
    Failed {
        /// Its error's code.
        code: &'static str,
        /// Whose fault that is.
        origin: Origin,
        /// As metrics tell it.
        reason: &'static str,
    },
}

impl Record {
    /// Opens the record of a client's request.
    pub fn open(gateway: &Gateway, client: IpAddr, received: &Received) -> Self {
        gateway.metrics.request_begins();
        Self {
            gateway: gateway.clone(),
            api: received.api,
            client,
            request_id: received.request_id.clone(),
            begun: received.arrived,
            tenant: None,
            class: None,
            model: None,
            asked: None,
            node: None,
            terms: None,
            limits: None,
            is_at_node: false,
            external: Booked::default(),
            queue_wait: None,
            first_token: None,
            last_piece: None,
            gaps: None,
            retries: 0,
            outcome: Outcome::ClientGone,
            bytes: 0,
            permit: None,
            used: Tokens::default(),
            trace: None,
        }
    }

    /// It is traced.
    pub fn trace(&mut self, trace: Option<(Trace, Spans)>) {
        self.trace = trace.map(Box::new);
    }

    /// Who asks.
    pub fn tenant(&mut self, tenant: &Arc<str>) {
        self.tenant = Some(tenant.clone());
    }

    /// How urgent it is.
    pub fn class(&mut self, class: Class) {
        self.class = Some(class);
    }

    /// Its key's limits let it pass, as far as its head tells.
    pub fn permit(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Its size is known: it takes about so many tokens of its key's.
    ///
    /// # Errors
    /// Its key has fewer left.
    pub fn reserve(&mut self, admitted: &Admitted) -> Result<(), Error> {
        let tokens = admitted.size.tokens();
        self.permit.as_mut().map_or(Ok(()), |permit| permit.reserve(tokens))?;
        self.limits = Some(admitted.usage);
        Ok(())
    }

    /// Pays an external endpoint for what an attempt there used, whatever became of it.
    pub fn pay(&mut self, lease: &Lease, admitted: &Admitted, usage: Usage) {
        let Some(terms) = lease.terms() else { return };
        let amount = terms.prices.of(usage);
        let tenant = &*admitted.tenant;
        let key = Key {
            api: self.api,
            class: admitted.class,
            tenant: Some(tenant),
            model: Some(&lease.model().id),
            endpoint: EndpointKind::External,
        };
        self.gateway.metrics.series(key).used(usage);
        self.gateway.metrics.spent(lease.node(), Paid::Tokens(tenant), amount);
        self.gateway.dispatcher.account(tenant, usage, Some((lease.node(), amount)));
        self.external.usage = plus(self.external.usage, usage);
        self.external.amount += amount;
    }

    /// Tokens of prompt and answer, once they are told, and of the answer so far.
    pub fn used(&mut self, told: Option<Usage>, generated: u64) {
        if generated > self.used.generated {
            self.piece();
        }
        self.used = Tokens { told: told.or(self.used.told), generated };
    }

    /// A piece of the answer has come.
    fn piece(&mut self) {
        let now = Instant::now();
        let Some(last) = self.last_piece.replace(now) else { return };
        if self.gaps.is_none() {
            self.gaps = self.gateway.metrics.series(self.key()).gaps();
        }
        if let Some(gaps) = &self.gaps {
            gaps.observe((now - last).as_secs_f64());
        }
    }

    /// Which model was asked for by a request that waited in vain: somebody serves it, so that its
    /// name is no client's invention.
    pub fn asked(&mut self, model: &str, error: &Error) {
        if error.is_overload() {
            self.asked = Some(model.to_string());
        }
    }

    /// Which model was asked for, and which node answers. Only models that a node serves
    /// get here, so that clients cannot write what they like into logs and labels.
    pub fn routed(&mut self, lease: &Lease) {
        if self.node.is_none() {
            let wait = self.begun.elapsed();
            self.gateway.metrics.queue_waited(self.class.unwrap_or(Class::Standard), wait);
            self.queue_wait = Some(wait);
        }
        self.model = Some(lease.model().clone());
        self.node = Some(lease.name());
        let terms = lease.terms();
        if terms.is_some() != self.terms.is_some() {
            // What came so far was another kind's.
            self.gaps = None;
        }
        self.terms = terms;
        self.is_at_node = terms.is_none();
    }

    /// The node that answers.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|model| model.id.as_str()).or(self.asked.as_deref())
    }

    /// Another endpoint is tried, after so many tokens of the answer.
    pub fn retried(&mut self, error: &Error, tokens: u64) {
        let kind = if tokens > 0 { Again::Resume } else { Again::Retry };
        self.gateway.metrics.tried_again(kind, error.code());
        self.retries += 1;
        self.is_at_node = false;
        let (request_id, node, reason) = (self.request_id.as_str(), self.node(), error.code());
        tracing::warn!(request_id, node, reason, tokens, "{}", kind.name());
    }

    /// Its node is about to leave, and there is a slot elsewhere.
    pub fn moved(&mut self, tokens: u64) {
        let kind = if tokens > 0 { Again::Resume } else { Again::Retry };
        self.gateway.metrics.tried_again(kind, NODE_LEAVES);
        self.retries += 1;
        tracing::info!(request_id = self.request_id.as_str(), node = self.node(), tokens, "move");
    }

    /// The answer has begun.
    pub fn first_token(&mut self) {
        self.first_token.get_or_insert_with(|| self.begun.elapsed());
    }

    /// The answer is complete.
    pub fn succeed(&mut self, status: u16, bytes: usize) {
        self.outcome = Outcome::Answered(status);
        self.bytes += bytes;
    }

    /// The answer failed.
    pub fn fail(&mut self, error: &Error) {
        let (code, origin, reason) = (error.code(), error.origin(), error.reason());
        self.outcome = Outcome::Failed { code, origin, reason };
    }

    /// More of the answer was passed on.
    pub fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// The class; requests that were refused before it was known count as standard ones.
    pub fn class_name(&self) -> &'static str {
        self.class.unwrap_or(Class::Standard).name()
    }

    fn outcome_name(&self) -> &'static str {
        match self.outcome {
            Outcome::ClientGone => "client_gone",
            Outcome::Answered(200..=299) => "ok",
            Outcome::Answered(_) => REFUSED_BY_NODE,
            Outcome::Failed { code, .. } => code,
        }
    }

    /// What it is counted in.
    fn key(&self) -> Key<'_> {
        let endpoint = match (&self.node, self.terms) {
            (None, _) => EndpointKind::None,
            (Some(_), None) => EndpointKind::Node,
            (Some(_), Some(_)) => EndpointKind::External,
        };
        Key {
            api: self.api,
            class: self.class.unwrap_or(Class::Standard),
            tenant: self.tenant.as_deref(),
            model: self.model(),
            endpoint,
        }
    }

    /// Whose fault its end is, and why it was refused.
    fn fault(&self) -> (Option<Origin>, Option<&'static str>) {
        match self.outcome {
            Outcome::ClientGone => (Some(Origin::Client), None),
            Outcome::Answered(200..=299) => (None, None),
            Outcome::Answered(500..) => (Some(Origin::Node), None),
            Outcome::Answered(_) => (Some(Origin::Client), Some(REFUSED_BY_NODE)),
            Outcome::Failed { origin: Origin::Node, .. } => (Some(Origin::Node), None),
            Outcome::Failed { origin, reason, .. } => (Some(origin), Some(reason)),
        }
    }

    /// What was reserved and not used is given back, and what was used is counted and paid: that,
    /// and how much. External endpoints have been paid already, for each attempt.
    fn settle(&mut self) -> (Usage, f64) {
        let own = self.used_at_nodes();
        if let (Some(usage), Some(model)) = (own, &self.model) {
            self.count(&model.id, usage);
        }
        let Booked { usage: external, amount } = self.external;
        let usage = plus(own.unwrap_or_default(), external);
        if let Some(permit) = self.permit.take() {
            permit.settle(usage.prompt.saturating_add(usage.completion));
        }
        (usage, amount)
    }

    /// What our nodes did for the client: as the answer reports, or as it is estimated. A client
    /// that left, or whose request was too large, has used its prompt. Where a node failed or
    /// refused the request before its first token, the client has used nothing.
    fn used_at_nodes(&self) -> Option<Usage> {
        if self.terms.is_some() || self.node.is_none() {
            return None;
        }
        let Tokens { told, generated } = self.used;
        let is_worked_on = match self.outcome {
            Outcome::Answered(status) => status < 300,
            Outcome::ClientGone => self.is_at_node || self.first_token.is_some(),
            Outcome::Failed { code, .. } => self.first_token.is_some() || is_its_own_size(code),
        };
        let estimated = || self.limits.map(|limits| limits.estimate(generated));
        is_worked_on.then(|| told.or_else(estimated)).flatten()
    }

    fn count(&self, model: &str, usage: Usage) {
        let series = self.gateway.metrics.series(self.key());
        series.used(usage);
        let tenant = self.tenant.as_deref().unwrap_or_default();
        self.gateway.dispatcher.account(tenant, usage, None);
        if let Some(prices) = self.gateway.dispatcher.external_prices(model) {
            series.saved(prices.of(usage));
        }
    }

    /// What operators see of it.
    fn show(&self, duration: Duration, usage: Usage, spent: f64) {
        self.gateway.recent.ended(&history::Ended {
            tenant: self.tenant.as_deref(),
            end: self.end(),
            duration,
            queue_wait: self.queue_wait,
            first_token: self.first_token,
            prompt_tokens: usage.prompt,
            completion_tokens: usage.completion,
            spent,
        });
    }

    fn end(&self) -> End {
        match self.outcome {
            Outcome::ClientGone => End::Left,
            Outcome::Answered(200..=299) => End::Answered,
            Outcome::Failed { origin: Origin::Node, .. } => End::Failed,
            Outcome::Answered(_) | Outcome::Failed { .. } => End::Refused,
        }
    }

    /// Makes its span. Who has no key of ours cannot make us tell a collector anything.
    fn tell(&self, outcome: &'static str, duration: Duration) {
        let Some(((trace, spans), tenant)) = self.trace.as_deref().zip(self.tenant.as_deref())
        else {
            return;
        };
        let Tokens { told, generated } = self.used;
        let answer_tokens =
            told.map(|told| told.completion).or((generated > 0).then_some(generated));
        spans.put(span::of(
            trace,
            &span::Ended {
                api: self.api,
                host: spans.host(),
                request_id: self.request_id.as_str(),
                tenant,
                class: self.class_name(),
                model: self.model(),
                node: self.node.as_deref(),
                outcome,
                is_fault: self.is_fault(),
                duration,
                queue_wait: self.queue_wait,
                first_token: self.first_token,
                retries: self.retries,
                prompt_tokens: told.map(|told| told.prompt),
                answer_tokens,
            },
        ));
    }

    /// Whether it ended as it did for a reason that is not its client's.
    fn is_fault(&self) -> bool {
        match self.outcome {
            Outcome::ClientGone => false,
            Outcome::Answered(status) => status >= 500,
            Outcome::Failed { origin, .. } => origin != Origin::Client,
        }
    }

    fn log(&self, outcome: &str, duration: Duration) {
        let first_token = self.first_token.map(|t| t.as_millis() as u64);
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "access",
                    request_id = self.request_id.as_str(),
                    client = %self.client,
                    api = self.api.name(),
                    tenant = self.tenant.as_deref(),
                    class = self.class_name(),
                    model = self.model(),
                    node = self.node(),
                    outcome,
                    duration_ms = duration.as_millis() as u64,
                    first_token_ms = first_token,
                    bytes = self.bytes,
                )
            };
        }
        match self.outcome {
            Outcome::Failed { origin: Origin::Node, .. } => line!(warn),
            _ => line!(info),
        }
    }
}

/// Whether a node has worked in vain because a request takes too long, or asks for too much.
fn is_its_own_size(code: &str) -> bool {
    [Error::NodeTimeout.code(), Error::ResponseTooLarge(0).code()].contains(&code)
}

impl Drop for Record {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(&Error::Internal);
        }
        let (usage, spent) = self.settle();
        let outcome = self.outcome_name();
        let duration = self.begun.elapsed();
        let (fault, refusal) = self.fault();
        let first_token = self.first_token;
        let ended = Ended { outcome, fault, refusal, duration, first_token };
        self.gateway.metrics.request_ends(self.key(), ended);
        self.show(duration, usage, spent);
        self.log(outcome, duration);
        self.tell(outcome, duration);
    }
}

fn plus(a: Usage, b: Usage) -> Usage {
    Usage {
        prompt: a.prompt.saturating_add(b.prompt),
        completion: a.completion.saturating_add(b.completion),
        cached: a.cached.saturating_add(b.cached),
    }
}
