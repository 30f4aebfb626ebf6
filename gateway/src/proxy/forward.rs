//! Stage 5: send the request to its endpoint.
//!
//! For nodes, the resume state of the response precedes the client's body, so that a node can begin
//! the response or continue it; see [`inference_protocol::resume`].

use std::pin::Pin;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use inference_protocol::fleet::{DIGEST_HEADER, PREFIX_GROUP_HEADER, TENANT_HEADER};
use inference_protocol::openai::ErrorBody;
use inference_protocol::resume::{ENGINE_LOST, RESUME_HEADER, Resume};
use inference_protocol::sse::Splitter;
use tokio::time::sleep;

use super::admit::Admitted;
use crate::config::{Config, Limits};
use crate::context::settings::Settings;
use crate::dispatcher::Lease;
use crate::scheduler::attempts::TOO_LARGE;
use crate::scheduler::progress::event::Event;
use crate::types::error::Error;
use crate::types::request_id::REQUEST_ID;
use crate::upstream::external::refusal::Refusal;
use crate::upstream::external::request::{RequestInfo, TranslatedRequest};
use crate::upstream::external::response::{self, Failed, ResponseInfo, StreamReader};
use crate::upstream::external::{Client, SendFailure};
use crate::upstream::{NodeBody, Upstream};

mod meter;
mod source;

pub(crate) use meter::Meter;
pub(crate) use source::Source;
use source::{Outside, SourceParts};

const TENANT: HeaderName = HeaderName::from_static(TENANT_HEADER);
const PREFIX_GROUP: HeaderName = HeaderName::from_static(PREFIX_GROUP_HEADER);
const DIGEST: HeaderName = HeaderName::from_static(DIGEST_HEADER);
const RESUME: HeaderName = HeaderName::from_static(RESUME_HEADER);

/// A response in one piece.
#[derive(Debug)]
pub(crate) struct Whole {
    /// Status from the endpoint.
    pub status: StatusCode,
    /// Headers from the endpoint that are passed on.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Whole {
    /// A successful response with this JSON.
    pub(crate) fn json(body: Bytes) -> Box<Self> {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
        Box::new(Self { status: StatusCode::OK, headers, body })
    }
}

/// The response of an endpoint.
#[derive(Debug)]
pub(crate) enum Forwarded {
    /// A response in one piece.
    Whole(Box<Whole>),
    /// An event stream; true if it contains a usage that the client did not ask for.
    Events(Source, bool),
}

/// A response over the limit that the request cannot have asked for.
const WHOLE_TOO_LARGE: Error = Error::NodeAnswer("it is larger than limits.response_bytes_max");

/// A request that waits for the head of the endpoint's response.
pub(crate) type Forwarding = Pin<Box<dyn Future<Output = Result<Forwarded, Error>> + Send>>;

/// An attempt whose request is being sent.
struct Sending {
    upstream: Upstream,
    endpoint: Arc<str>,
    admitted: Arc<Admitted>,
    settings: Arc<Settings>,
    /// The error for a response over the limit.
    too_large: Error,
    meter: Meter,
}

/// Sends a request to the endpoint of `lease`.
pub(crate) fn forward(
    lease: &Lease,
    admitted: &Arc<Admitted>,
    settings: &Arc<Settings>,
    resume: &Resume,
    meter: Meter,
) -> Forwarding {
    let upstream = lease.upstream().clone();
    let request = match upstream.client() {
        None => upstream_request(admitted, resume, &lease.model().digest).map(|r| (r, false)),
        Some(client) => external_request(admitted, client),
    };
    let sending = Sending {
        endpoint: lease.name(),
        too_large: too_large(lease, admitted, &settings.config.limits),
        admitted: admitted.clone(),
        settings: settings.clone(),
        upstream,
        meter,
    };
    Box::pin(async move {
        let (request, hides_usage) = request?;
        sending.open(request, hides_usage).await
    })
}

impl Sending {
    async fn open(self, request: Request<Bytes>, hides_usage: bool) -> Result<Forwarded, Error> {
        let Config { limits, timeouts, .. } = &*self.settings.config;
        let mut silence = Box::pin(sleep(timeouts.first_token));
        let sent = tokio::select! {
            biased;
            sent = self.send(request) => sent?,
            () = &mut silence => return Err(Error::NodeTimeout),
        };
        let rest = match sent {
            Sent::Whole(whole) => return Ok(whole),
            Sent::Events(rest) => rest,
        };
        let (bytes_max, too_large) = match self.admitted.is_streamed {
            true => (limits.event_bytes_max, TOO_LARGE),
            // The whole response is one event.
            false => (limits.response_bytes_max, self.too_large),
        };
        let splitter = Splitter::new(bytes_max);
        let outside = self.upstream.client().is_some().then(|| Outside {
            reader: StreamReader::new(response_info(&self.admitted)),
            meter: self.meter,
            api: self.admitted.api,
            endpoint: self.endpoint,
        });
        let parts = SourceParts { rest, splitter, silence, too_large };
        Ok(Forwarded::Events(Source::new(parts, outside), hides_usage))
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Sent, Error> {
        let mut response = match self.upstream.client() {
            None => self.upstream.send(request).await?,
            Some(client) => self.send_outside(client, request).await?,
        };
        if self.upstream.client().is_some() && !response.status().is_success() {
            return Err(self.refusal_outside(response).await);
        }
        if is_about_the_node(response.status()) {
            return Err(refusal(response).await);
        }
        if response.status() == StatusCode::PAYMENT_REQUIRED {
            // A node's word for what clients know as 429. From a node, that would mean: full.
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        if is_event_stream(&response) {
            return Ok(Sent::Events(response.into_body()));
        }
        self.read_whole(response).await.map(Sent::Whole)
    }

    /// Sends a request to an external endpoint. From here on it may bill us.
    async fn send_outside(
        &self,
        client: &Client,
        request: Request<Bytes>,
    ) -> Result<Response<NodeBody>, Error> {
        self.meter.measure(|measured| measured.is_sent = true);
        let (head, body) = request.into_parts();
        client.send(head, body).await.map_err(|failure| {
            self.meter.measure(|measured| measured.is_sent = failure == SendFailure::Lost);
            Error::NodeLost
        })
    }

    /// Handles a refusal by an external endpoint. A refusal is free of charge, and the provider's
    /// message is not passed on.
    async fn refusal_outside(&self, response: Response<NodeBody>) -> Error {
        let status = response.status().as_u16();
        self.meter.measure(|measured| measured.is_sent = false);
        let read = response.into_body().whole(REFUSAL_BYTES_MAX).await;
        let refusal = Refusal::read(&read.ok().and_then(Result::ok).unwrap_or_default());
        let endpoint = &*self.endpoint;
        tracing::warn!(endpoint, status, %refusal, "external endpoint refused the request");
        refusal.error(self.admitted.api, status)
    }

    async fn read_whole(&self, response: Response<NodeBody>) -> Result<Forwarded, Error> {
        let bytes_max = self.settings.config.limits.response_bytes_max;
        let (head, mut rest) = response.into_parts();
        let mut body = BytesMut::new();
        while let Some(bytes) = rest.data().await {
            let bytes = bytes?;
            if body.len() + bytes.len() > bytes_max {
                return Err(self.too_large.clone());
            }
            body.extend_from_slice(&bytes);
            self.meter.measure(|measured| measured.partial_bytes = body.len() as u64);
        }
        let mut body = body.freeze();
        if self.upstream.client().is_some() {
            body = self.read_whole_outside(body)?;
        }
        let mut headers = HeaderMap::new();
        for name in [header::CONTENT_TYPE, header::RETRY_AFTER] {
            if let Some(value) = head.headers.get(&name) {
                headers.insert(name, value.clone());
            }
        }
        Ok(Forwarded::Whole(Box::new(Whole { status: head.status, headers, body })))
    }

    /// Makes a whole response of an external endpoint OpenAI's.
    fn read_whole_outside(&self, body: Bytes) -> Result<Bytes, Error> {
        let read = response::whole(&body, &response_info(&self.admitted));
        let event = Event::read(read.as_ref().unwrap_or(&body));
        self.meter.measure(|measured| {
            (measured.reported, measured.generated) = (event.usage, event.tokens);
            measured.partial_bytes = 0;
        });
        read.map_err(|Failed(error)| {
            let refusal = Refusal::read(&error);
            tracing::warn!(endpoint = &*self.endpoint, %refusal, "external endpoint failed");
            Error::ExternalFailed
        })
    }
}

fn response_info(admitted: &Admitted) -> ResponseInfo {
    let tokens_max = admitted.external_choice_max();
    ResponseInfo { api: admitted.api, limits: admitted.usage, tokens_max }
}

/// The error for a response over the limit: either the request asked for that much, or the node
/// sent more than the request can have asked for.
fn too_large(lease: &Lease, admitted: &Admitted, limits: &Limits) -> Error {
    let bytes_max = limits.response_bytes_max;
    match admitted.usage.can_fill(bytes_max, lease.model().context_tokens) {
        true => Error::ResponseTooLarge(bytes_max),
        false => WHOLE_TOO_LARGE,
    }
}

/// The beginning of an endpoint's response.
enum Sent {
    Whole(Forwarded),
    Events(NodeBody),
}

/// True if another node may do better: this one failed, is full, or refuses our key, which is no
/// fault of the client.
fn is_about_the_node(status: StatusCode) -> bool {
    status.is_server_error()
        || [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN]
            .contains(&status)
}

/// Most bytes of a refusal's body that we read.
const REFUSAL_BYTES_MAX: usize = 16 * 1024;

async fn refusal(response: Response<NodeBody>) -> Error {
    let refused = Error::NodeRefused(response.status().as_u16());
    let read = response.into_body().whole(REFUSAL_BYTES_MAX).await;
    let body = read.ok().and_then(Result::ok);
    let body = body.and_then(|body| serde_json::from_slice::<ErrorBody>(&body).ok());
    match body.and_then(|body| body.error.code).as_deref() {
        Some(ENGINE_LOST) => Error::EngineLost,
        _ => refused,
    }
}

/// Initial capacity for the resume state of a new response, in bytes.
const RESUME_BYTES: usize = 192;

/// Builds the request to a node. `digest` identifies the model that we believe the node serves. The
/// node refuses the request if that has changed, because its status update may still be on its way.
fn upstream_request(
    admitted: &Admitted,
    resume: &Resume,
    digest: &str,
) -> Result<Request<Bytes>, Error> {
    let mut body = BytesMut::with_capacity(RESUME_BYTES + admitted.body.len());
    let written = serde_json::to_writer((&mut body).writer(), resume);
    written.map_err(Error::internal)?;
    let resume_bytes = body.len();
    body.put(&admitted.body[..]);
    let mut request = Request::post(admitted.api.uri())
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(REQUEST_ID, admitted.context.id().value())
        .header(TENANT, &*admitted.tenant)
        .header(RESUME, resume_bytes)
        .header(DIGEST, digest);
    if let Some(group) = &admitted.prefix_group {
        request = request.header(PREFIX_GROUP, &**group);
    }
    request.body(body.freeze()).map_err(Error::internal)
}

/// Builds the request to an external endpoint. True if the response will contain more than the
/// client asked for. It has no `x-request-id`: llama-cpp-python refuses any but a UUID.
fn external_request(admitted: &Admitted, client: &Client) -> Result<(Request<Bytes>, bool), Error> {
    let Admitted { api, body, model, is_streamed, .. } = admitted;
    let tokens_max = admitted.external_choice_max();
    let info = RequestInfo { api: *api, model, is_streamed: *is_streamed, tokens_max };
    let TranslatedRequest { body, adds_usage } = client.translate(body, info)?;
    let request = Request::post(admitted.api.uri())
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .body(body.into());
    request.map(|request| (request, adds_usage)).map_err(Error::internal)
}

fn is_event_stream(response: &Response<NodeBody>) -> bool {
    let content_type = response.headers().get(header::CONTENT_TYPE);
    content_type.is_some_and(|v| v.as_bytes().starts_with(b"text/event-stream"))
}
