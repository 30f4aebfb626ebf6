//! A message batch as its clients see it.

use chrono::{DateTime, SecondsFormat};
use serde_json::{Value, json};

use super::ROOT;
use crate::store::{Batch, BatchStatus};

/// The batch. `base_url` is where its client reaches the gateway.
pub(super) fn view(batch: &Batch, base_url: &str) -> Value {
    let times = &batch.times;
    let ended_at = [times.completed_at, times.cancelled_at, times.expired_at, times.failed_at];
    let has_results = batch.output_file_id.is_some();
    let results_url = has_results.then(|| format!("{base_url}{ROOT}/{}/results", batch.id));
    json!({"id": batch.id, "type": "message_batch", "processing_status": status(batch.status),
        "request_counts": counts(batch), "created_at": time(times.created_at),
        "expires_at": time(times.expires_at),
        "ended_at": ended_at.into_iter().flatten().next().map(time), "archived_at": null,
        "cancel_initiated_at": times.cancelling_at.map(time), "results_url": results_url})
}

fn status(status: BatchStatus) -> &'static str {
    match status {
        BatchStatus::Cancelling => "canceling",
        status if status.is_active() => "in_progress",
        _ => "ended",
    }
}

/// What became of the requests. Together, the counts are always the number of requests.
fn counts(batch: &Batch) -> Value {
    let rest = batch.total.saturating_sub(batch.completed + batch.failed);
    let of = |statuses: &[BatchStatus]| if statuses.contains(&batch.status) { rest } else { 0 };
    // A batch fails as a whole only if its input cannot be read any more.
    let errored = batch.failed + of(&[BatchStatus::Failed, BatchStatus::Completed]);
    json!({"processing": if batch.status.is_active() { rest } else { 0 },
        "succeeded": batch.completed, "errored": errored,
        "canceled": of(&[BatchStatus::Cancelled]), "expired": of(&[BatchStatus::Expired])})
}

/// RFC 3339
fn time(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or_default();
    let time = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Secs, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{BatchApi, Times};

    fn batch(status: BatchStatus) -> Batch {
        let times = Times { created_at: 1, expires_at: 86_401, ..Times::default() };
        Batch {
            id: BatchApi::Anthropic.new_id(7),
            tenant: "ada".into(),
            endpoint: "/v1/messages".into(),
            input_file_id: "file-1".into(),
            completion_window: "24h".into(),
            status,
            errors: Vec::new(),
            output_file_id: None,
            error_file_id: None,
            output_age_s: 1,
            times,
            total: 10,
            completed: 4,
            failed: 1,
            metadata: None,
        }
    }

    #[test]
    fn a_running_batch_has_no_results() {
        let shown = view(&batch(BatchStatus::InProgress), "http://here");
        let counts =
            json!({"processing": 5, "succeeded": 4, "errored": 1, "canceled": 0, "expired": 0});
        assert_eq!(
            shown,
            json!({"id": "msgbatch_00000000000000000000000000000007", "type": "message_batch",
                "processing_status": "in_progress", "request_counts": counts,
                "created_at": "1970-01-01T00:00:01Z", "expires_at": "1970-01-02T00:00:01Z",
                "ended_at": null, "archived_at": null, "cancel_initiated_at": null,
                "results_url": null})
        );
    }

    #[test]
    fn requests_that_were_not_run_are_canceled_or_expired() {
        for (status, is_ended, [processing, errored, canceled, expired]) in [
            (BatchStatus::Validating, "in_progress", [5, 1, 0, 0]),
            (BatchStatus::Finalizing, "in_progress", [5, 1, 0, 0]),
            (BatchStatus::Cancelling, "canceling", [5, 1, 0, 0]),
            (BatchStatus::Cancelled, "ended", [0, 1, 5, 0]),
            (BatchStatus::Expired, "ended", [0, 1, 0, 5]),
            (BatchStatus::Failed, "ended", [0, 6, 0, 0]),
        ] {
            let shown = view(&batch(status), "");
            let counts = json!({"processing": processing, "succeeded": 4, "errored": errored,
                "canceled": canceled, "expired": expired});
            assert_eq!(
                (&shown["processing_status"], &shown["request_counts"]),
                (&json!(is_ended), &counts),
                "{status:?}"
            );
        }
    }

    #[test]
    fn an_ended_batch_says_where_its_results_are() {
        let mut ended = batch(BatchStatus::Cancelled);
        ended.output_file_id = Some("file-2".into());
        (ended.times.cancelling_at, ended.times.cancelled_at) = (Some(2), Some(3));
        let shown = view(&ended, "https://here:8443");
        let url = format!("https://here:8443/v1/messages/batches/{}/results", ended.id);
        assert_eq!(shown["results_url"], url);
        assert_eq!(shown["ended_at"], "1970-01-01T00:00:03Z");
        assert_eq!(shown["cancel_initiated_at"], "1970-01-01T00:00:02Z");
    }
}
