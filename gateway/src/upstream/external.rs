//! External endpoints: anything that speaks OpenAI's API (vLLM, llama-server, Ollama, a hosted
//! API), reached by an HTTP client with a key of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use flotilla_listeners::socket::DEAD_AFTER;
use hyper::Response;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;

use crate::types::error::Error;
use crate::upstream::NodeBody;

pub mod refusal;
pub mod request;

use request::{Dialect, LengthField, Translated, Wanted};

/// Who cannot be reached within this fails a request: another may take it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// An idle connection is kept for so long.
const IDLE: Duration = Duration::from_secs(60);
/// A check answers within this.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// How an external endpoint is reached, and asked.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    authorization: Option<HeaderValue>,
    settings: ClientSettings,
}

/// What is configured of a [`Client`].
#[derive(Debug, Default)]
pub struct ClientSettings {
    /// Up to `/v1`; the API's paths follow.
    pub base: String,
    /// Our names of models -> theirs.
    pub models: BTreeMap<String, String>,
    /// Under which name it takes the most tokens of a choice.
    pub length: LengthField,
    /// Fields that it may have beside the known ones.
    pub fields: BTreeSet<String>,
}

/// Why there is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendFailure {
    /// There was no connection: the request did not get there.
    NotSent,
    /// The request may have got there.
    Lost,
}

impl Client {
    /// A client. `roots` are certificates (PEM) to trust instead of the operating system's.
    ///
    /// # Errors
    /// The certificates cannot be used.
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

    /// The request in its words.
    ///
    /// # Errors
    /// The body cannot be read as a whole; it does not serve the model, for which it was chosen.
    pub fn translate(&self, body: &[u8], wanted: Wanted<'_>) -> Result<Translated, Error> {
        let ClientSettings { models, length, fields, .. } = &self.settings;
        let theirs = models.get(wanted.model);
        let model = theirs
            .ok_or_else(|| Error::internal("an external endpoint does not serve the model"))?;
        let dialect = Dialect { model, length: *length, fields };
        request::translate(body, wanted, dialect).map_err(Error::from)
    }

    /// Sends a request; its path is one of a node's.
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
        let mut told = request.send().await.map_err(failure)?;
        let mut response = Response::new(());
        *response.status_mut() = told.status();
        std::mem::swap(response.headers_mut(), told.headers_mut());
        Ok(response.map(|()| NodeBody::External(Box::new(told))))
    }

    /// Whether it answers, and takes our key.
    ///
    /// # Errors
    /// Why not.
    pub async fn check(&self) -> Result<(), String> {
        let mut request =
            self.http.get(format!("{}/models", self.settings.base)).timeout(CHECK_TIMEOUT);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let response = request.send().await.map_err(|e| innermost(&e))?;
        match response.status().as_u16() {
            status @ (401 | 403) => Err(format!("it refuses our key (status {status})")),
            status if status >= 500 => Err(format!("it answers with status {status}")),
            _ => Ok(()),
        }
    }
}

const AUTHORIZATION: hyper::header::HeaderName = hyper::header::AUTHORIZATION;

/// The innermost reason: reqwest's own message does not hold it.
pub fn innermost(error: &reqwest::Error) -> String {
    let mut error: &dyn std::error::Error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
