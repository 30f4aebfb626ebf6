//! Lets a line start when there is a slot for it, so that lines wait here and not in the queue,
//! where they would get every slot that becomes free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::tasks::asking::ABSENT_MAX;

/// How often to look for a free slot. A batch looks also when one of its lines has ended.
const INTERVAL: Duration = Duration::from_millis(10);

/// A line that was started and has not asked for a slot yet.
#[derive(Debug)]
pub(super) struct Starting(Arc<AtomicU64>);

impl Starting {
    fn new(count: &Arc<AtomicU64>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until batches may take a slot of the model. `are_preemptible`: more urgent requests can
/// take it from the line. `since`: when the batch began.
pub(super) async fn wait(
    gateway: &Gateway,
    caller: Option<&Caller>,
    (model, are_preemptible): (&str, bool),
    starting: &Arc<AtomicU64>,
    since: Instant,
) -> Starting {
    let model = caller.map_or(model, |caller| caller.model(model));
    loop {
        let may_start = match gateway.dispatcher.spare_slots(model, are_preemptible) {
            Some(spare) => spare > starting.load(Ordering::Relaxed),
            None => since.elapsed() > ABSENT_MAX,
        };
        // A revoked key and a line without a model are refused without a slot.
        if may_start || caller.is_none() || model.is_empty() {
            return Starting::new(starting);
        }
        sleep(INTERVAL).await;
    }
}
