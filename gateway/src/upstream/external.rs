//! External endpoints: any server with an OpenAI-compatible API (vLLM, llama-server, Ollama, a
//! hosted API), reached by an HTTP client with its own key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use flotilla_listeners::socket::DEAD_AFTER;
use hyper::Response;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;

use crate::types::error::Error;
use crate::upstream::NodeBody;

pub(crate) mod check;
pub(crate) mod refusal;
pub(crate) mod request;
pub(crate) mod response;

use request::{Dialect, LengthField, RequestInfo, TranslatedRequest};

/// If connecting takes longer, the request fails and another endpoint may take it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long idle connections are kept.
const IDLE: Duration = Duration::from_secs(60);

/// HTTP client of an external endpoint.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    authorization: Option<HeaderValue>,
    settings: ClientSettings,
}

/// Configuration of a [`Client`].
#[derive(Debug, Default)]
pub struct ClientSettings {
    /// Base URL up to `/v1`.
    pub base: String,
    /// Maps our model names to the endpoint's. Empty: it serves what it lists, by its names.
    pub models: BTreeMap<String, String>,
    /// The field that limits the tokens per choice.
    pub length: LengthField,
    /// Fields to pass on besides the known ones.
    pub fields: BTreeSet<String>,
}

/// Why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendFailure {
    /// The connection failed: the request was not sent.
    NotSent,
    /// The request may have been received.
    Lost,
}

impl Client {
    /// Creates a client. `roots` are CA certificates (PEM) to trust instead of the system's.
    ///
    /// # Errors
    /// The certificates are invalid.
    pub fn new(
        settings: ClientSettings,
        authorization: Option<HeaderValue>,
        roots: Option<&[u8]>,
    ) -> Result<Self, String> {
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(DEAD_AFTER)
            .pool_idle_timeout(IDLE)
            .tcp_nodelay(true)
            .no_proxy();
        if let Some(pem) = roots {
            let roots = reqwest::Certificate::from_pem_bundle(pem).map_err(|e| e.to_string())?;
            builder = builder.tls_certs_only(roots);
        }
        let http = builder.build().map_err(|e| e.to_string())?;
        let base = settings.base.trim_end_matches('/').into();
        Ok(Self { http, authorization, settings: ClientSettings { base, ..settings } })
    }

    /// Translates a request for this endpoint.
    ///
    /// # Errors
    /// The body is not valid, or the endpoint does not serve the model (a bug).
    pub(crate) fn translate(
        &self,
        body: &[u8],
        info: RequestInfo<'_>,
    ) -> Result<TranslatedRequest, Error> {
        let ClientSettings { models, length, fields, .. } = &self.settings;
        let theirs = if models.is_empty() {
            Some(info.model)
        } else {
            models.get(info.model).map(String::as_str)
        };
        let model = theirs
            .ok_or_else(|| Error::internal("an external endpoint does not serve the model"))?;
        let dialect = Dialect { model, length: *length, fields };
        request::translate(body, info, dialect).map_err(Error::from)
    }

    /// Sends a request. The path of `head` is that of the node API.
    ///
    /// # Errors
    /// There is no response.
    pub async fn send(&self, head: Parts, body: Bytes) -> Result<Response<NodeBody>, SendFailure> {
        let path = head.uri.path();
        let url = format!("{}{}", self.settings.base, path.strip_prefix("/v1").unwrap_or(path));
        let mut headers = head.headers;
        headers.extend(self.authorization.clone().map(|value| (AUTHORIZATION, value)));
        let request = self.http.request(head.method, url).headers(headers).body(body);
        let failure = |error: reqwest::Error| match error.is_connect() || error.is_builder() {
            true => SendFailure::NotSent,
            false => SendFailure::Lost,
        };
        let mut received = request.send().await.map_err(failure)?;
        let mut response = Response::new(());
        *response.status_mut() = received.status();
        std::mem::swap(response.headers_mut(), received.headers_mut());
        Ok(response.map(|()| NodeBody::External(Box::new(received))))
    }
}

const AUTHORIZATION: hyper::header::HeaderName = hyper::header::AUTHORIZATION;

/// The innermost cause of an error; reqwest's own message leaves it out.
pub(crate) fn innermost(error: &reqwest::Error) -> String {
    let mut error: &dyn std::error::Error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
