//! Sends a GET request and follows redirects. The only file that uses reqwest.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use url::Url;

use super::endpoint::{Endpoint, host_of, is_open, next_hop};
use super::response::HubMetadata;

/// Maximum redirects of one request; the hub needs two.
const REDIRECTS_MAX: usize = 8;
/// Maximum headers of one response; hyper limits their size (some 400 kB).
const HEADERS_MAX: usize = 100;
/// Timeout for the connection and its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
const USER_AGENT: &str = concat!("flotilla-agent/", env!("CARGO_PKG_VERSION"));

/// Which bytes of a file to request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ByteRange {
    All,
    /// Only the first byte: to learn about the rest.
    First,
    /// From this byte on, if the file still has this validator.
    From(u64, Option<String>),
}

/// HTTP client for files.
#[derive(Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    endpoint: Endpoint,
    /// Why https is unavailable, if it is.
    no_tls: Option<String>,
    /// True if the operator was warned about unencrypted connections.
    warned: bool,
}

/// A response whose head has arrived.
#[derive(Debug)]
pub(crate) struct FileResponse {
    pub status: u16,
    pub headers: HeaderMap,
    /// True for HTTP 1.x.
    pub http1: bool,
    /// The hub's metadata of the file, from all redirects.
    pub metadata: HubMetadata,
    /// Final URL, after redirects.
    pub url: Url,
    response: reqwest::Response,
}

/// A body that broke off, and how.
#[derive(Debug)]
pub(crate) struct BrokenBody(String);

impl std::fmt::Display for BrokenBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// Temporary: another attempt may work.
    Temporary(String),
    Permanent(String),
}

impl Client {
    /// `stall`: how long a server may send nothing. Uses the proxies of the environment.
    pub(crate) fn new(endpoint: Endpoint, stall: Duration) -> reqwest::Result<Self> {
        let builder = || {
            reqwest::Client::builder()
                .redirect(Policy::none())
                .user_agent(USER_AGENT)
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(stall)
                .http1_max_headers(HEADERS_MAX)
        };
        let (http, no_tls) = match builder().build() {
            Ok(http) => (http, None),
            // A machine without certificates can still use http.
            Err(e) => (builder().tls_certs_only([]).build()?, Some(cause(&e))),
        };
        Ok(Self { http, endpoint, no_tls, warned: false })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Requests bytes of a file; `warn` receives lines for the operator.
    pub(crate) async fn get(
        &mut self,
        url: &Url,
        bytes: &ByteRange,
        warn: &mut dyn FnMut(&str),
    ) -> Result<FileResponse, RequestError> {
        let (mut at, mut metadata) = (url.clone(), HubMetadata::default());
        for _ in 0..=REDIRECTS_MAX {
            self.check(&at, warn)?;
            let response = self.request(&at, bytes)?.send().await;
            let response = response.map_err(|e| {
                RequestError::Temporary(format!("{}: {}", host_of(&at), cause(&e.without_url())))
            })?;
            // A mirror may leave the file's metadata to the hub that it mirrors. A wrong digest can
            // only lead to a refusal.
            metadata =
                metadata.or(HubMetadata::read(response.headers(), self.endpoint.is_hub(&at)));
            let status = response.status().as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Ok(file_response(response, metadata, at));
            }
            let location = response.headers().get(header::LOCATION);
            at = next_hop(&at, location)
                .map_err(|why| RequestError::Permanent(format!("{} {why}", host_of(&at))))?;
        }
        Err(RequestError::Permanent(format!(
            "{}: more than {REDIRECTS_MAX} redirects",
            host_of(url)
        )))
    }

    fn check(&mut self, url: &Url, warn: &mut dyn FnMut(&str)) -> Result<(), RequestError> {
        if let Some(why) = self.no_tls.as_ref().filter(|_| url.scheme() == "https") {
            return Err(RequestError::Permanent(format!(
                "https is unavailable: {why}; install ca-certificates, or set SSL_CERT_FILE to a file \
                 of certificates"
            )));
        }
        if is_open(url) && !self.warned {
            self.warned = true;
            let key = self.endpoint.authorization_for(url).map_or("", |_| ", including the token");
            warn(&format!(
                "warning: unencrypted http to {}: anyone on the network path can read and change the \
                 data{key}; use https, or at least --sha256",
                host_of(url)
            ));
        }
        Ok(())
    }

    fn request(
        &self,
        url: &Url,
        bytes: &ByteRange,
    ) -> Result<reqwest::RequestBuilder, RequestError> {
        let mut request = self.http.get(url.clone()).header(header::ACCEPT_ENCODING, "identity");
        if let Some(authorization) = self.endpoint.authorization_for(url) {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        Ok(match bytes {
            ByteRange::All => request,
            ByteRange::First => request.header(header::RANGE, "bytes=0-0"),
            ByteRange::From(first, validator) => {
                let mut request = request.header(header::RANGE, format!("bytes={first}-"));
                if let Some(validator) = validator {
                    let value = HeaderValue::from_str(validator);
                    let value = value.map_err(|e| RequestError::Permanent(e.to_string()))?;
                    request = request.header(header::IF_RANGE, value);
                }
                request
            }
        })
    }
}

impl FileResponse {
    /// The next bytes of the body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, BrokenBody> {
        self.response.chunk().await.map_err(|e| BrokenBody(cause(&e.without_url())))
    }
}

fn file_response(mut response: reqwest::Response, metadata: HubMetadata, url: Url) -> FileResponse {
    FileResponse {
        status: response.status().as_u16(),
        headers: std::mem::take(response.headers_mut()),
        http1: response.version() < reqwest::Version::HTTP_2,
        metadata,
        url,
        response,
    }
}

/// The innermost cause of an error, without the URL.
fn cause(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(next) = deepest.source() {
        deepest = next;
    }
    if error.is_connect() {
        return format!("cannot connect: {deepest}");
    }
    if error.is_timeout() {
        return "timed out without data".into();
    }
    deepest.to_string()
}
