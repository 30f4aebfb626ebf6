//! Error messages for clients: what happened, why, and what to do.

use super::Error;
use crate::types::limits::BudgetLimit;
use crate::types::limits::QueueLimit;
use crate::types::limits::RateLimit;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownPath => write!(f, "there is nothing at this path"),
            Self::Method(allowed) => write!(f, "this path takes {allowed} only"),
            Self::KeyMissing => {
                write!(f, "no API key was sent; send 'Authorization: Bearer <key>'")
            }
            Self::KeyWrong => write!(f, "the API key is not known here"),
            Self::JoinKeyWrong => write!(f, "the join key is wrong"),
            Self::JoinCertificate => write!(
                f,
                "nodes must show a certificate here; start the agent with --join-cert-file and \
                 --join-cert-key-file"
            ),
            Self::AdminKeyWrong => {
                write!(
                    f,
                    "the operators' key is missing or wrong; send 'Authorization: Bearer <key>'"
                )
            }
            Self::AdminOff => {
                write!(f, "this needs a key of operators: set admin.key_file in the configuration")
            }
            Self::UnknownNode(node) => {
                write!(
                    f,
                    "there is no node '{node}'; GET /admin/v1/nodes lists those that are linked"
                )
            }
            Self::JoinInvalid(why) => write!(f, "this is not a join request: {why}"),
            Self::JoinVersion => write!(
                f,
                "the node speaks another version of the node link; this gateway speaks version {}",
                inference_protocol::fleet::VERSION
            ),
            Self::JoinedAlready => write!(f, "the node has a link to this gateway already"),
            Self::NodeNameTaken(name) => write!(
                f,
                "another node named '{name}' is linked; give each node a name of its own, with \
                 --name or FLOTILLA_NAME"
            ),
            Self::TooLarge(max) => write!(f, "the request body is larger than {max} bytes"),
            Self::SlowBody => write!(f, "the request body did not arrive in time"),
            Self::Malformed(e) | Self::Invalid(e) => write!(f, "{}", e.message),
            Self::UnknownModel(model) => {
                write!(
                    f,
                    "the model '{model}' does not exist here; GET /v1/models lists those that do"
                )
            }
            Self::ModelForbidden(model) => {
                write!(f, "this API key may not ask for the model '{model}'")
            }
            Self::Quota(BudgetLimit::Tokens) => {
                write!(f, "this API key has used its tokens of this month (UTC)")
            }
            Self::Quota(BudgetLimit::Spend) => {
                write!(f, "this API key has spent its budget of this month (UTC)")
            }
            Self::RateLimited { limit: RateLimit::Concurrent, .. } => {
                write!(f, "this API key has as many requests running as it may have")
            }
            Self::RateLimited { limit, wait } => write!(
                f,
                "this API key has used its {} of this minute; try again in {} s",
                limit.name(),
                wait.as_secs_f64().ceil()
            ),
            Self::NoNode => write!(f, "no node is ready at the moment"),
            Self::QueueFull { full, .. } => f.write_str(match full {
                QueueLimit::Queue => "too many requests wait already",
                QueueLimit::Model => {
                    "too many requests for this model wait already; those for others may not"
                }
                QueueLimit::Tenant => {
                    "too many requests of this API key wait already, or their bodies are too large \
                     together; wait for some of them before you send more"
                }
            }),
            Self::Header(name, expected) => write!(f, "{name}: expected {expected}"),
            Self::DeadlineUnmet { .. } => {
                write!(f, "too many requests wait for this one to meet its deadline")
            }
            Self::QueueTimeout { .. } => write!(f, "no node had a free slot in time"),
            Self::NodeLost => write!(f, "the node was lost while it worked on this request"),
            Self::EngineLost => {
                write!(f, "the node's engine died while it worked on this request")
            }
            Self::Quarantined => write!(
                f,
                "two engines died while they worked on this request; it is not tried again for a \
                 minute"
            ),
            Self::NodeFailed(why) => write!(f, "the node could not go on: {why}"),
            Self::Unanswerable(told) => write!(f, "{}", told.message),
            Self::NodeRefused(status) => {
                write!(f, "the node could not take this request (status {status})")
            }
            Self::NodeTimeout => write!(f, "the node did not answer in time"),
            Self::NodeAnswer(why) => write!(f, "the node's answer cannot be passed on: {why}"),
            Self::Internal => write!(
                f,
                "the gateway failed on this request; report it with the x-request-id of this \
                 response, by which its log tells more"
            ),
            Self::ResponseTooLarge(max) => write!(
                f,
                "the response would be larger than {max} bytes (limits.response_bytes_max); ask for \
                 less at once, stream it, or ask for encoding_format base64"
            ),
            Self::ExternalRefused { status, param } => {
                write!(f, "the external endpoint does not accept this request (status {status})")?;
                param.map_or(Ok(()), |param| write!(f, "; it names the field '{param}'"))
            }
            Self::ExternalFailed => write!(f, "the external endpoint failed to answer"),
        }
    }
}
