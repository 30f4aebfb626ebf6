//! The end of a batch: its results become files.

use std::sync::Arc;
use std::time::SystemTime;

use inference_protocol::time::unix_seconds;

use super::input::Input;
use super::{RESULTS_PAGE, messages};
use crate::context::Gateway;
use crate::server::files::OUTPUT_PURPOSE;
use crate::store::{
    Batch, BatchApi, BatchStatus, Delivery, FileRecord, MESSAGES_OUTPUT_PURPOSE, Store, StoreError,
    Upload,
};
use crate::tasks::webhooks;

/// Writes the output and the error file, and ends the batch with this status. A message batch has
/// one file with all results.
pub(super) async fn finish(
    gateway: &Gateway,
    store: &Store,
    batch: &Batch,
    input: &Arc<Input>,
    status: BatchStatus,
) -> Result<Batch, StoreError> {
    let now = unix_seconds(SystemTime::now());
    let (uploads, purpose) = match BatchApi::of(&batch.id) {
        BatchApi::OpenAi => {
            let (output, errors) = (write(store, batch, false), write(store, batch, true));
            ([output.await?, errors.await?], OUTPUT_PURPOSE)
        }
        BatchApi::Anthropic => {
            let results = messages::write(store, batch, input, status).await?;
            ([Some(results), None], MESSAGES_OUTPUT_PURPOSE)
        }
    };
    let (mut files, mut ids) = (Vec::new(), [None, None]);
    for ((id, upload), name) in ids.iter_mut().zip(uploads).zip(["output", "error"]) {
        if let Some(upload) = upload {
            let record = FileRecord {
                id: upload.id().into(),
                name: format!("{}_{name}.jsonl", batch.id),
                purpose: purpose.into(),
                bytes: upload.bytes(),
                created_at: now,
                expires_at: now + batch.output_age_s,
            };
            *id = Some(record.id.clone());
            files.push((upload, record));
        }
    }
    let gateway = gateway.clone();
    let change = move |batch: &mut Batch| {
        [batch.output_file_id, batch.error_file_id] = ids;
        batch.status = status;
        let at = match status {
            BatchStatus::Cancelled => &mut batch.times.cancelled_at,
            BatchStatus::Expired => &mut batch.times.expired_at,
            _ => &mut batch.times.completed_at,
        };
        *at = Some(now);
        messages_of(&gateway, batch)
    };
    store.finish_batch(batch, files, change).await
}

/// Messages about a batch that has ended.
pub(super) fn messages_of(gateway: &Gateway, batch: &Batch) -> Vec<Delivery> {
    let event = match batch.status {
        BatchStatus::Completed => "batch.completed",
        BatchStatus::Failed => "batch.failed",
        BatchStatus::Expired => "batch.expired",
        BatchStatus::Cancelled => "batch.cancelled",
        _ => return Vec::new(),
    };
    webhooks::messages(gateway, &batch.tenant, event, &batch.id)
}

/// The results as a file; `None` if there are none.
async fn write(store: &Store, batch: &Batch, is_error: bool) -> Result<Option<Upload>, StoreError> {
    let (mut upload, mut after) = (None, None);
    loop {
        let results = store.results(batch, Some(is_error), after, RESULTS_PAGE).await?;
        let Some((last, _)) = results.last() else { return Ok(upload) };
        after = Some(*last);
        if upload.is_none() {
            upload = Some(store.upload(&batch.tenant).await?);
        }
        for (_, text) in &results {
            if let Some(upload) = &mut upload {
                // The results have their room until they are deleted.
                upload.force(text).await?;
            }
        }
    }
}
