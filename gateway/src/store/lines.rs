//! Lines of batches that run: how far they are.

use std::collections::HashMap;

use super::gateways::check_owner;
use super::keyring::Binding;
use super::sql::{Fault, Row, Transaction, values};
use super::{Batch, Store, StoreError};

/// Lines with what a node needs to continue them.
pub(crate) type LineProgress = Vec<(u64, Vec<u8>)>;

impl Store {
    /// Stores how far lines of a batch are that this gateway runs, except those that are done.
    pub(crate) async fn record_lines(
        &self,
        batch: &Batch,
        mut lines: LineProgress,
    ) -> Result<(), StoreError> {
        for (line, progress) in &mut lines {
            *progress = self.keyring().seal(&binding(batch, *line), std::mem::take(progress))?;
        }
        let (batch, me) = (batch.id.clone(), self.0.me.clone());
        let record = move |transaction: &mut Transaction<'_>| {
            check_owner(transaction, "batches", &batch, &me)?;
            let sql = "INSERT INTO unfinished_lines (batch, line, progress) \
                       SELECT ?1, ?2, ?3 WHERE NOT EXISTS \
                       (SELECT 1 FROM results WHERE batch = ?1 AND line = ?2) \
                       ON CONFLICT (batch, line) DO UPDATE SET progress = excluded.progress";
            for (line, progress) in &lines {
                transaction.execute(sql, values![&batch, *line, progress])?;
            }
            Ok(())
        };
        self.0.database.run(record).await
    }

    /// How far the lines of a batch are that have begun and are not done.
    pub(crate) async fn unfinished_lines(
        &self,
        batch: &Batch,
    ) -> Result<HashMap<u64, Vec<u8>>, StoreError> {
        let id = batch.id.clone();
        let list = move |transaction: &mut Transaction<'_>| {
            let sql = "SELECT line, progress FROM unfinished_lines WHERE batch = ?1";
            let read = |mut row: Row| Ok((row.take("line")?, row.take("progress")?));
            let rows = transaction.query(sql, values![&id])?.into_iter().map(read);
            Ok(rows.collect::<Result<LineProgress, Fault>>()?)
        };
        let lines = self.0.database.run(list).await?.into_iter();
        let open =
            |(line, progress)| Ok((line, self.keyring().open(&binding(batch, line), progress)?));
        lines.map(open).collect()
    }
}

fn binding(batch: &Batch, line: u64) -> Binding {
    Binding::numbered("unfinished_lines.progress", &batch.tenant, &batch.id, line)
}

/// Forgets how far a line is, or all lines of a batch.
pub(super) fn forget(
    transaction: &mut Transaction<'_>,
    batch: &str,
    line: Option<u64>,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM unfinished_lines WHERE batch = ?1 \
               AND (CAST(?2 AS BIGINT) IS NULL OR line = CAST(?2 AS BIGINT))";
    transaction.execute(sql, values![batch, line])?;
    Ok(())
}
