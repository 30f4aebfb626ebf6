//! Bugs that other routers had, put back one by one: a simulation that does not notice them
//! would not notice ours either.

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
    /// A slot is free again when the answer begins.
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
    /// An answer begins anew elsewhere, after what the client has.
    ForgetTokens,
    /// An answer goes on elsewhere with events that the client has.
    RepeatEvents,
    /// A request that kills engines goes from one to the next.
    SpreadPoison,
    /// A stream that breaks off is taken for a whole one.
    EndSilently,
    /// A node that was given up still writes into the answer.
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
}

impl Bug {
    /// All that are bugs.
    pub const ALL: [Self; 20] = [
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
    ];
}
