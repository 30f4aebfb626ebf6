//! A stream of any API, which its client may read on.

use super::{One, response};
use crate::observability::metrics::BackgroundOutcome;
use crate::proxy::background::make::{Failure, Made, NOTHING};
use crate::store::TaskInput;

/// Makes a stream, or what is left of it. `None` if the gateway stops.
pub(super) async fn run(one: &One, input: TaskInput) -> Option<(BackgroundOutcome, Vec<u8>)> {
    let outcome = match response::make(one, input, None).await {
        Made::Interrupted => return None,
        Made::Complete(_) => BackgroundOutcome::Completed,
        Made::Canceled => BackgroundOutcome::Canceled,
        Made::Failed(Failure { detail, status, event, .. }) => {
            let reason = detail.message;
            tracing::warn!(task = one.task.id, status, reason, "stream failed");
            one.live.push(one.live.len(), &event);
            BackgroundOutcome::Failed
        }
    };
    Some((outcome, NOTHING.into()))
}
