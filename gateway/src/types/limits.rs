//! Limits that refuse requests: the bounds of the queue, and the names of what is exceeded.

/// Limits of one model or one tenant. Absent is the dynamic share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// Requests.
    pub depth_max: Option<usize>,
    /// Bytes of their bodies together.
    pub bytes_max: Option<usize>,
}

impl Share {
    /// This share, and where it says nothing another one.
    pub fn or(self, other: Self) -> Self {
        Self {
            depth_max: self.depth_max.or(other.depth_max),
            bytes_max: self.bytes_max.or(other.bytes_max),
        }
    }
}

/// The queue's bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests.
    pub depth_max: usize,
    /// Bytes of their bodies together, those that are being read included.
    pub bytes_max: usize,
    /// Of these, those of one model.
    pub per_model: Share,
    /// Of these, those of one tenant whose key says nothing else.
    pub per_tenant: Share,
    /// Whether more than one tenant may send requests.
    pub has_tenants: bool,
}

impl Bounds {
    /// Bounds of the whole queue, for one tenant.
    pub fn new(depth_max: usize, bytes_max: usize) -> Self {
        let share = Share::default();
        Self { depth_max, bytes_max, per_model: share, per_tenant: share, has_tenants: false }
    }
}

/// Which limit leaves no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// The limit of the whole queue, for this class at least.
    Queue,
    /// The model's share.
    Model,
    /// The tenant's share.
    Tenant,
}

impl Full {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Queue, Self::Model, Self::Tenant];

    /// Its name as the reason of a refusal.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Queue => "queue_full",
            Self::Model => "queue_full_model",
            Self::Tenant => "queue_full_tenant",
        }
    }
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Requests a minute.
    Requests,
    /// Tokens a minute.
    Tokens,
    /// Requests side by side.
    Concurrent,
}

impl Limit {
    /// Its name in errors and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Concurrent => "concurrent",
        }
    }
}

/// What of its budget a tenant has used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// Tokens.
    Tokens,
    /// Spend.
    Spend,
}
