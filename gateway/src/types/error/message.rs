//! Error messages for clients: what happened, why, and what to do.

use super::Error;
use crate::types::limits::BudgetLimit;
use crate::types::limits::LimitScope;
use crate::types::limits::QueueLimit;
use crate::types::limits::RateLimit;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownPath => write!(
                f,
                "unknown path; the API is at /v1/chat/completions, /v1/completions, \
                 /v1/embeddings, /v1/rerank and /v1/models"
            ),
            Self::Method(allowed) => write!(f, "this path accepts only {allowed}"),
            Self::KeyMissing => {
                write!(f, "the API key is missing; send 'Authorization: Bearer <key>'")
            }
            Self::KeyWrong => write!(f, "the API key is invalid"),
            Self::JoinKeyWrong => write!(f, "the join key is wrong"),
            Self::JoinCertificate => write!(
                f,
                "nodes must present a client certificate; start the agent with --join-cert-file and \
                 --join-cert-key-file"
            ),
            Self::AdminKeyWrong => {
                write!(
                    f,
                    "the admin key is missing or wrong; send 'Authorization: Bearer <key>'"
                )
            }
            Self::AdminOff => {
                write!(f, "this needs an admin key: set admin.key_file in the configuration")
            }
            Self::UnknownNode(node) => {
                write!(
                    f,
                    "unknown node '{node}'; GET /admin/v1/nodes lists the linked nodes"
                )
            }
            Self::JoinInvalid(why) => write!(f, "invalid join request: {why}"),
            Self::JoinVersion => write!(
                f,
                "the node speaks another version of the node link; this gateway speaks version {}",
                inference_protocol::fleet::VERSION
            ),
            Self::JoinedAlready => write!(f, "the node already has a link to this gateway"),
            Self::NodeNameTaken(name) => write!(
                f,
                "another node named '{name}' is linked; give each node a unique name with \
                 --name or FLOTILLA_NAME"
            ),
            Self::TooLarge(max) => write!(f, "the request body is larger than {max} bytes"),
            Self::SlowBody => write!(f, "the request body did not arrive in time"),
            Self::InvalidChunks => {
                write!(f, "the chunked transfer encoding of the request body is invalid")
            }
            Self::EncodedBody => write!(
                f,
                "content-encoding: only identity is supported; send the request body uncompressed"
            ),
            Self::Malformed(e) | Self::Invalid(e) => write!(f, "{}", e.message),
            Self::UnknownModel(model) => {
                write!(
                    f,
                    "the model '{model}' does not exist; GET /v1/models lists the models"
                )
            }
            Self::UnknownResponse(id) => {
                write!(f, "no response with id '{id}' is stored; it may have expired")
            }
            Self::StoreOff => write!(
                f,
                "this gateway has no store, which files, batches and responses in the background need: \
                 set store.dir in its configuration"
            ),
            Self::StoreUnavailable => {
                write!(f, "the gateway's store cannot be used now; nothing was changed; retry later")
            }
            Self::StoredKeysOff => write!(
                f,
                "this gateway takes no keys from its store: set store.keys to true in its configuration"
            ),
            Self::UnknownKey(name) => write!(f, "the store has no key named '{name}'"),
            Self::KeyExists(name) => write!(
                f,
                "a key named '{name}' exists; delete it first, or use another name"
            ),
            Self::UnknownRecord(id) => write!(f, "there is no '{id}'; it may have expired"),
            Self::FileInUse(id) => {
                write!(f, "'{id}' is the input of a batch that has not ended; cancel the batch first")
            }
            Self::BatchFinished(id) => write!(f, "'{id}' has ended already"),
            Self::BatchNotEnded(id) => write!(
                f,
                "'{id}' has not ended; wait until its processing_status is 'ended', or cancel it"
            ),
            Self::TooManyBatches(max) => write!(
                f,
                "this API key has {max} batches that have not ended, which is the limit; wait for one to \
                 end, or cancel it"
            ),
            Self::TooManyTasks(max) => write!(
                f,
                "this API key has {max} responses and jobs in the background that have not ended, which is \
                 the limit (store.background_per_tenant_max); wait for one to end, or cancel it"
            ),
            Self::StorageFull => write!(
                f,
                "there is no room for this (store.bytes_per_tenant_max, store.bytes_max); delete \
                 files that you no longer need"
            ),
            Self::ModelForbidden(model) => {
                write!(f, "this API key may not use the model '{model}'")
            }
            Self::Quota(BudgetLimit::Tokens, scope) => {
                write!(f, "{} has used its token quota of this month (UTC)", owner(*scope))
            }
            Self::Quota(BudgetLimit::Spend, scope) => {
                write!(f, "{} has spent its budget of this month (UTC)", owner(*scope))
            }
            Self::RateLimited { limit: RateLimit::Users, .. } => write!(
                f,
                "this API key has requests of too many users at once (users_max); retry when some of \
                 them are done"
            ),
            Self::RateLimited { limit: RateLimit::Concurrent, scope, .. } => {
                write!(f, "{} has reached its limit of concurrent requests", owner(*scope))
            }
            Self::RateLimited { limit: RateLimit::Budget, scope, .. } => write!(
                f,
                "running requests may use what {} has left of its token quota of this month; \
                 retry when one of them is done",
                owner(*scope)
            ),
            Self::RateLimited { limit, scope, wait } => write!(
                f,
                "{} has used its {} of this minute; retry in {} s",
                owner(*scope),
                limit.name(),
                wait.as_secs_f64().ceil()
            ),
            Self::NoNode => write!(f, "no node is ready"),
            Self::QueueFull { full, .. } => f.write_str(match full {
                QueueLimit::Queue => "the queue is full",
                QueueLimit::Model => {
                    "the queue is full for this model; requests for other models may have space"
                }
                QueueLimit::Tenant => {
                    "the queue is full for this API key, by requests or by bytes; wait for some of its \
                     requests to finish before you send more"
                }
                QueueLimit::User => {
                    "the queue is full for this user of the API key, by requests or by bytes; wait for some \
                     of the user's requests to finish before you send more"
                }
            }),
            Self::Header(name, expected) => write!(f, "{name}: expected {expected}"),
            Self::DeadlineUnmet { .. } => {
                write!(f, "the predicted queue wait exceeds the deadline of the request")
            }
            Self::QueueTimeout { .. } => write!(f, "the request waited in the queue until its timeout"),
            Self::NodeLost => write!(f, "the node was lost while it ran this request"),
            Self::EngineLost => {
                write!(f, "the engine of the node died while it ran this request")
            }
            Self::Quarantined => write!(
                f,
                "two engines died while they ran this request; the gateway refuses it for one minute"
            ),
            Self::NodeFailed(why) => write!(f, "the node failed: {why}"),
            Self::Unanswerable(error) => write!(f, "{}", error.message),
            Self::NodeRefused(status) => {
                write!(f, "the node refused this request (status {status})")
            }
            Self::NodeTimeout => write!(f, "the node did not respond in time"),
            Self::NodeAnswer(why) => write!(f, "invalid response from the node: {why}"),
            Self::Internal => write!(
                f,
                "internal error of the gateway; report it with the x-request-id of this response, which \
                 the log of the gateway contains, too"
            ),
            Self::ResponseTooLarge(max) => write!(
                f,
                "the response would be larger than {max} bytes (limits.response_bytes_max); request \
                 less at once, stream it, or use encoding_format base64"
            ),
            Self::ExternalRefused { status, param } => {
                write!(f, "the external endpoint refused this request (status {status})")?;
                param.map_or(Ok(()), |param| write!(f, "; it names the field '{param}'"))
            }
            Self::ExternalTooLong => {
                write!(f, "the prompt does not fit into the context of the external endpoint")
            }
            Self::ExternalFailed => write!(f, "the external endpoint failed"),
        }
    }
}

fn owner(scope: LimitScope) -> &'static str {
    match scope {
        LimitScope::Key => "this API key",
        LimitScope::User => "this user of the API key",
    }
}
