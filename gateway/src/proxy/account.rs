//! Stage 7: account for the request. Its record updates the metrics and writes a line to the access
//! log and, if the request is traced, a span. It never contains prompts or responses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Response;
use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::Usage;
use prometheus::local::LocalHistogram;

use super::accept::Received;
use super::admit::Admitted;
use crate::access::limiter::Permit;
use crate::access::users::UserPolicy;
use crate::context::Gateway;
use crate::dispatcher::{BudgetReservation, Lease};
use crate::observability::history;
use crate::observability::metrics::{
    EndpointKind, MetricLabels, NODE_LEAVES, RequestSample, RetryKind,
};
use crate::observability::traces::{Spans, Trace, span};
use crate::scheduler::fleet::Terms;
use crate::scheduler::usage::UsageLimits;
use crate::types::api::RequestedApi;
use crate::types::class::Class;
use crate::types::error::Error;
use crate::types::request_context::RequestContext;
use crate::types::response::Body;
use crate::types::user::UserId;

mod outcome;
mod parts;
mod usage;

use outcome::Outcome;
pub(crate) use parts::PartRecords;
use parts::Scope;

/// Everything we know about a request. Dropped at the end of its response.
#[derive(Debug)]
pub(crate) struct Record {
    scope: Scope,
    gateway: Gateway,
    api: RequestedApi,
    context: Arc<RequestContext>,
    begun: Instant,
    class: Option<Class>,
    model: Option<Arc<ModelStatus>>,
    /// The requested model, if the request waited in vain.
    requested_model: Option<String>,
    node: Option<Arc<str>>,
    /// Prices and terms, if the endpoint is external.
    terms: Option<Terms>,
    /// Upper bounds on the tokens that the request can use.
    limits: Option<UsageLimits>,
    /// True while one of our nodes works on the request.
    is_at_node: bool,
    /// Cost of attempts at external endpoints.
    external: ExternalCost,
    queue_wait: Option<Duration>,
    first_token: Option<Duration>,
    /// When the last chunk of the response arrived.
    last_chunk: Option<Instant>,
    /// Time between chunks; set once there are two.
    gaps: Option<LocalHistogram>,
    /// Attempts after the first.
    retries: u32,
    outcome: Outcome,
    bytes: usize,
    /// Permit of the key's rate limits.
    permit: Option<Permit>,
    /// The user of the key, and the most users that the key may have.
    user: Option<(UserId, usize)>,
    /// True if the user has a budget.
    has_user_budget: bool,
    /// Permit of the user's rate limits.
    user_permit: Option<Permit>,
    /// Tokens reserved of the budgets of key and user. Released after what was used is booked.
    budget: Option<BudgetReservation>,
    /// True if the budget follows what is used so far.
    is_followed: bool,
    used: Tokens,
    /// The trace and its destination, if the request is traced.
    trace: Option<Box<(Trace, Spans)>>,
    /// True if a later request makes the rest of the response, and accounts for all of it.
    is_continued: bool,
}

/// Tokens used, as far as the response shows.
#[derive(Debug, Clone, Copy, Default)]
struct Tokens {
    /// Usage that the endpoint reported.
    reported: Option<Usage>,
    /// Completion tokens counted so far.
    generated: u64,
}

/// Total cost of a request's attempts at external endpoints.
#[derive(Debug, Clone, Copy, Default)]
struct ExternalCost {
    /// Billed tokens.
    usage: Usage,
    /// Amount paid.
    amount: f64,
}

impl Record {
    /// Opens the record of a request.
    pub(crate) fn open(gateway: &Gateway, received: &Received) -> Self {
        gateway.metrics.record_request_start();
        let Received { api, context, arrived, .. } = received;
        Self::new(gateway.clone(), *api, context.clone(), *arrived)
    }

    fn new(
        gateway: Gateway,
        api: RequestedApi,
        context: Arc<RequestContext>,
        begun: Instant,
    ) -> Self {
        Self {
            scope: Scope::Request,
            gateway,
            api,
            context,
            begun,
            class: None,
            model: None,
            requested_model: None,
            node: None,
            terms: None,
            limits: None,
            is_at_node: false,
            external: ExternalCost::default(),
            queue_wait: None,
            first_token: None,
            last_chunk: None,
            gaps: None,
            retries: 0,
            outcome: Outcome::ClientGone,
            bytes: 0,
            permit: None,
            user: None,
            has_user_budget: false,
            user_permit: None,
            budget: None,
            is_followed: false,
            used: Tokens::default(),
            trace: None,
            is_continued: false,
        }
    }

    /// Sets the trace, if the request is traced.
    pub(crate) fn set_trace(&mut self, trace: Option<(Trace, Spans)>) {
        self.trace = trace.map(Box::new);
    }

    /// Sets the tenant.
    pub(crate) fn set_tenant(&mut self, tenant: &Arc<str>) {
        self.context.set_tenant(tenant.clone());
    }

    /// Sets the class.
    pub(crate) fn set_class(&mut self, class: Class) {
        self.class = Some(class);
    }

    /// Sets the permit that the key's rate limits granted on the head of the request.
    pub(crate) fn set_permit(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// True if the user is known.
    pub(crate) fn has_user(&self) -> bool {
        self.user.is_some()
    }

    /// Sets the user of the key.
    pub(crate) fn set_user(&mut self, user: UserId, policy: &UserPolicy) {
        self.context.set_user(user);
        self.user = Some((user, policy.users_max));
        self.has_user_budget = policy.budget.is_set();
    }

    /// Sets the permit that the user's rate limits granted.
    pub(crate) fn set_user_permit(&mut self, permit: Permit) {
        self.user_permit = Some(permit);
    }

    /// Reserves the estimated tokens of the request in the rate limits of its key and user.
    ///
    /// # Errors
    /// The key or the user has fewer tokens left.
    pub(crate) fn reserve(&mut self, admitted: &Admitted) -> Result<(), Error> {
        let tokens = admitted.size.tokens();
        for permit in [&mut self.user_permit, &mut self.permit].into_iter().flatten() {
            permit.reserve(tokens)?;
        }
        Ok(())
    }

    /// Sets what is reserved of the budgets of its key and user, and the `limits` that follow.
    /// `is_followed`: what is used so far counts even if this gateway is killed, because nobody
    /// will make the rest.
    pub(crate) fn set_budget(
        &mut self,
        reserved: Option<BudgetReservation>,
        limits: UsageLimits,
        is_followed: bool,
    ) {
        (self.budget, self.limits) = (reserved, Some(limits));
        self.is_followed = is_followed;
    }

    /// Updates the tokens used: the `reported` usage, once the endpoint reports it, and the
    /// completion tokens so far.
    pub(crate) fn record_usage(&mut self, reported: Option<Usage>, generated: u64) {
        if generated > self.used.generated {
            self.record_chunk();
        }
        self.used = Tokens { reported: reported.or(self.used.reported), generated };
        self.follow();
    }

    /// Observes the time since the last chunk of the response.
    fn record_chunk(&mut self) {
        let now = Instant::now();
        let Some(last) = self.last_chunk.replace(now) else { return };
        if self.gaps.is_none() {
            self.gaps = self.gateway.metrics.series(self.labels()).gaps();
        }
        if let Some(gaps) = &self.gaps {
            gaps.observe((now - last).as_secs_f64());
        }
    }

    /// Sets the model of a request that waited in vain. Some node serves that model, so a client
    /// cannot have made up the name.
    pub(crate) fn set_requested_model(&mut self, model: &str, error: &Error) {
        if error.is_overload() {
            self.requested_model = Some(model.to_string());
        }
    }

    /// Sets the model and the endpoint. Only models that some endpoint serves get here, so clients
    /// cannot write arbitrary names into logs and labels.
    pub(crate) fn record_route(&mut self, lease: &Lease) {
        if self.node.is_none() {
            self.set_queue_wait(self.begun.elapsed());
        }
        self.model = Some(lease.model().clone());
        self.context.set_endpoint(lease.name(), lease.model().clone());
        self.node = Some(lease.name());
        let terms = lease.terms();
        if terms.is_some() != self.terms.is_some() {
            // The chunks so far came from another kind of endpoint.
            self.gaps = None;
        }
        self.terms = terms;
        self.is_at_node = terms.is_none();
    }

    fn set_queue_wait(&mut self, wait: Duration) {
        self.queue_wait = Some(wait);
        if !matches!(self.scope, Scope::Part(_)) {
            self.gateway.metrics.record_queue_wait(self.class.unwrap_or(Class::Standard), wait);
        }
    }

    /// True if an external endpoint had the request last.
    pub(crate) fn is_at_external(&self) -> bool {
        self.terms.is_some()
    }

    /// Name of the endpoint that serves the request.
    pub(crate) fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|model| model.id.as_str()).or(self.requested_model.as_deref())
    }

    /// Records a retry or failover after `tokens` tokens of the response.
    pub(crate) fn record_retry(&mut self, error: &Error, tokens: u64) {
        let kind = if tokens > 0 { RetryKind::Resume } else { RetryKind::Retry };
        self.gateway.metrics.record_retry(kind, error.code());
        self.retries += 1;
        self.is_at_node = false;
        tracing::warn!(reason = error.code(), tokens, "{}", kind.name());
    }

    /// Records a failover to a free slot because the node is about to leave.
    pub(crate) fn record_move(&mut self, tokens: u64) {
        let kind = if tokens > 0 { RetryKind::Resume } else { RetryKind::Retry };
        self.gateway.metrics.record_retry(kind, NODE_LEAVES);
        self.retries += 1;
        tracing::info!(tokens, "request moved from a draining node");
    }

    /// Records that the request gave its slot to a more urgent one.
    pub(crate) fn record_preemption(&mut self, tokens: u64) {
        self.gateway.metrics.record_preemption();
        self.is_at_node = false;
        tracing::info!(tokens, "request gave its slot to a more urgent one");
    }

    /// Records the time to first token.
    pub(crate) fn record_first_token(&mut self) {
        self.first_token.get_or_insert_with(|| self.begun.elapsed());
    }

    /// Records a complete response.
    pub(crate) fn record_success(&mut self, status: u16, bytes: usize) {
        self.outcome = Outcome::Answered(status);
        self.bytes += bytes;
    }

    /// Records a failed response.
    pub(crate) fn record_failure(&mut self, error: &Error) {
        self.outcome = Outcome::of(error);
    }

    /// Records how a request ended that needed no endpoint.
    pub(crate) fn record_end(&mut self, end: &Result<Response<Body>, Error>) {
        match end {
            Ok(response) => self.record_success(response.status().as_u16(), 0),
            Err(error) => self.record_failure(error),
        }
    }

    /// Leaves the usage to a later request, which makes the rest of the response.
    pub(crate) fn leave_to_next(&mut self) {
        self.is_continued = true;
    }

    /// Adds response bytes sent to the client.
    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Name of the class. Requests refused before their class was known count as standard.
    pub(crate) fn class_name(&self) -> &'static str {
        self.class.unwrap_or(Class::Standard).name()
    }

    /// Labels of the request's metrics.
    fn labels(&self) -> MetricLabels<'_> {
        let endpoint = match (&self.node, self.terms) {
            (None, _) => EndpointKind::None,
            (Some(_), None) => EndpointKind::Node,
            (Some(_), Some(_)) => EndpointKind::External,
        };
        MetricLabels {
            api: self.api,
            class: self.class.unwrap_or(Class::Standard),
            tenant: self.context.tenant(),
            model: self.model(),
            endpoint,
        }
    }

    /// Adds the request to the history that operators see.
    fn add_to_history(&self, duration: Duration, usage: Usage, spent: f64) {
        self.gateway.history.record(&history::HistoryEntry {
            tenant: self.context.tenant(),
            end: self.outcome.history_outcome(),
            duration,
            queue_wait: self.queue_wait,
            first_token: self.first_token,
            prompt_tokens: usage.prompt,
            completion_tokens: usage.completion,
            spent,
        });
    }

    /// Exports the span. Clients without a valid key cannot make us send anything to a collector.
    fn export_span(&self, outcome: &'static str, duration: Duration) {
        let Some(((trace, spans), tenant)) = self.trace.as_deref().zip(self.context.tenant())
        else {
            return;
        };
        let Tokens { reported, generated } = self.used;
        let completion_tokens =
            reported.map(|reported| reported.completion).or((generated > 0).then_some(generated));
        spans.push(span::build(
            trace,
            &span::SpanInputs {
                api: self.api.served_by(),
                host: spans.host(),
                request_id: self.context.id().as_str(),
                tenant,
                class: self.class_name(),
                model: self.model(),
                node: self.node.as_deref(),
                outcome,
                is_fault: self.outcome.is_fault(),
                duration,
                queue_wait: self.queue_wait,
                first_token: self.first_token,
                retries: self.retries,
                prompt_tokens: reported.map(|reported| reported.prompt),
                answer_tokens: completion_tokens,
            },
        ));
    }

    fn log(&self, outcome: &str, duration: Duration, usage: Usage) {
        let first_token = self.first_token.map(|t| t.as_millis() as u64);
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "access",
                    request_id = self.context.id().as_str(),
                    client = %self.context.client(),
                    api = self.api.name(),
                    tenant = self.context.tenant(),
                    user = self.user.map(|(user, _)| tracing::field::display(user)),
                    class = self.class_name(),
                    model = self.model(),
                    node = self.node(),
                    outcome,
                    duration_ms = duration.as_millis() as u64,
                    first_token_ms = first_token,
                    prompt_tokens = usage.prompt,
                    completion_tokens = usage.completion,
                    bytes = self.bytes,
                )
            };
        }
        match self.outcome.is_failure_of_node() {
            true => line!(warn),
            false => line!(info),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.record_failure(&Error::Internal);
        }
        let (usage, spent) = self.settle();
        if let Scope::Part(totals) = &self.scope {
            return totals.add(self, usage, spent);
        }
        let outcome = self.outcome.name();
        let duration = self.begun.elapsed();
        let (fault, refusal) = self.outcome.fault();
        let first_token = self.first_token;
        let ended = RequestSample { outcome, fault, refusal, duration, first_token };
        self.gateway.metrics.record_request_end(self.labels(), ended);
        self.add_to_history(duration, usage, spent);
        self.log(outcome, duration, usage);
        self.export_span(outcome, duration);
    }
}
