//! The HTTP client for an ACME server: bounded in time and size, and with the CA of the
//! configuration.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};

use crate::upstream::external::innermost;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Responses are some KiB.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// Longest wait that an ACME server may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long the ACME server has asked us to wait, after its last refusal.
pub(super) type RetryAfter = Arc<Mutex<Option<Duration>>>;

/// The client. Requests after the first use the same connection.
pub(super) struct Client {
    http: reqwest::Client,
    retry_after: RetryAfter,
}

impl Client {
    /// Trusts the CA certificates in `roots` (PEM), or else those of the system.
    ///
    /// # Errors
    /// There are no CA certificates.
    pub(super) fn new(roots: Option<&str>, retry_after: RetryAfter) -> Result<Self, String> {
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .no_proxy();
        if let Some(pem) = roots {
            let roots = reqwest::Certificate::from_pem_bundle(pem.as_bytes());
            builder = builder.tls_certs_only(roots.map_err(|e| e.to_string())?);
        }
        let http = builder.build().map_err(|e| innermost(&e))?;
        Ok(Self { http, retry_after })
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (http, retry_after) = (self.http.clone(), self.retry_after.clone());
        Box::pin(async move {
            let response = send(http, request).await?;
            if is_refusal(response.status()) {
                let asked = wait_of(response.headers(), SystemTime::now());
                *retry_after.lock().unwrap_or_else(PoisonError::into_inner) = asked;
            }
            let (parts, body) = response.into_parts();
            Ok(BytesResponse { parts, body: Box::new(body) })
        })
    }
}

async fn send(
    http: reqwest::Client,
    request: Request<BodyWrapper<Bytes>>,
) -> Result<Response<Bytes>, Error> {
    let (parts, mut body) = request.into_parts();
    let mut content = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        content.extend(frame.into_data());
    }
    let url = parts.uri.to_string();
    let failed = |e: reqwest::Error| Error::Other(format!("{url}: {}", innermost(&e)).into());
    let sent =
        http.request(parts.method, &url).headers(parts.headers).body(content.freeze()).send().await;
    let mut received = sent.map_err(failed)?;
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = received.status();
    *response.headers_mut() = received.headers().clone();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = received.chunk().await.map_err(failed)? {
        if bytes.len() + chunk.len() > RESPONSE_BYTES_MAX {
            return Err(Error::Other(format!("{url}: the response is too large").into()));
        }
        bytes.extend_from_slice(&chunk);
    }
    *response.body_mut() = bytes.freeze();
    Ok(response)
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

/// The value of `Retry-After`: seconds, or a date.
fn wait_of(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(now).ok()?,
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_says_how_long_to_wait() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let wait = |text: &'static str| {
            let headers = [(RETRY_AFTER, hyper::header::HeaderValue::from_static(text))];
            wait_of(&headers.into_iter().collect(), now).map(|wait| wait.as_secs())
        };
        assert_eq!(wait("90"), Some(90));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:47 GMT"), Some(10));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:27 GMT"), None);
        assert_eq!((wait("99999999999"), wait("soon")), (Some(604_800), None));
    }
}
