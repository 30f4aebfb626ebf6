//! A response of the Responses API.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::openai::ErrorDetail;
use inference_translation::store::{Ended, Stored};
use tokio::time::sleep;

use super::One;
use crate::observability::metrics::BackgroundOutcome;
use crate::proxy::background::make::{Failure, Made, Making};
use crate::proxy::deferral::LatestCheckpoint;
use crate::store::TaskInput;
use crate::types::random::random;

/// Pauses between attempts double from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Attempts that may fail at an endpoint. Those that find none are not counted.
const FAILURES_MAX: u32 = 5;

/// Makes a response, or what is left of it. `None` if the gateway stops, or it cannot be read.
pub(super) async fn run(one: &One, input: TaskInput) -> Option<(BackgroundOutcome, Vec<u8>)> {
    let Some(queued) = Stored::from_json(&input.result) else {
        tracing::error!(task = one.task.id, "a stored response cannot be read");
        return None;
    };
    one.live.push(0, &queued.first_events().into());
    let previous = queued.previous().map(Into::into);
    match make(one, input, previous).await {
        Made::Interrupted => None,
        Made::Complete(conversation) => Some((BackgroundOutcome::Completed, conversation)),
        Made::Canceled => Some(end_early(one, &queued, Ended::Canceled)),
        Made::Failed(Failure { detail, status, .. }) => {
            Some(end_early(one, &queued, Ended::Failed(&detail, status)))
        }
    }
}

/// Tries until it is complete, or no attempt would help.
pub(super) async fn make(one: &One, input: TaskInput, previous: Option<Arc<Stored>>) -> Made {
    let TaskInput { request, progress, .. } = input;
    let making = Making {
        gateway: &one.gateway,
        store: &one.store,
        response: &one.task,
        request: request.into(),
        live: &one.live,
        latest: Arc::new(LatestCheckpoint::new(one.checkpoint(progress), one.task.is_bound)),
        previous,
    };
    let ((mut pause, pause_max), mut failures) = (PAUSES, 0);
    loop {
        let failure = match making.run().await {
            Made::Failed(failure) => failure,
            made => return made,
        };
        failures += u32::from(failure.is_of_endpoint);
        let Some(least) = failure.retry_after.filter(|_| failures < FAILURES_MAX) else {
            return Made::Failed(failure);
        };
        if making.is_too_old() {
            return Made::Failed(failure);
        }
        one.gateway.metrics.record_task_retry();
        // Half to all of it, so that those that failed together do not try together.
        let half = pause.max(least).min(pause_max) / 2;
        let share = f64::from(random() as u16) / f64::from(u16::MAX);
        tokio::select! {
            () = sleep(half + half.mul_f64(share)) => {}
            () = one.live.canceled() => return Made::Canceled,
            () = one.gateway.stop.cancelled() => return Made::Interrupted,
        }
        pause = (pause * 2).min(pause_max);
    }
}

/// The end of a response that is not complete.
fn end_early(one: &One, queued: &Stored, end: Ended<'_>) -> (BackgroundOutcome, Vec<u8>) {
    let ended = queued.ended(end);
    let number = one.live.len();
    one.live.push(number, &ended.last_event(number).into());
    let outcome = match end {
        Ended::Canceled => BackgroundOutcome::Canceled,
        Ended::Failed(ErrorDetail { message, .. }, status) => {
            tracing::warn!(task = one.task.id, status, reason = message, "response failed");
            BackgroundOutcome::Failed
        }
    };
    (outcome, ended.to_json().unwrap_or_default())
}
