//! Limits that refuse requests: queue bounds, and names for the limit reached.

/// Queue limits of one model or tenant. `None` is the dynamic share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueShare {
    /// Requests.
    pub depth_max: Option<usize>,
    /// Total bytes of their bodies.
    pub bytes_max: Option<usize>,
}

impl QueueShare {
    /// Fills in missing limits from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            depth_max: self.depth_max.or(other.depth_max),
            bytes_max: self.bytes_max.or(other.bytes_max),
        }
    }
}

/// Bounds of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBounds {
    /// Requests.
    pub depth_max: usize,
    /// Total bytes of their bodies, including bodies being read.
    pub bytes_max: usize,
    /// Share of a single model.
    pub per_model: QueueShare,
    /// Share of a single tenant whose key sets no limit.
    pub per_tenant: QueueShare,
    /// True if more than one tenant may send requests.
    pub has_tenants: bool,
}

impl QueueBounds {
    /// Bounds of the whole queue, with a single tenant.
    pub fn new(depth_max: usize, bytes_max: usize) -> Self {
        let share = QueueShare::default();
        Self { depth_max, bytes_max, per_model: share, per_tenant: share, has_tenants: false }
    }
}

/// The queue limit that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// The limit of the whole queue, at least for this class.
    Queue,
    /// The model's share.
    Model,
    /// The tenant's share.
    Tenant,
    /// The share of a user of the tenant.
    User,
}

impl QueueLimit {
    /// All values.
    pub const ALL: [Self; 4] = [Self::Queue, Self::Model, Self::Tenant, Self::User];

    /// Refusal reason.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Queue => "queue_full",
            Self::Model => "queue_full_model",
            Self::Tenant => "queue_full_tenant",
            Self::User => "queue_full_user",
        }
    }
}

/// What a rate limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateLimit {
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
    /// Concurrent requests.
    Concurrent,
    /// Users of one key with requests at the same time.
    Users,
    /// Tokens of the monthly budget, which running requests have reserved.
    Budget,
}

impl RateLimit {
    /// Name in errors and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Concurrent => "concurrent",
            Self::Users => "users",
            Self::Budget => "budget",
        }
    }
}

/// Whose limit it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LimitScope {
    /// The API key's.
    #[default]
    Key,
    /// That of one of its users.
    User,
}

/// The part of a budget that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetLimit {
    /// Tokens.
    Tokens,
    /// Spend.
    Spend,
}
