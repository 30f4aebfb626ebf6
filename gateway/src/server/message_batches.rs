//! Message batches, as at Anthropic: `/v1/messages/batches` and what is below it. Each is a batch
//! whose input and results are files that `/v1/files` does not show.

use std::time::SystemTime;

use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use inference_protocol::openai::to_json;
use inference_protocol::time::unix_seconds;
use serde_json::{Value, json};

use super::files::download;
use super::lists::{self, RecordPath, invalid};
use crate::context::Gateway;
use crate::control::only;
use crate::store::{Batch, BatchApi, Page, Store};
use crate::types::error::Error;
use crate::types::response::{self, Body};

mod base_url;
mod create;
pub mod requests;
mod view;

const ROOT: &str = "/v1/messages/batches";
/// Most batches of a page, as at Anthropic, and how many there are by default.
const PAGE: (usize, usize) = (20, 1000);
const API: BatchApi = BatchApi::Anthropic;

/// A path of message batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path<'a> {
    All,
    One(&'a str),
    Cancel(&'a str),
    Results(&'a str),
}

impl Path<'_> {
    fn methods(self) -> &'static str {
        match self {
            Self::All => "GET, POST",
            Self::One(_) => "GET, DELETE",
            Self::Cancel(_) => "POST",
            Self::Results(_) => "GET",
        }
    }
}

/// The path of a request for message batches.
pub(crate) fn path(path: &str) -> Option<Path<'_>> {
    if let Some(RecordPath::Below(id)) = RecordPath::at(path, ROOT, "results") {
        return Some(Path::Results(id));
    }
    Some(match RecordPath::at(path, ROOT, "cancel")? {
        RecordPath::All => Path::All,
        RecordPath::One(id) => Path::One(id),
        RecordPath::Below(id) => Path::Cancel(id),
    })
}

/// The message batches of a tenant.
struct Batches<'a> {
    store: &'a Store,
    tenant: &'a str,
    /// Where the client reaches the gateway; empty if that is not known.
    base_url: String,
}

/// Handles a request for message batches of the caller's tenant.
pub(crate) async fn serve(
    gateway: &Gateway,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let path = request.uri().path().to_string();
    let path = self::path(&path).ok_or(Error::UnknownPath)?;
    only(&request, path.methods())?;
    let settings = gateway.settings.now();
    let caller = settings.keys.authenticate(request.headers())?;
    let (store, limits) = gateway.store_of(&settings)?;
    let base_url = base_url::of(&request, &settings.config).unwrap_or_default();
    let batches = Batches { store, tenant: &caller.tenant, base_url };
    match path {
        Path::All if request.method() == Method::POST => {
            let timeouts = settings.config.timeouts;
            let body_bytes_max = settings.config.limits.body_bytes_max;
            let bounds = create::Bounds { store: limits, stalls: timeouts.body, body_bytes_max };
            let created = create::create(store, &bounds, &caller, request).await?;
            Ok(batches.show(&created))
        }
        Path::All => batches.list(request.uri().query()).await,
        Path::One(id) if request.method() == Method::DELETE => batches.delete(id).await,
        Path::One(id) => Ok(batches.show(&batches.find(id).await?)),
        Path::Cancel(id) => batches.cancel(id).await,
        Path::Results(id) => batches.results(id).await,
    }
}

impl Batches<'_> {
    fn show(&self, batch: &Batch) -> Response<Body> {
        response::json(to_json(&self.view(batch)))
    }

    fn view(&self, batch: &Batch) -> Value {
        view::view(batch, &self.base_url)
    }

    async fn find(&self, id: &str) -> Result<Batch, Error> {
        API.check(id).map_err(|error| error.of(id))?;
        self.store.batch(self.tenant, id).await.map_err(|error| error.of(id))
    }

    async fn list(&self, query: Option<&str>) -> Result<Response<Body>, Error> {
        let (page, is_backward) = page(query)?;
        let cursor = page.after.clone().unwrap_or_default();
        if page.after.is_some() {
            API.check(&cursor).map_err(|error| error.of(&cursor))?;
        }
        let listed = self.store.batches(self.tenant, API, page).await;
        let (mut found, has_more) = listed.map_err(|error| error.of(&cursor))?;
        if is_backward {
            found.reverse();
        }
        let data: Vec<Value> = found.iter().map(|batch| self.view(batch)).collect();
        let id = |batch: Option<&Batch>| batch.map(|batch| batch.id.clone());
        let (first, last) = (id(found.first()), id(found.last()));
        let list = json!({"data": data, "has_more": has_more, "first_id": first, "last_id": last});
        Ok(response::json(to_json(&list)))
    }

    async fn cancel(&self, id: &str) -> Result<Response<Body>, Error> {
        self.find(id).await?;
        let now = unix_seconds(SystemTime::now());
        let canceled = self.store.cancel_batch(self.tenant, id, now).await;
        Ok(self.show(&canceled.map_err(|error| error.of(id))?))
    }

    async fn delete(&self, id: &str) -> Result<Response<Body>, Error> {
        API.check(id).map_err(|error| error.of(id))?;
        self.store.delete_batch(self.tenant, id).await.map_err(|error| error.of(id))?;
        Ok(response::json(to_json(&json!({"id": id, "type": "message_batch_deleted"}))))
    }

    async fn results(&self, id: &str) -> Result<Response<Body>, Error> {
        let batch = self.find(id).await?;
        if batch.status.is_active() {
            return Err(Error::BatchNotEnded(batch.id));
        }
        let unknown = || Error::UnknownRecord(batch.id.clone());
        let file = batch.output_file_id.as_deref().ok_or_else(unknown)?;
        let record = self.store.any_file(self.tenant, file).await;
        download(
            self.store,
            self.tenant,
            record.map_err(|error| error.of(id))?,
            "application/x-jsonl",
        )
        .await
    }
}

/// Which batches a query string asks for, and whether they come oldest first: those before another
/// one are listed backward from there.
fn page(query: Option<&str>) -> Result<(Page, bool), Error> {
    let (default, max) = PAGE;
    let Page { limit, .. } = lists::page(query, default, max)?;
    let cursor = |name| lists::parameter(query, name).filter(|id| !id.is_empty());
    let (after, is_ascending) = match (cursor("after_id"), cursor("before_id")) {
        (Some(_), Some(_)) => return Err(invalid("before_id", "send it or after_id, not both")),
        (after, None) => (after, false),
        (None, before) => (before, true),
    };
    Ok((Page { after, limit, is_ascending }, is_ascending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_message_batches_are_told_apart() {
        for (text, at) in [
            ("/v1/messages/batches", Some(Path::All)),
            ("/v1/messages/batches/a", Some(Path::One("a"))),
            ("/v1/messages/batches/a/cancel", Some(Path::Cancel("a"))),
            ("/v1/messages/batches/a/results", Some(Path::Results("a"))),
            ("/v1/messages/batches/a/b/results", None),
            ("/v1/messages/batches/a/other", None),
            ("/v1/messages/batched", None),
            ("/v1/messages", None),
        ] {
            assert_eq!(path(text), at, "{text}");
        }
    }

    #[test]
    fn a_page_begins_after_a_batch_or_ends_before_one() {
        let read = |query| {
            let (page, is_backward) = page(Some(query)).unwrap();
            (page.after, page.limit, page.is_ascending, is_backward)
        };
        assert_eq!(read(""), (None, 20, false, false));
        assert_eq!(read("after_id=a&limit=1000"), (Some("a".into()), 1000, false, false));
        assert_eq!(read("before_id=b&limit=1"), (Some("b".into()), 1, true, true));
        for wrong in ["limit=0", "limit=1001", "limit=x", "after_id=a&before_id=b"] {
            assert!(page(Some(wrong)).is_err(), "{wrong}");
        }
    }
}
