//! Stage 7: the request is over. One record, completed by its Drop: metrics, and one line
//! in the access log. Prompts and answers are never part of it.

use std::time::{Duration, Instant};

use crate::admission::Class;
use crate::api::Api;
use crate::error::{Error, Origin};
use crate::limiter::Permit;
use crate::metrics::{Again, Ended, Metrics};

/// What is known of a request. Dropped at the end of its response.
#[derive(Debug)]
pub struct Record {
    metrics: Metrics,
    api: Api,
    request_id: String,
    begun: Instant,
    tenant: Option<String>,
    class: Option<Class>,
    model: Option<String>,
    node: Option<String>,
    first_token: Option<Duration>,
    outcome: Outcome,
    bytes: usize,
    /// What the key's limits gave, and the tokens that were reserved.
    permit: Option<Permit>,
    used: Used,
}

/// Tokens that a request has used, as far as its answer tells.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    /// Of prompt and answer.
    told: Option<u64>,
    /// Of the answer so far.
    generated: u64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The client left before the end.
    ClientGone,
    /// Answered, with this status of the node.
    Answered(u16),
    /// Refused or broken off, for this reason.
    Failed(&'static str, Origin),
}

impl Record {
    /// Opens the record of a request.
    pub fn open(metrics: &Metrics, api: Api, request_id: &str) -> Self {
        metrics.request_begins();
        Self {
            metrics: metrics.clone(),
            api,
            request_id: request_id.to_string(),
            begun: Instant::now(),
            tenant: None,
            class: None,
            model: None,
            node: None,
            first_token: None,
            outcome: Outcome::ClientGone,
            bytes: 0,
            permit: None,
            used: Used::default(),
        }
    }

    /// Who asks.
    pub fn tenant(&mut self, tenant: &str) {
        self.tenant = Some(tenant.to_string());
    }

    /// How urgent it is.
    pub fn class(&mut self, class: Class) {
        self.class = Some(class);
    }

    /// Its key's limits let it pass.
    pub fn permit(&mut self, permit: Permit) {
        self.permit = Some(permit);
    }

    /// Tokens of prompt and answer, once they are told, and of the answer so far.
    pub fn used(&mut self, told: Option<u64>, generated: u64) {
        self.used = Used { told: told.or(self.used.told), generated };
    }

    /// Which model was asked for, and which node answers. Only models that a node serves
    /// get here, so that clients cannot write what they like into logs and labels.
    pub fn routed(&mut self, model: &str, node: &str) {
        if self.node.is_none() {
            self.metrics.queue_waited(self.class_name(), self.begun.elapsed());
        }
        self.model = Some(model.to_string());
        self.node = Some(node.to_string());
    }

    /// The node that answers.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// Another endpoint is tried, after so many tokens of the answer.
    pub fn retried(&mut self, error: &Error, tokens: u64) {
        let kind = if tokens > 0 { Again::Resume } else { Again::Retry };
        self.metrics.tried_again(kind, error.code());
        let (request_id, node, reason) = (&self.request_id, &self.node, error.code());
        tracing::warn!(request_id, node, reason, tokens, "{}", kind.name());
    }

    /// Its node is about to leave, and there is a slot elsewhere.
    pub fn moved(&mut self, tokens: u64) {
        let (kind, reason) = (if tokens > 0 { Again::Resume } else { Again::Retry }, "node_leaves");
        self.metrics.tried_again(kind, reason);
        tracing::info!(request_id = self.request_id, node = self.node, tokens, "move");
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
        self.outcome = Outcome::Failed(error.code(), error.origin());
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
            Outcome::Answered(_) => "refused_by_node",
            Outcome::Failed(code, _) => code,
        }
    }

    /// What was reserved and not used is given back. Where nothing tells the prompt's tokens, the
    /// estimate stands.
    fn settle(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let Used { told, generated } = self.used;
        let refused = matches!(self.outcome, Outcome::Answered(status) if status >= 300);
        let answered = self.first_token.is_some() && !refused;
        permit.settle(match told {
            Some(tokens) => tokens,
            None if answered => generated.max(u64::from(permit.reserved())),
            None => 0,
        });
    }

    fn log(&self, outcome: &str, duration: Duration) {
        let first_token = self.first_token.map(|t| t.as_millis() as u64);
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: "access",
                    request_id = self.request_id,
                    api = self.api.name(),
                    tenant = self.tenant,
                    class = self.class_name(),
                    model = self.model,
                    node = self.node,
                    outcome,
                    duration_ms = duration.as_millis() as u64,
                    first_token_ms = first_token,
                    bytes = self.bytes,
                )
            };
        }
        match self.outcome {
            Outcome::Failed(_, Origin::Node) => line!(warn),
            _ => line!(info),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.settle();
        let outcome = self.outcome_name();
        let duration = self.begun.elapsed();
        let ended = Ended {
            api: self.api,
            class: self.class_name(),
            outcome,
            duration,
            first_token: self.first_token,
        };
        self.metrics.request_ends(&ended);
        self.log(outcome, duration);
    }
}
