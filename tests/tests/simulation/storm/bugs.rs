//! Bugs that routers had, put back one by one: a simulation that does not notice them would not
//! notice ours either. They change what the production code asks for, or what it is told.

use flotilla_gateway::scheduler::attempts::{AttemptAction, AttemptEnd, Purpose};
use flotilla_gateway::scheduler::fleet::AttemptOutcome;
use flotilla_gateway::types::error::Error;
use flotilla_gateway::types::external::ExternalPolicy;

/// What is done wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Nothing.
    None,
    /// A client that leaves keeps its slot.
    LeakWhenClientLeaves,
    /// A failed attempt keeps its slot.
    LeakWhenAttemptFails,
    /// A slot that was granted while its client left is nobody's.
    LeakWhenGrantIsLate,
    /// A slot is free again when the response begins.
    ReleaseAtFirstToken,
    /// A slot is given back twice.
    ReleaseTwice,
    /// A heartbeat sets the count of requests to zero.
    HeartbeatResetsCounters,
    /// A request goes to the engine again that failed it.
    RetrySameEngine,
    /// A node that says that it leaves gets more.
    RouteToDraining,
    /// A node whose link is gone gets more.
    RouteToLost,
    /// A request waits as long as it takes.
    WaitForever,
    /// A response begins anew elsewhere, after what the client has.
    ForgetTokens,
    /// A response continues elsewhere with events that the client has.
    RepeatEvents,
    /// A request that kills engines goes from one to the next.
    SpreadPoison,
    /// A stream that breaks off is taken for a whole one.
    EndSilently,
    /// A node that was given up still writes into the response.
    HearTheDead,
    /// Requests of a node that is lost wait for it.
    ForgetTheLost,
    /// A node counts as having a slot more than it has.
    FreeSlotsOverstated,
    /// A cordoned node that comes back is not cordoned any more.
    ForgetCordon,
    /// Requests are served as they come, whoever sends them.
    ForgetTenants,
    /// Requests are served as they come, however urgent they are.
    ForgetClasses,
    /// The attempt that loses a hedge goes on.
    HedgeKeepsTheLoser,
    /// The second attempt of a hedge goes to the node that is late.
    HedgeSameNode,
    /// The second attempt of a hedge goes to an external endpoint.
    HedgeOutside,
    /// A hedge takes nothing from the retry budget.
    HedgeWithoutBudget,
    /// Both attempts of a hedge write into the response.
    HedgeMixes,
    /// A retry that costs one takes nothing from the retry budget.
    RetryWithoutBudget,
    /// A retry that the budget refused is made all the same.
    RetryAfterRefusal,
    /// Requests that may not leave our nodes overflow.
    OverflowForEverybody,
    /// Requests overflow although a node is free.
    OverflowFirst,
    /// A response that a node began continues at an external endpoint.
    ContinueOutside,
    /// A response that moves keeps its old slot.
    MoveKeepsTheSlot,
    /// What killed two engines may be sent again.
    ForgetQuarantine,
    /// An external endpoint is not paid when the client leaves.
    LeaveWithoutPaying,
    /// An external endpoint is paid twice.
    PayTwice,
    /// An external endpoint is paid for what it refused.
    PayForRefusals,
    /// An external endpoint is paid for complete responses only.
    PayForSuccessOnly,
    /// Our own nodes are paid.
    PayNodes,
}

impl Bug {
    /// All that are bugs.
    pub const ALL: [Self; 37] = [
        Self::LeakWhenClientLeaves,
        Self::LeakWhenAttemptFails,
        Self::LeakWhenGrantIsLate,
        Self::ReleaseAtFirstToken,
        Self::ReleaseTwice,
        Self::HeartbeatResetsCounters,
        Self::RetrySameEngine,
        Self::RouteToDraining,
        Self::RouteToLost,
        Self::WaitForever,
        Self::ForgetTokens,
        Self::RepeatEvents,
        Self::SpreadPoison,
        Self::EndSilently,
        Self::HearTheDead,
        Self::ForgetTheLost,
        Self::FreeSlotsOverstated,
        Self::ForgetCordon,
        Self::ForgetTenants,
        Self::ForgetClasses,
        Self::HedgeKeepsTheLoser,
        Self::HedgeSameNode,
        Self::HedgeOutside,
        Self::HedgeWithoutBudget,
        Self::HedgeMixes,
        Self::RetryWithoutBudget,
        Self::RetryAfterRefusal,
        Self::OverflowForEverybody,
        Self::OverflowFirst,
        Self::ContinueOutside,
        Self::MoveKeepsTheSlot,
        Self::ForgetQuarantine,
        Self::LeaveWithoutPaying,
        Self::PayTwice,
        Self::PayForRefusals,
        Self::PayForSuccessOnly,
        Self::PayNodes,
    ];

    /// What becomes of an action. `is_left`: the client has left. `is_rival`: of a released
    /// attempt, whether another one runs beside it.
    pub fn change(
        self,
        action: AttemptAction,
        is_left: bool,
        is_rival: bool,
    ) -> Option<AttemptAction> {
        Some(match action {
            AttemptAction::Acquire { purpose, mut constraints, deadline } => {
                let is_hedge = purpose == Purpose::Hedge;
                match self {
                    Self::RetrySameEngine if !is_hedge => constraints.tried.clear(),
                    Self::HedgeSameNode if is_hedge => constraints.tried.clear(),
                    Self::HedgeOutside if is_hedge => constraints.external = ExternalPolicy::Prefer,
                    Self::OverflowForEverybody => constraints.external = ExternalPolicy::Overflow,
                    Self::OverflowFirst => constraints.external = ExternalPolicy::Prefer,
                    Self::ContinueOutside if constraints.origin.is_some() => {
                        (constraints.origin, constraints.external) = (None, ExternalPolicy::Prefer);
                    }
                    _ => {}
                }
                AttemptAction::Acquire { purpose, constraints, deadline }
            }
            AttemptAction::Release(attempt, end) => {
                let has_failed =
                    !matches!(end.outcome, AttemptOutcome::Answered | AttemptOutcome::Unknown);
                let is_answered = end.outcome == AttemptOutcome::Answered;
                let is_unpaid = (is_left && self == Self::LeaveWithoutPaying)
                    || (!is_answered && !is_left && self == Self::PayForSuccessOnly);
                let billed_usage = end.billed_usage.filter(|_| !is_unpaid);
                match self {
                    Self::LeakWhenClientLeaves if is_left => return None,
                    Self::LeakWhenAttemptFails if has_failed => return None,
                    Self::HedgeKeepsTheLoser if is_rival && !is_left => return None,
                    _ => AttemptAction::Release(attempt, AttemptEnd { billed_usage, ..end }),
                }
            }
            AttemptAction::Withdraw(_) if self == Self::LeakWhenGrantIsLate && is_left => {
                return None;
            }
            AttemptAction::Quarantine if self == Self::ForgetQuarantine => return None,
            action => action,
        })
    }

    /// Whether a retry is made that takes nothing from the budget.
    pub fn is_free(self, purpose: Option<Purpose>) -> bool {
        match purpose {
            Some(Purpose::Hedge) => self == Self::HedgeWithoutBudget,
            Some(_) => false,
            None => self == Self::RetryWithoutBudget,
        }
    }

    /// Whether a request goes on that has failed of this.
    pub fn goes_on(self, error: &Error, is_refused: bool) -> bool {
        match self {
            Self::SpreadPoison => *error == Error::Quarantined,
            Self::RetryAfterRefusal => is_refused,
            _ => false,
        }
    }
}
