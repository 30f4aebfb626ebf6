//! Serves embeddings or scores of a long list with all nodes of the model. Each part of the list is
//! a request of its own, with its own slot, retries, and hedges; their responses become one. All
//! nodes use the same model file: results of different files cannot be compared.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use hyper::Response;
use hyper::header::HeaderValue;
use inference_protocol::fleet::ModelStatus;
use inference_protocol::openai::split::{ListKind, Split};
use tokio::time::Instant;

use super::account::{PartRecords, Record};
use super::admit::Admitted;
use super::drive::{Drive, Next};
use super::forward::Whole;
use super::stream::{begin, whole, whole_response};
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::types::api::Api;
use crate::types::error::Error;
use crate::types::response::Body;

/// Most parts of a request that are served at a time.
const PARALLEL_MAX: usize = 16;

/// How a request is split.
#[derive(Debug)]
pub(crate) struct Plan {
    split: Split,
    /// The model file.
    origin: Arc<ModelStatus>,
    /// How many parts are served at a time: as many as there are endpoints, and as the limits on
    /// concurrent requests allow.
    parallel: usize,
}

/// How to split a request; `None` if it is served in one piece.
pub(crate) fn plan(gateway: &Gateway, admitted: &Admitted, record: &mut Record) -> Option<Plan> {
    let kind = match admitted.api {
        Api::Embeddings => ListKind::Inputs,
        Api::Rerank => ListKind::Documents,
        _ => return None,
    };
    let (origin, endpoints) = gateway.dispatcher.commonest_file(&admitted.model)?;
    let parallel = endpoints.min(PARALLEL_MAX);
    let split = (parallel > 1).then(|| Split::of(kind, &admitted.body)).flatten()?;
    let parallel = record.widen(parallel.min(split.len()));
    (parallel > 1).then_some(Plan { split, origin, parallel })
}

/// Serves a split request. If a part fails, so does the request, and the other parts are cancelled.
pub(crate) async fn serve(
    gateway: Gateway,
    settings: Arc<Settings>,
    mut admitted: Admitted,
    mut record: Record,
    plan: Plan,
) -> Result<Response<Body>, Error> {
    let mut translation = admitted.translation.take();
    admitted.origin = Some(plan.origin);
    let patience = admitted.deadline.saturating_duration_since(Instant::now());
    let records = record.split();
    let parts = Parts { gateway, settings, admitted, records, split: plan.split, patience };
    let served = parts.serve(plan.parallel).await.and_then(|mut served| {
        let (Some(translation), Whole { status, body, .. }) =
            (&mut translation, &mut *served.whole)
        else {
            return Ok(served);
        };
        *body = match status.is_success() {
            true => translation.whole(body)?,
            false => {
                let id = parts.admitted.context.id().as_str();
                translation.refusal(*status, body, id).into()
            }
        };
        Ok(served)
    });
    match served {
        Ok(Served { whole, nodes }) => {
            record.record_first_token();
            record.record_success(whole.status.as_u16(), whole.body.len());
            let nodes = nodes.into_iter().collect::<Vec<_>>().join(", ");
            let class = HeaderValue::from_static(record.class_name());
            Ok(whole_response(*whole, HeaderValue::from_str(&nodes).ok(), class))
        }
        Err(error) => {
            record.set_requested_model(&parts.admitted.model, &error);
            record.record_failure(&error);
            Err(error)
        }
    }
}

/// A response, and the names of the endpoints that served it.
struct Served {
    whole: Box<Whole>,
    nodes: BTreeSet<String>,
}

/// The parts of one request.
struct Parts {
    gateway: Gateway,
    settings: Arc<Settings>,
    /// The whole request.
    admitted: Admitted,
    records: PartRecords,
    split: Split,
    /// Longest wait of a part for a slot.
    patience: Duration,
}

impl Parts {
    /// Serves all parts, `parallel` at a time, and joins their responses. An endpoint's refusal of
    /// a part is the response.
    async fn serve(&self, parallel: usize) -> Result<Served, Error> {
        let bytes_max = self.settings.config.limits.response_bytes_max;
        let serve = |part: usize| async move { (part, self.serve_part(part).await) };
        let mut running = stream::iter((0..self.split.len()).map(serve)).buffer_unordered(parallel);
        let mut responses = vec![Bytes::new(); self.split.len()];
        let (mut bytes, mut nodes) = (0, BTreeSet::new());
        while let Some((part, served)) = running.next().await {
            let (whole, node) = served?;
            nodes.extend(node);
            if !whole.status.is_success() {
                return Ok(Served { whole, nodes });
            }
            bytes += whole.body.len();
            if bytes > bytes_max {
                return Err(Error::ResponseTooLarge(bytes_max));
            }
            responses[part] = whole.body;
        }
        let joined = self.split.join(&responses);
        let joined = joined.map_err(|_| Error::NodeAnswer("it does not have all results"))?;
        Ok(Served { whole: Whole::json(joined.into()), nodes })
    }

    /// Serves a part. Also returns the endpoint's name.
    async fn serve_part(&self, part: usize) -> Result<(Box<Whole>, Option<String>), Error> {
        let body = Bytes::from(self.split.body(&self.admitted.body, part));
        if self.gateway.quarantine.contains(&self.admitted.tenant, &body) {
            return Err(Error::Quarantined);
        }
        let deadline = Instant::now() + self.patience;
        let all = self.split.entries(self.split.len() - 1).end as u64;
        let admitted = self.admitted.part(body, (self.split.entries(part), all), deadline);
        let (gateway, settings) = (self.gateway.clone(), self.settings.clone());
        let record = self.records.open(admitted.usage);
        let mut drive = Box::new(Drive::new(gateway, settings, admitted, record));
        let whole = match begin(&mut drive).await? {
            Next::Whole(whole) => whole,
            Next::Events(events) => Whole::json(whole(&events)?),
            Next::End => return Err(Error::NodeAnswer("it is empty")),
        };
        Ok((whole, drive.node().map(String::from)))
    }
}
