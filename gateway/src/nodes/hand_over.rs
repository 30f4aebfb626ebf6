//! Hands the saved prefixes of a leaving or drained node to another one, so that its conversations
//! go on there without computing their prompts again.
//!
//! A leaving node offers files when its engine has stopped; a drained one that works on nothing has
//! them when its engine has written them ([`crate::nodes::link`] sees both in its status). This
//! gateway chooses the node that shall have them, and passes on file by file, the
//! longest conversation first, without keeping any. A file is worth the time in which its heir
//! would compute its tokens, and no more: the first one that takes longer is given up, and with it
//! the rest, because states of one model have about the same number of bytes for each token.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Request, Response, StatusCode};
use inference_protocol::fleet::{
    HEIR_HEADER, OfferedPrefix, PREFIXES_PATH, PrefixStatus, STATUS_DEADLINE_MS,
};
use tokio::time::{Instant, timeout};

use crate::context::Gateway;
use crate::dispatcher::Heir;
use crate::observability::metrics::HandOverOutcome;
use crate::scheduler::fleet::EndpointId;
use crate::types::error::Error;
use crate::upstream::{NodeBody, Upstream};

/// Most prefixes that are handed over.
const PREFIXES_MAX: usize = 256;
/// How often a drained node is asked for what it has, because it was busy before.
const ASKED_MAX: u32 = 16;
/// Maximum size of the list of offered prefixes.
const LIST_BYTES_MAX: usize = 256 * 1024;
/// Within this time a node answers a request without a file.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(STATUS_DEADLINE_MS);
/// Prompt tokens per second of a node that has measured none yet.
const DEFAULT_RATE: f32 = 100.0;
/// A file takes no longer than this, however long its tokens would take.
const FILE_TIME_MAX: Duration = Duration::from_secs(60);

/// Time in which a node computes the tokens of a prefix, at `rate` tokens per second.
fn time_to_compute(tokens: u32, rate: Option<f32>) -> Duration {
    let rate = rate.filter(|rate| *rate > 0.0).unwrap_or(DEFAULT_RATE);
    let seconds = f64::from(tokens) / f64::from(rate);
    Duration::try_from_secs_f64(seconds).map_or(FILE_TIME_MAX, |time| time.min(FILE_TIME_MAX))
}

/// The hand-over of the node at the other end of a link. Dropping it ends it.
#[derive(Default)]
pub(crate) struct HandOver {
    /// Its value says whether the node has agreed.
    running: Option<Pin<Box<dyn Future<Output = bool> + Send>>>,
    /// True once it has begun for a node that stops.
    is_begun: bool,
    /// How often a drained node has been asked for what it has.
    asked: u32,
    has_agreed: bool,
    heir: Option<String>,
}

impl HandOver {
    /// Follows the status of a node that leaves or has been drained. Begins when the node has
    /// prefixes for another one, and sends conversations to the heir that the node names, whichever
    /// gateway has chosen it.
    pub(crate) fn follow(
        &mut self,
        gateway: &Gateway,
        (id, leaving): (EndpointId, &Upstream),
        status: &PrefixStatus,
    ) {
        if let Some(heir) = &status.heir {
            if self.heir.replace(heir.clone()).as_ref() != Some(heir) {
                gateway.dispatcher.inherit_prefixes(id, heir);
            }
            return;
        }
        // A drained node writes what it has when it is asked first, and agrees later.
        let is_stopping = status.offered > 0;
        let is_due = match is_stopping {
            true => !self.is_begun,
            false if self.has_agreed => false,
            false => self.asked == 0 || (status.written && self.asked < ASKED_MAX),
        };
        if !is_due || self.running.is_some() {
            return;
        }
        if let Some(heir) = gateway.dispatcher.heir_of(id) {
            self.is_begun |= is_stopping;
            self.asked += u32::from(!is_stopping);
            let (gateway, leaving) = (gateway.clone(), leaving.clone());
            let running = async move { hand_over(&gateway, heir, &leaving).await };
            self.running = Some(Box::pin(running));
        }
    }

    /// Completes when it is over; never if there is none. Cancel-safe.
    pub(crate) async fn run(&mut self) {
        let is_agreed = match &mut self.running {
            Some(running) => running.await,
            None => std::future::pending().await,
        };
        self.has_agreed |= is_agreed;
        self.running = None;
    }
}

/// Hands over what `leaving` has. False if it has nothing for this gateway.
async fn hand_over(gateway: &Gateway, heir: Heir, leaving: &Upstream) -> bool {
    // A node that stops waits no longer for its turn.
    let Ok(Ok(_permit)) = timeout(ANSWER_TIMEOUT, gateway.hand_overs.acquire()).await else {
        return false;
    };
    let Some(offered) = claim(leaving, &heir).await else { return false };
    let (begun, mut moved, mut bytes) = (Instant::now(), 0_u32, 0);
    for prefix in offered.iter().take(PREFIXES_MAX) {
        let outcome = pass_on(leaving, &heir, prefix).await;
        gateway.metrics.record_hand_over(outcome);
        match outcome {
            HandOverOutcome::Moved => (moved, bytes) = (moved + 1, bytes + prefix.bytes),
            // Another one may be small enough.
            HandOverOutcome::Refused => {}
            HandOverOutcome::Slower | HandOverOutcome::Failed => break,
        }
    }
    let (heir, seconds) = (heir.name, begun.elapsed().as_secs_f64());
    tracing::info!(%heir, offered = offered.len(), moved, bytes, seconds, "prefixes handed over");
    // It goes on by itself after a while, too.
    let _ = ask(leaving, Request::delete(url(""))).await;
    true
}

fn url(file: &str) -> String {
    format!("http://node{PREFIXES_PATH}{file}")
}

/// Sends a request without a body, and waits for the head of the response.
async fn ask(
    node: &Upstream,
    request: hyper::http::request::Builder,
) -> Result<Response<NodeBody>, Error> {
    let request = request.body(Bytes::new()).map_err(|_| Error::NodeLost)?;
    timeout(ANSWER_TIMEOUT, node.send(request)).await.unwrap_or(Err(Error::NodeLost))
}

/// Reports to the node who shall have its prefixes, and returns the list. `None` if another gateway
/// was faster, or the node has to write them first.
async fn claim(leaving: &Upstream, heir: &Heir) -> Option<Vec<OfferedPrefix>> {
    let response = ask(leaving, Request::post(url("")).header(HEIR_HEADER, &*heir.name)).await;
    let response = response.ok().filter(|response| response.status() == StatusCode::OK)?;
    let whole = timeout(ANSWER_TIMEOUT, response.into_body().whole(LIST_BYTES_MAX)).await;
    serde_json::from_slice(&whole.ok()?.ok()?.ok()?).ok()
}

/// Passes on one file, as long as that is faster than computing its tokens.
async fn pass_on(leaving: &Upstream, heir: &Heir, prefix: &OfferedPrefix) -> HandOverOutcome {
    let limit = time_to_compute(prefix.tokens, heir.prefill_rate);
    let passing = async {
        let file = ask(leaving, Request::get(url(&format!("/{}", prefix.file)))).await?;
        if file.status() != StatusCode::OK {
            return Err(Error::NodeLost);
        }
        let to = Request::put(url("")).header("content-length", prefix.bytes);
        let to = to.body(()).map_err(|_| Error::NodeLost)?;
        heir.upstream.send_body(to, file.into_body(), prefix.bytes).await
    };
    match timeout(limit, passing).await {
        Ok(Ok(response)) if response.status().is_success() => HandOverOutcome::Moved,
        Ok(Ok(_)) => HandOverOutcome::Refused,
        Ok(Err(_)) => HandOverOutcome::Failed,
        Err(_) => HandOverOutcome::Slower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_worth_the_time_in_which_its_tokens_are_computed() {
        assert_eq!(time_to_compute(1000, Some(500.0)), Duration::from_secs(2));
        assert_eq!(time_to_compute(1000, None), Duration::from_secs(10));
    }

    #[test]
    fn impossible_speeds_and_lengths_have_a_limit() {
        for rate in [f32::MIN_POSITIVE, f32::NAN, -1.0, 0.0] {
            assert!(time_to_compute(u32::MAX, Some(rate)) <= FILE_TIME_MAX, "{rate}");
        }
        assert_eq!(time_to_compute(0, Some(1.0)), Duration::ZERO);
    }
}
