//! What the store asks of a database: SQL that both know, values, and rows.
//!
//! SQLite and PostgreSQL share every statement but those that create tables. Parameters are `?1`,
//! `?2` and so on. Flags are integers, because only one of them has a type of truth.

use std::sync::Arc;

use super::StoreError;
use super::keyring::Keyring;

/// An open database, which runs one transaction at a time.
pub(super) trait Connection {
    /// Begins a transaction with the savepoint `job`. It is the only one of all gateways until it
    /// ends.
    fn begin(&mut self) -> Result<(), Fault>;
    /// Runs statements without parameters.
    fn batch(&mut self, sql: &str) -> Result<(), Fault>;
    /// Runs a statement, and returns how many rows it has changed.
    fn execute(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Fault>;
    /// Runs a statement that returns rows.
    fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Fault>;
    /// An expression for the database's clock, in seconds since 1970: the same for all gateways.
    fn clock(&self) -> &'static str;
}

/// Why a database did not do something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault(pub String);

impl Fault {
    pub(super) fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl From<Fault> for StoreError {
    fn from(Fault(why): Fault) -> Self {
        tracing::error!(why, "store failed");
        Self::Unavailable
    }
}

/// A parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Null,
    Integer(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl From<u64> for Value<'_> {
    fn from(value: u64) -> Self {
        Self::Integer(value.try_into().unwrap_or(i64::MAX))
    }
}

impl From<i64> for Value<'_> {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<usize> for Value<'_> {
    fn from(value: usize) -> Self {
        Self::from(value as u64)
    }
}

impl From<bool> for Value<'_> {
    fn from(value: bool) -> Self {
        Self::Integer(value.into())
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(value: &'a String) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a Vec<u8>> for Value<'a> {
    fn from(value: &'a Vec<u8>) -> Self {
        Self::Bytes(value)
    }
}

impl<'a, T: Into<Self>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Parameters of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::store::sql::Value::from($value)),*] };
}
pub(super) use values;

/// What a row has in a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell {
    Null,
    Integer(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// A row of a result.
#[derive(Debug)]
pub(super) struct Row {
    pub names: Arc<[String]>,
    pub cells: Vec<Cell>,
}

impl Row {
    /// The cell in the column with this name. It can be taken once.
    pub(super) fn take<T: FromCell>(&mut self, name: &str) -> Result<T, Fault> {
        let found = self.names.iter().position(|known| known == name);
        let cell = found.and_then(|at| self.cells.get_mut(at));
        let cell = cell.map(|cell| std::mem::replace(cell, Cell::Null));
        let value = cell.and_then(T::from_cell);
        value.ok_or_else(|| Fault(format!("column {name} is missing or of another type")))
    }
}

/// What a cell can be read as.
pub(super) trait FromCell: Sized {
    fn from_cell(cell: Cell) -> Option<Self>;
}

impl FromCell for i64 {
    fn from_cell(cell: Cell) -> Option<Self> {
        match cell {
            Cell::Integer(value) => Some(value),
            _ => None,
        }
    }
}

impl FromCell for u64 {
    fn from_cell(cell: Cell) -> Option<Self> {
        i64::from_cell(cell)?.try_into().ok()
    }
}

impl FromCell for bool {
    fn from_cell(cell: Cell) -> Option<Self> {
        i64::from_cell(cell).map(|value| value != 0)
    }
}

impl FromCell for String {
    fn from_cell(cell: Cell) -> Option<Self> {
        match cell {
            Cell::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl FromCell for Vec<u8> {
    fn from_cell(cell: Cell) -> Option<Self> {
        match cell {
            Cell::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl<T: FromCell> FromCell for Option<T> {
    fn from_cell(cell: Cell) -> Option<Self> {
        match cell {
            Cell::Null => Some(None),
            cell => T::from_cell(cell).map(Some),
        }
    }
}

/// The transaction in which a closure runs.
pub(super) struct Transaction<'a> {
    connection: &'a mut dyn Connection,
    keyring: &'a Keyring,
    /// True once it has changed a row.
    pub has_written: bool,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(connection: &'a mut dyn Connection, keyring: &'a Keyring) -> Self {
        Self { connection, keyring, has_written: false }
    }

    /// What encrypts values.
    pub(super) fn keyring(&self) -> &'a Keyring {
        self.keyring
    }

    /// Runs a statement, and returns how many rows it has changed.
    pub(super) fn execute(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Fault> {
        let changed = self.connection.execute(sql, values)?;
        self.has_written |= changed > 0;
        Ok(changed)
    }

    /// The row that a statement returns after it has changed something.
    pub(super) fn execute_returning(
        &mut self,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Option<Row>, Fault> {
        let changed = self.first(sql, values)?;
        self.has_written |= changed.is_some();
        Ok(changed)
    }

    /// The rows of a result.
    pub(super) fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Fault> {
        self.connection.query(sql, values)
    }

    /// Its first row.
    pub(super) fn first(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Option<Row>, Fault> {
        Ok(self.query(sql, values)?.into_iter().next())
    }

    /// The number in the column `count` of its first row.
    pub(super) fn count(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Fault> {
        self.first(sql, values)?.map_or(Ok(0), |mut row| row.take("count"))
    }

    /// An expression for the database's clock, in seconds since 1970.
    pub(super) fn clock(&self) -> &'static str {
        self.connection.clock()
    }

    /// What it shows.
    pub(super) fn now(&mut self) -> Result<u64, Fault> {
        let sql = format!("SELECT {} AS count", self.clock());
        self.count(&sql, &[])
    }
}
