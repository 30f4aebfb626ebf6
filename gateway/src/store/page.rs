//! Parts of lists of records.

use super::StoreError;
use super::sql::{Transaction, values};

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page {
    /// The id after which it begins.
    pub after: Option<String>,
    /// Most entries.
    pub limit: usize,
    /// Oldest first instead of newest first.
    pub is_ascending: bool,
}

impl Page {
    /// The number of the record after which it begins.
    pub(super) fn after(
        &self,
        table: &str,
        tenant: &str,
        transaction: &mut Transaction<'_>,
    ) -> Result<Option<i64>, StoreError> {
        let Some(after) = &self.after else { return Ok(None) };
        let sql = format!("SELECT number FROM {table} WHERE id = ?1 AND tenant = ?2");
        let found = transaction.first(&sql, values![after, tenant])?;
        Ok(Some(found.ok_or(StoreError::Unknown)?.take("number")?))
    }

    /// How numbers of its entries compare with [`Self::after`], and their order.
    pub(super) fn direction(&self) -> (&'static str, &'static str) {
        if self.is_ascending { (">", "ASC") } else { ("<", "DESC") }
    }

    /// Cuts off the entry that tells whether there are more.
    pub(super) fn cut<T>(&self, mut found: Vec<T>) -> Result<(Vec<T>, bool), StoreError> {
        let has_more = found.len() > self.limit;
        found.truncate(self.limit);
        Ok((found, has_more))
    }
}
