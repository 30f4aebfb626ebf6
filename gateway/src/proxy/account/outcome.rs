//! PURE. How a request ended, and what the metrics, the log, the history, and the bill make of it.

use crate::observability::history::HistoryOutcome;
use crate::types::error::{Error, FaultOrigin, REFUSED_BY_NODE};

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The client disconnected before the end.
    ClientGone,
    /// The client got a complete response with this status from the endpoint.
    Answered(u16),
    /// The request was refused, or its response broken off.
    Failed {
        /// Code of the error.
        code: &'static str,
        /// Who caused it.
        origin: FaultOrigin,
        /// Reason label of the metrics.
        reason: &'static str,
    },
}

impl Outcome {
    /// The outcome of a request that failed.
    pub(super) fn of(error: &Error) -> Self {
        Self::Failed { code: error.code(), origin: error.origin(), reason: error.reason() }
    }

    /// Label of metrics, logs, and spans.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ClientGone => "client_gone",
            Self::Answered(200..=299) => "ok",
            Self::Answered(_) => REFUSED_BY_NODE,
            Self::Failed { code, .. } => code,
        }
    }

    /// Who caused the outcome, and why the request was refused.
    pub(super) fn fault(self) -> (Option<FaultOrigin>, Option<&'static str>) {
        match self {
            Self::ClientGone => (Some(FaultOrigin::Client), None),
            Self::Answered(200..=299) => (None, None),
            Self::Answered(500..) => (Some(FaultOrigin::Node), None),
            Self::Answered(_) => (Some(FaultOrigin::Client), Some(REFUSED_BY_NODE)),
            Self::Failed { origin: FaultOrigin::Node, .. } => (Some(FaultOrigin::Node), None),
            Self::Failed { origin, reason, .. } => (Some(origin), Some(reason)),
        }
    }

    /// True if something other than the client caused the failure.
    pub(super) fn is_fault(self) -> bool {
        match self {
            Self::ClientGone => false,
            Self::Answered(status) => status >= 500,
            Self::Failed { origin, .. } => origin != FaultOrigin::Client,
        }
    }

    /// True if a node failed the request.
    pub(super) fn is_failure_of_node(self) -> bool {
        matches!(self, Self::Failed { origin: FaultOrigin::Node, .. })
    }

    /// The outcome as the history counts it.
    pub(super) fn history_outcome(self) -> HistoryOutcome {
        match self {
            Self::ClientGone => HistoryOutcome::Left,
            Self::Answered(200..=299) => HistoryOutcome::Answered,
            Self::Failed { origin: FaultOrigin::Node, .. } => HistoryOutcome::Failed,
            Self::Answered(_) | Self::Failed { .. } => HistoryOutcome::Refused,
        }
    }

    /// True if our nodes did work that the client pays for: they responded, or the client left or
    /// asked for too much while a node worked on the request. A node that failed or refused the
    /// request before the first token costs nothing. `is_at_node`: a node had the request at the
    /// end; `has_begun`: a first token arrived.
    pub(super) fn has_worked(self, is_at_node: bool, has_begun: bool) -> bool {
        match self {
            Self::Answered(status) => status < 300,
            Self::ClientGone => is_at_node || has_begun,
            Self::Failed { code, .. } => has_begun || is_its_own_size(code),
        }
    }
}

/// True for the errors of a request that takes too long or generates too much: the node did work.
fn is_its_own_size(code: &str) -> bool {
    [Error::NodeTimeout.code(), Error::ResponseTooLarge(0).code()].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_paid_for_when_a_node_did_some() {
        let failed = |error: Error| Outcome::of(&error);
        for (outcome, is_at_node, has_begun, is_owed) in [
            (Outcome::Answered(200), true, true, true),
            (Outcome::Answered(400), true, false, false),
            (Outcome::ClientGone, false, false, false),
            (Outcome::ClientGone, true, false, true),
            (Outcome::ClientGone, false, true, true),
            (failed(Error::NodeLost), true, false, false),
            (failed(Error::NodeLost), true, true, true),
            (failed(Error::NodeTimeout), true, false, true),
            (failed(Error::ResponseTooLarge(1)), true, false, true),
            (failed(Error::KeyWrong), false, false, false),
        ] {
            let worked = outcome.has_worked(is_at_node, has_begun);
            assert_eq!(worked, is_owed, "{outcome:?} {is_at_node} {has_begun}");
        }
    }

    #[test]
    fn a_refusal_by_a_node_is_the_clients_and_its_failure_is_not() {
        let refused = Outcome::Answered(400);
        assert_eq!(refused.fault(), (Some(FaultOrigin::Client), Some(REFUSED_BY_NODE)));
        assert!(!refused.is_fault() && refused.history_outcome() == HistoryOutcome::Refused);
        let lost = Outcome::of(&Error::NodeLost);
        assert_eq!(lost.fault(), (Some(FaultOrigin::Node), None));
        assert!(
            lost.is_fault()
                && lost.is_failure_of_node()
                && lost.history_outcome() == HistoryOutcome::Failed
        );
    }
}
