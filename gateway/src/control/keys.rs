//! API keys of the store, for operators: list, add, replace and delete them. They count at every
//! gateway of the store.

use std::collections::HashMap;

use flotilla_listeners::request_body::{self, BodyLimits};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use inference_protocol::openai::{ParseError, to_json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::access::keys::ApiKey;
use crate::config::yaml::Problem;
use crate::config::{api_keys, key_entries};
use crate::context::Gateway;
use crate::context::stored_keys::{BYTES_MAX, parse};
use crate::control::only;
use crate::store::{SettingName, SharedSetting, Store, StoreError};
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Path of the keys; each one is below it.
pub const KEYS_PATH: &str = "/admin/v1/keys";

/// How often a change begins again because another operator was faster.
const TRIES_MAX: usize = 10;

/// How many keys a request has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct KeyChanges {
    /// Keys that were not there before.
    pub added: usize,
    /// Keys whose limits or digest were replaced.
    pub replaced: usize,
    /// Keys that are gone.
    pub deleted: usize,
}

/// What to do with the keys of the store.
#[derive(Debug, Clone)]
enum Change {
    /// Adds keys, none of which may be there.
    Add(Vec<ApiKey>),
    /// Adds keys, and replaces those with the same names.
    Put(Vec<ApiKey>),
    /// Deletes the key with this name.
    Delete(String),
}

/// The part of a path below [`KEYS_PATH`]: empty for the list.
pub(super) fn below(path: &str) -> Option<&str> {
    path.strip_prefix(KEYS_PATH).filter(|below| below.is_empty() || below.starts_with('/'))
}

/// Handles a request of an operator whose key was checked.
pub(super) async fn serve(
    gateway: &Gateway,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let settings = gateway.settings.now();
    let (store, stored) = gateway.store_of(&settings)?;
    if !stored.has_keys {
        return Err(Error::StoredKeysOff);
    }
    let name = below(request.uri().path()).and_then(|below| below.strip_prefix('/'));
    let name = name.map(|name| name.chars().take(64).collect::<String>());
    let change = match (name, request.method()) {
        (Some(name), _) => {
            only(&request, "DELETE")?;
            Change::Delete(name)
        }
        (None, &Method::POST) => Change::Add(read_keys(gateway, request).await?),
        (None, &Method::PUT) => Change::Put(read_keys(gateway, request).await?),
        (None, _) => {
            only(&request, "GET, HEAD, POST, PUT")?;
            return list(store).await;
        }
    };
    if let Change::Add(keys) = &change {
        let mut known = settings.config.keys.iter().map(|key| &key.name);
        if let Some(name) = known.find(|name| keys.iter().any(|key| key.name == **name)) {
            return Err(Error::KeyExists(name.clone()));
        }
    }
    let is_new = matches!(change, Change::Add(_));
    let changes = apply(store, change).await?;
    let KeyChanges { added, replaced, deleted } = changes;
    tracing::info!(added, replaced, deleted, "keys of the store changed by an operator");
    // The change is stored. Without an answer now, the keys are learned later, as by the others.
    let _ = gateway.refresh_stored_keys(store).await;
    let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
    Ok(response::with_type(status, "application/json", to_json(&changes)))
}

async fn list(store: &Store) -> Result<Response<Body>, Error> {
    let setting = store.setting(SettingName::Keys, None).await.map_err(|e| e.of(""))?;
    let keys = parse(&setting.unwrap_or_default()).map_err(|e| e.of(""))?;
    Ok(response::json(to_json(&key_entries::Entries::of(&keys))))
}

/// Reads keys in the format of a keys file, as YAML or JSON.
async fn read_keys(gateway: &Gateway, request: Request<Incoming>) -> Result<Vec<ApiKey>, Error> {
    let time_max = gateway.settings.now().config.timeouts.body;
    let limits = BodyLimits { bytes_max: BYTES_MAX, time_max };
    let (head, mut body) = request.into_parts();
    let body =
        request_body::read(&head.headers, &mut body, limits, |_| Ok::<(), Error>(())).await?;
    let read = move || {
        let text = std::str::from_utf8(&body).map_err(|_| invalid("expected UTF-8".into()))?;
        api_keys::read_text(text).map_err(|problems| invalid(listed(&problems)))
    };
    spawn_blocking(read).await.map_err(Error::internal)?
}

fn invalid(message: String) -> Error {
    Error::Invalid(ParseError { message, param: Some("keys".into()) })
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().take(10).map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Stores a change.
async fn apply(store: &Store, change: Change) -> Result<KeyChanges, Error> {
    for _ in 0..TRIES_MAX {
        let before = store.setting(SettingName::Keys, None).await.map_err(|e| e.of(""))?;
        let before = before.unwrap_or_default();
        let (revision, change) = (before.revision, change.clone());
        let changed = spawn_blocking(move || change.apply(&before)).await;
        let (text, changes) = changed.map_err(Error::internal)??;
        let replaced = store.replace_setting(SettingName::Keys, revision, text).await;
        if replaced.map_err(|e| e.of(""))?.is_some() {
            return Ok(changes);
        }
    }
    Err(Error::StoreUnavailable)
}

impl Change {
    /// The text of the keys after the change.
    fn apply(self, before: &SharedSetting) -> Result<(String, KeyChanges), Error> {
        let mut keys = parse(before).map_err(|error: StoreError| error.of(""))?;
        let changes = self.change(&mut keys)?;
        let text = key_entries::to_yaml(&keys).map_err(Error::internal)?;
        if text.len() > BYTES_MAX {
            return Err(invalid(format!("all keys together have more than {BYTES_MAX} bytes")));
        }
        // Two keys may have the same digest now.
        api_keys::read_text(&text).map_err(|problems| invalid(listed(&problems)))?;
        Ok((text, changes))
    }

    fn change(self, keys: &mut Vec<ApiKey>) -> Result<KeyChanges, Error> {
        let mut changes = KeyChanges::default();
        let places = keys.iter().enumerate().map(|(place, key)| (key.name.clone(), place));
        let places: HashMap<String, usize> = places.collect();
        match self {
            Self::Add(new) => {
                if let Some(key) = new.iter().find(|key| places.contains_key(&key.name)) {
                    return Err(Error::KeyExists(key.name.clone()));
                }
                changes.added = new.len();
                keys.extend(new);
            }
            Self::Put(new) => {
                for key in new {
                    match places.get(&key.name).and_then(|place| keys.get_mut(*place)) {
                        Some(known) => {
                            changes.replaced += usize::from(*known != key);
                            *known = key;
                        }
                        None => {
                            changes.added += 1;
                            keys.push(key);
                        }
                    }
                }
            }
            Self::Delete(name) => {
                let place = places.get(&name).ok_or(Error::UnknownKey(name))?;
                keys.remove(*place);
                changes.deleted = 1;
            }
        }
        Ok(changes)
    }
}
