//! Message batches: batches of Anthropic's API, with files that only they use.

use super::{Batch, find};
use crate::store::files::{self, FileRecord};
use crate::store::sql::{Transaction, values};
use crate::store::{Store, StoreError, Upload};

/// The API by which a batch was created, which its id tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchApi {
    /// OpenAI's Batch API.
    OpenAi,
    /// Anthropic's Message Batches API.
    Anthropic,
}

impl BatchApi {
    /// The API of the batch with this id.
    pub(crate) fn of(id: &str) -> Self {
        match id.starts_with(Self::Anthropic.id_prefix()) {
            true => Self::Anthropic,
            false => Self::OpenAi,
        }
    }

    /// How ids of its batches begin.
    pub(crate) fn id_prefix(self) -> &'static str {
        match self {
            Self::OpenAi => "batch_",
            Self::Anthropic => "msgbatch_",
        }
    }

    /// An id with this number.
    pub(crate) fn new_id(self, number: u128) -> String {
        format!("{}{number:032x}", self.id_prefix())
    }

    /// Checks that an id is one of this API, whose clients see no other batches.
    pub(crate) fn check(self, id: &str) -> Result<(), StoreError> {
        if Self::of(id) == self { Ok(()) } else { Err(StoreError::Unknown) }
    }
}

impl Store {
    /// Adds a batch together with its input, or neither.
    pub(crate) async fn insert_batch_with_input(
        &self,
        batch: Batch,
        (mut upload, record): (Upload, FileRecord),
        active_max: usize,
    ) -> Result<Batch, StoreError> {
        upload.flush().await?;
        let me = self.0.me.clone();
        let insert = move |transaction: &mut Transaction<'_>| {
            batch.insert(active_max, &me, transaction)?;
            record.insert(&batch.tenant, transaction)?;
            Ok(batch)
        };
        let inserted = self.change(insert).await;
        upload.finish(&inserted);
        inserted
    }

    /// Deletes a batch that has ended, with its files.
    pub(crate) async fn delete_batch(&self, tenant: &str, id: &str) -> Result<(), StoreError> {
        let (owner, id) = (tenant.to_string(), id.to_string());
        let delete = move |transaction: &mut Transaction<'_>| {
            let batch = find(transaction, &owner, &id)?;
            if batch.status.is_active() {
                return Err(StoreError::NotEnded);
            }
            transaction.execute("DELETE FROM batches WHERE id = ?1", values![&id])?;
            let ids = [Some(batch.input_file_id), batch.output_file_id, batch.error_file_id];
            let mut records = Vec::new();
            for id in ids.iter().flatten() {
                match files::find(transaction, &owner, id) {
                    // It has expired.
                    Err(StoreError::Unknown) => continue,
                    found => records.push(found?),
                }
                transaction.execute("DELETE FROM files WHERE id = ?1", values![id])?;
            }
            Ok(records)
        };
        for record in self.0.database.run(delete).await? {
            self.forget(tenant, &record.id, record.bytes).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_batch_tells_its_api() {
        for (id, api) in [
            ("batch_1", BatchApi::OpenAi),
            ("msgbatch_1", BatchApi::Anthropic),
            ("", BatchApi::OpenAi),
        ] {
            assert_eq!(BatchApi::of(id), api, "{id}");
        }
        assert_eq!(BatchApi::OpenAi.check("msgbatch_1"), Err(StoreError::Unknown));
        assert_eq!(BatchApi::Anthropic.check("batch_1"), Err(StoreError::Unknown));
        assert_eq!(BatchApi::Anthropic.check("msgbatch_1"), Ok(()));
    }
}
