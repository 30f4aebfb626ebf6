//! What passes between the stages about a response in the background: what is stored of its
//! request, and what was made of it before.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName};
use inference_protocol::fleet::ModelStatus;
use inference_protocol::openai::ParseError;
use inference_protocol::resume::{Resume, ResumedChoice};
use inference_protocol::time::unix_seconds;
use inference_translation::store::Stored;
use inference_translation::{Background, Origin};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::admit::Admitted;
use super::translation::Translation;
use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::store::{BackgroundTask, Store, StoreError};
use crate::types::error::Error;

/// Class header of requests and responses. It overrides `service_tier`.
pub(crate) const CLASS: HeaderName = HeaderName::from_static("x-flotilla-class");

/// How long another gateway may take to store a response after its client has it.
const LAG: Duration = Duration::from_millis(200);

/// What a response in the background needs of its request.
#[derive(Debug)]
pub(crate) struct Deferral {
    /// Its body.
    pub request: Bytes,
    /// Headers on which the response depends.
    pub headers: Vec<(String, String)>,
    /// Where its ids and times come from.
    pub origin: Origin,
    /// How it is made.
    pub background: Background,
}

impl Deferral {
    /// `None` if the response is to be sent on the request's connection.
    pub(crate) fn of(
        translation: Option<&Translation>,
        request: Bytes,
        headers: Vec<(String, String)>,
    ) -> Option<Self> {
        let translation = translation?;
        let (background, origin) = (translation.background?, translation.origin);
        Some(Self { request, headers, origin, background })
    }
}

/// The headers on which a response depends: its class, and its user.
pub(crate) fn kept_headers(headers: &HeaderMap, caller: &Caller) -> Vec<(String, String)> {
    let class = [CLASS];
    let names = caller.key.users.header_names().iter().chain(&class);
    let sent = names.filter_map(|name| {
        Some((name.as_str().to_string(), headers.get(name)?.to_str().ok()?.to_string()))
    });
    sent.collect()
}

/// A response that was begun before.
#[derive(Debug)]
pub(crate) struct Again {
    /// Where its ids and times come from.
    pub origin: Origin,
    /// What was made of it.
    pub checkpoint: Checkpoint,
    /// The response that it continues, which may be gone elsewhere.
    pub previous: Option<Arc<Stored>>,
}

impl Again {
    /// The model file that must make the rest.
    pub(crate) fn model(&self) -> Option<Arc<ModelStatus>> {
        self.checkpoint.model.clone().map(Arc::new)
    }

    /// The response that it continues, if that has this id.
    pub(crate) fn previous(&self, id: &str) -> Option<Arc<Stored>> {
        self.previous.clone().filter(|previous| previous.id() == id)
    }
}

/// What another gateway process needs to continue a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The seed, and the tokens so far. Their events are written again.
    pub resume: Resume,
    /// The model file that has made them.
    model: Option<ModelStatus>,
    /// True if nobody can make the same again: an external endpoint has begun.
    pub is_lost: bool,
}

impl Checkpoint {
    /// Before anything is made. The seed follows from the response, so that it is always the same.
    pub(crate) fn first(response: &BackgroundTask) -> Self {
        let resume = Resume::new(response.number(), response.created_at);
        Self { resume, model: None, is_lost: false }
    }

    pub(super) fn new(
        resume: &Resume,
        is_resumable: bool,
        model: Option<&Arc<ModelStatus>>,
    ) -> Self {
        let mut resume = Resume { is_usage_sent: false, ..resume.clone() };
        for choice in &mut resume.choices {
            *choice =
                ResumedChoice { tokens: std::mem::take(&mut choice.tokens), events: 0, bytes: 0 };
        }
        let model = model.filter(|_| !resume.choices.is_empty()).map(|model| (**model).clone());
        Self { resume, model, is_lost: !is_resumable }
    }

    /// Leaves out the tokens, for a response whose events only the node of a token can write.
    pub(crate) fn without_tokens(mut self) -> Self {
        self.resume.choices.clear();
        self
    }
}

/// Loads the response that a request continues into memory, if that is why `error` says that there
/// is none. Returns true if it was found.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn remember_previous(
    gateway: &Gateway,
    caller: &Caller,
    error: &Error,
    request: &[u8],
) -> Result<bool, Error> {
    #[derive(Deserialize)]
    struct Previous {
        previous_response_id: String,
    }
    let Some(store) = &gateway.store else { return Ok(false) };
    let Error::Invalid(ParseError { param: Some(param), .. }) = error else { return Ok(false) };
    if param != "previous_response_id" {
        return Ok(false);
    }
    let Ok(Previous { previous_response_id: id }) = serde_json::from_slice(request) else {
        return Ok(false);
    };
    let mut found = recall(gateway, store, &caller.tenant, &id).await?;
    if found.is_none() && store.is_shared() {
        // Another gateway may be storing it just now.
        sleep(LAG).await;
        found = recall(gateway, store, &caller.tenant, &id).await?;
    }
    // One that failed has no turn to continue.
    let Some(stored) = found.filter(Stored::is_whole) else { return Ok(false) };
    gateway.responses.insert(&caller.tenant, stored);
    Ok(true)
}

/// Keeps a response for those who continue it. Returns one in the background, which is stored with
/// its task, with the turns before it.
pub(super) fn keep(gateway: &Gateway, admitted: &Admitted, stored: Stored) -> Option<Vec<u8>> {
    let stored = stored.owned_by(admitted.user.map(u64::from));
    let conversation = admitted.deferral.as_ref().and_then(|_| stored.to_json());
    if let (Some(store), None) = (gateway.store.clone(), &admitted.deferral) {
        let (tenant, stored) = (admitted.tenant.clone(), stored.clone());
        let now = unix_seconds(SystemTime::now());
        gateway.tasks.spawn(async move {
            if let Err(error) = store.insert_turns(&tenant, stored, now).await {
                tracing::debug!(?error, "response not stored: it is in memory only");
            }
        });
    }
    gateway.responses.insert(&admitted.tenant, stored);
    conversation
}

/// A response that is not in memory.
async fn recall(
    gateway: &Gateway,
    store: &Store,
    tenant: &str,
    id: &str,
) -> Result<Option<Stored>, Error> {
    let found = match store.task(tenant, id).await {
        Ok((record, _)) if record.is_active => return Ok(None),
        Ok((_, conversation)) => return Ok(Stored::from_json(&conversation)),
        Err(StoreError::Unknown) => sent_response(gateway, store, tenant, id).await,
        Err(error) => Err(error),
    };
    match found {
        Ok(stored) => Ok(Some(stored)),
        Err(StoreError::Unknown) => Ok(None),
        Err(error) => Err(error.of(id)),
    }
}

/// A response that was sent to its client, from the store.
///
/// # Errors
/// There is none, or the store cannot be read.
pub(crate) async fn sent_response(
    gateway: &Gateway,
    store: &Store,
    tenant: &str,
    id: &str,
) -> Result<Stored, StoreError> {
    let age_max = gateway.settings.now().config.limits.stored.age_s_max;
    let since = unix_seconds(SystemTime::now()).saturating_sub(age_max);
    store.conversation(tenant, id, since).await
}
