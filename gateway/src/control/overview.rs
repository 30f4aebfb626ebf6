//! The data of the fleet page and `flotilla-gateway top`, as JSON.

use std::time::SystemTime;

use inference_protocol::time::unix_seconds;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::access::keys::Caller;
use crate::access::limiter::LimitUsage;
use crate::context::Gateway;
use crate::dispatcher::views::{ExternalView, NodeView, QueueView};
use crate::observability::history::{Point, Rates, STEP, TenantTotals};
use crate::store::Store;
use crate::types::usage::Used;
use crate::types::user::UserId;

/// Path of the current state.
pub const OVERVIEW_PATH: &str = "/admin/v1/overview";
/// Path of the history.
pub const RECENT_PATH: &str = "/admin/v1/recent";

/// The gateway and its fleet at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overview {
    /// The gateway's version.
    pub version: String,
    /// Uptime, in seconds.
    pub uptime_seconds: u64,
    /// Linked nodes, by name.
    pub nodes: Vec<NodeView>,
    /// External endpoints, by name.
    pub external: Vec<ExternalView>,
    /// Queued requests by class, most urgent class first.
    pub queue: Vec<QueueView>,
    /// Retried requests in the queue.
    pub retrying: usize,
    /// Requests whose response is not finished, including queued ones.
    pub requests_in_flight: i64,
    /// Rates of the last minute.
    pub minute: Rates,
    /// Tenants, by name.
    pub tenants: Vec<TenantView>,
    /// Names of the served models.
    pub models: Vec<String>,
    /// The store, if the gateway has one.
    #[serde(default)]
    pub store: Option<StoreView>,
}

/// The store and the work in it, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreView {
    /// False while it fails.
    pub available: bool,
    /// Bytes of all that is stored.
    pub bytes: u64,
    /// Batches that have not ended.
    pub batches: WorkView,
    /// Responses and jobs in the background that have not ended.
    pub tasks: WorkView,
}

/// Work that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkView {
    /// How much.
    pub unfinished: u64,
    /// How long ago the oldest was asked for, in seconds.
    pub oldest_seconds: Option<u64>,
}

/// A tenant, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TenantView {
    /// Its name.
    pub name: String,
    /// Most urgent class that its key may use.
    pub class_max: String,
    /// Usage since the gateway started.
    #[serde(flatten)]
    pub used: TenantTotals,
    /// Current use of its rate limits.
    #[serde(flatten)]
    pub standing: LimitUsage,
    /// The users of its key who used the most tokens this month (UTC), most first; at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserView>,
}

/// A user of a key, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UserView {
    /// The user's pseudonym, as in the log.
    pub user: String,
    /// Prompt and completion tokens this month.
    pub tokens_this_month: u64,
    /// Spend at external endpoints this month.
    pub spent_this_month: f64,
}

/// Users shown for each tenant.
const USERS_SHOWN: usize = 10;

/// The last minutes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// Length of an interval, in seconds.
    pub step_seconds: u64,
    /// Complete intervals, oldest first.
    pub steps: Vec<Point>,
}

/// The current state.
pub fn overview(gateway: &Gateway) -> Overview {
    let look = gateway.dispatcher.fleet_view();
    let models = gateway.dispatcher.models().1.into_keys().collect();
    Overview {
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_seconds: gateway.history.uptime().as_secs(),
        nodes: look.nodes,
        external: look.external,
        queue: look.queue,
        retrying: look.retrying,
        requests_in_flight: gateway.metrics.requests_in_flight(),
        minute: gateway.history.minute(),
        tenants: tenants(gateway),
        models,
        store: gateway.store.as_ref().map(|store| store_view(gateway, store)),
    }
}

fn store_view(gateway: &Gateway, store: &Store) -> StoreView {
    let now = unix_seconds(SystemTime::now());
    let view = |(unfinished, oldest): (u64, Option<u64>)| WorkView {
        unfinished,
        oldest_seconds: oldest.map(|at| now.saturating_sub(at)),
    };
    let [batches, tasks] = gateway.metrics.unfinished().map(view);
    StoreView { available: store.is_available(), bytes: store.bytes(), batches, tasks }
}

fn tenants(gateway: &Gateway) -> Vec<TenantView> {
    let settings = gateway.settings.now();
    let mut callers: Vec<&Caller> = settings.keys.tenants().collect();
    callers.sort_by(|a, b| a.tenant.cmp(&b.tenant));
    let used = gateway.history.tenant_totals(callers.iter().map(|caller| &*caller.tenant));
    let view = |(caller, used): (&Caller, TenantTotals)| TenantView {
        name: caller.tenant.to_string(),
        class_max: caller.key.class_max.name().into(),
        used,
        standing: caller.limiter.usage(),
        users: users(gateway, &caller.tenant),
    };
    callers.into_iter().zip(used).map(view).collect()
}

fn users(gateway: &Gateway, tenant: &str) -> Vec<UserView> {
    let users = gateway.dispatcher.heaviest_users(tenant, USERS_SHOWN).into_iter();
    let view = |(user, used): (UserId, Used)| UserView {
        user: user.to_string(),
        tokens_this_month: used.tokens,
        spent_this_month: used.spend,
    };
    users.map(view).collect()
}

/// The history of the last minutes.
pub fn history(gateway: &Gateway) -> History {
    History { step_seconds: STEP.as_secs(), steps: gateway.history.points() }
}
