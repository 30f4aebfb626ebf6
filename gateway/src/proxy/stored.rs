//! Responses of the Responses API that clients have: kept in memory and in the store, and found
//! again.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use inference_protocol::openai::ParseError;
use inference_protocol::time::unix_seconds;
use inference_translation::store::Stored;
use serde::Deserialize;
use tokio::time::sleep;

use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::store::{Store, StoreError};
use crate::types::error::Error;

/// How long another gateway may take to store a response after its client has it.
const LAG: Duration = Duration::from_millis(200);

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

/// Keeps a response that its client has, for those who continue it.
pub(super) fn keep(gateway: &Gateway, tenant: &Arc<str>, stored: Stored) {
    if let Some(store) = gateway.store.clone() {
        let (tenant, stored) = (tenant.clone(), stored.clone());
        let now = unix_seconds(SystemTime::now());
        gateway.tasks.spawn(async move {
            if let Err(error) = store.insert_turns(&tenant, stored, now).await {
                tracing::debug!(?error, "response not stored: it is in memory only");
            }
        });
    }
    gateway.responses.insert(tenant, stored);
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
