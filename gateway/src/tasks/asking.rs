//! Requests that the gateway makes itself for a tenant: lines of batches, and jobs. Repeated until
//! there is a final response.

use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::poll;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::response::Parts;
use hyper::{Request, Response, StatusCode};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::proxy;
use crate::proxy::admit::DEADLINE;
use crate::proxy::authenticate::Known;
use crate::proxy::deferral::{Again, LatestCheckpoint};
use crate::server::guards::panics::confine;
use crate::types::api::RequestedApi;
use crate::types::random::random;
use crate::types::request_body::RequestBody;
use crate::types::request_context::RequestContext;
use crate::types::response::{Body, SHOULD_RETRY};

/// How long a request waits for an endpoint before it is made again: one whose only node has failed
/// it waits for another one until then.
const DEADLINE_MAX: Duration = Duration::from_secs(10 * 60);
/// How long a model may be served by nobody before requests for it fail with what the gateway
/// answers. After a restart, nodes join one after the other.
pub(super) const ABSENT_MAX: Duration = Duration::from_secs(300);
/// Pauses between attempts double from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// A request that is made until it has a final response.
pub(super) struct Asking {
    pub(super) gateway: Gateway,
    pub(super) caller: Caller,
    pub(super) api: RequestedApi,
    /// The path of the API.
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    /// How far it is.
    pub(super) latest: Arc<LatestCheckpoint>,
    /// When there must be a response.
    pub(super) expires: Instant,
    /// Most bytes of a response.
    pub(super) bytes_max: usize,
}

/// A final response.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// The response is larger than allowed.
#[derive(Debug)]
pub(super) struct TooLarge;

impl Asking {
    /// Asks until there is a final response, or it is too late for another one. Calls `on_asked`
    /// once the request has its slot or waits for one, and `on_repeat` before each further attempt.
    /// The caller stops it by dropping it.
    pub(super) async fn run(
        &self,
        body: Bytes,
        on_asked: impl FnOnce(),
        on_repeat: impl Fn(),
    ) -> Result<Asked, TooLarge> {
        let (mut pause, pause_max) = PAUSES;
        let (begun, mut on_asked) = (Instant::now(), Some(on_asked));
        let mut asked = || {
            if let Some(call) = on_asked.take() {
                call();
            }
        };
        loop {
            let known = self.known_tokens();
            let mut asking = pin!(self.ask(body.clone()));
            let response = match poll!(&mut asking) {
                Poll::Ready(response) => response,
                Poll::Pending => {
                    asked();
                    asking.await
                }
            };
            asked();
            let asked_pause = retry_after(&response);
            let (head, body) = response.into_parts();
            #[expect(clippy::disallowed_methods, reason = "it is limited")]
            let read = Limited::new(body, self.bytes_max).collect().await;
            let read = read.map(|body| body.to_bytes()).map_err(|_| TooLarge)?;
            if !is_temporary(&head, &read) || Instant::now() >= self.expires {
                return Ok(Asked { status: head.status, headers: head.headers, body: read });
            }
            on_repeat();
            // The file that has made them may be gone.
            if begun.elapsed() > ABSENT_MAX && known > 0 && self.known_tokens() == known {
                self.latest.restart();
            }
            // Half to all of it, so that those that failed together are not repeated together.
            let half = pause.max(asked_pause).min(pause_max) / 2;
            sleep(half + half.mul_f64(f64::from(random() as u16) / f64::from(u16::MAX))).await;
            pause = (pause * 2).min(pause_max);
        }
    }

    /// How many tokens there are of the response. An external endpoint's cannot be continued.
    fn known_tokens(&self) -> usize {
        let reached = self.latest.get();
        if reached.is_lost {
            self.latest.restart();
            return 0;
        }
        reached.tokens()
    }

    async fn ask(&self, body: Bytes) -> Response<Body> {
        let left = self.expires.saturating_duration_since(Instant::now());
        let left = left.clamp(Duration::from_millis(1), DEADLINE_MAX);
        let mut request = Request::new(RequestBody::Own(Full::new(body)));
        *request.method_mut() = hyper::Method::POST;
        if let Ok(uri) = self.path.parse() {
            *request.uri_mut() = uri;
        }
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(DEADLINE, (left.as_millis() as u64).into());
        let client = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let context = RequestContext::open(client, request.headers());
        let again = Again { latest: self.latest.clone(), previous: None };
        let known = Known { caller: self.caller.clone(), again: Some(again) };
        let gateway = self.gateway.clone();
        let served = proxy::serve(gateway, context.clone(), self.api, request, Some(known));
        confine(context, served).await
    }
}

fn retry_after(response: &Response<Body>) -> Duration {
    let seconds = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    Duration::from_secs(seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or_default())
}

#[derive(Deserialize)]
struct Refused {
    error: Option<Code>,
}

#[derive(Deserialize)]
struct Code {
    code: Option<String>,
}

/// True if the same request may get another response later. A used-up monthly budget does not come
/// back in time.
fn is_temporary(head: &Parts, body: &[u8]) -> bool {
    // So says a used-up budget in any API's format.
    let may_retry = head.headers.get(SHOULD_RETRY).is_none_or(|value| value != "false");
    match head.status.as_u16() {
        408 | 500 | 502..=504 => true,
        429 => {
            let refused: Option<Refused> = serde_json::from_slice(body).ok();
            let code = refused.and_then(|refused| refused.error?.code);
            may_retry && code.as_deref() != Some("insufficient_quota")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_change_is_asked_again() {
        for (status, body, temporary) in [
            (503, "", true),
            (502, "no JSON", true),
            (429, r#"{"error":{"code":"rate_limit_exceeded"}}"#, true),
            (429, r#"{"error":{"code":"insufficient_quota"}}"#, false),
            (400, "", false),
            (422, "", false),
            (404, "", false),
            (501, "", false),
            (200, "", false),
        ] {
            let (mut head, ()) = Response::new(()).into_parts();
            head.status = StatusCode::from_u16(status).unwrap();
            assert_eq!(is_temporary(&head, body.as_bytes()), temporary, "{status} {body}");
            head.headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            assert_eq!(is_temporary(&head, body.as_bytes()), temporary && status != 429);
        }
    }
}
