//! SQLite, in a file that one gateway uses.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, ToSql};

use super::database::Source;
use super::locked_file::LockedFile;
use super::sql::{Cell, Connection, Fault, Row, Value};

/// Name of the database in its folder.
const FILE: &str = "store.sqlite";
/// The steps from an empty database to the current one. `user_version` counts those that are done.
const MIGRATIONS: [&str; 9] = [
    include_str!("sqlite_1.sql"),
    include_str!("sqlite_2.sql"),
    include_str!("sqlite_3.sql"),
    include_str!("sqlite_4.sql"),
    include_str!("sqlite_5.sql"),
    include_str!("sqlite_6.sql"),
    include_str!("sqlite_7.sql"),
    include_str!("sqlite_8.sql"),
    include_str!("sqlite_9.sql"),
];
/// Files hold what tenants have sent.
const MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// More than there are statements.
const STATEMENTS_MAX: usize = 100;

/// A database in a folder.
#[derive(Debug)]
pub(super) struct Sqlite(pub PathBuf);

impl Source for Sqlite {
    fn open(&mut self) -> Result<Box<dyn Connection>, Fault> {
        Ok(Box::new(open(&self.0)?))
    }

    fn name(&self) -> String {
        self.0.display().to_string()
    }
}

/// The open database, and the lock that keeps other gateways away from it.
struct Opened {
    connection: rusqlite::Connection,
    _lock: LockedFile,
}

fn open(folder: &Path) -> Result<Opened, Fault> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(FOLDER_MODE).create(folder).map_err(Fault::of)?;
    let lock = lock(&folder.join("lock"))?;
    let path = folder.join(FILE);
    // SQLite gives its other files the mode of this one.
    private(&path).map_err(Fault::of)?;
    let connection = connect(&path).map_err(Fault::of)?;
    migrate(&connection)?;
    Ok(Opened { connection, _lock: lock })
}

fn private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(MODE).open(path)
}

/// Batches of a file that two gateways used would run twice.
fn lock(path: &Path) -> Result<LockedFile, Fault> {
    let file = private(path).map_err(Fault::of)?;
    LockedFile::new(file).map_err(|error| match error {
        TryLockError::WouldBlock => Fault("another gateway uses this folder".into()),
        TryLockError::Error(error) => Fault::of(error),
    })
}

fn connect(path: &Path) -> rusqlite::Result<rusqlite::Connection> {
    let connection = rusqlite::Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    // Deleted prompts must not stay in unused pages.
    connection.pragma_update(None, "secure_delete", "on")?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// Brings the database to the current version.
fn migrate(connection: &rusqlite::Connection) -> Result<(), Fault> {
    let read = connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let version: usize = read.map_err(|e: rusqlite::Error| Fault::of(e))?;
    if version > MIGRATIONS.len() {
        let known = MIGRATIONS.len();
        return Err(Fault(format!("it is of version {version}, this gateway knows up to {known}")));
    }
    for (done, step) in MIGRATIONS.iter().enumerate().skip(version) {
        let step = format!("BEGIN; {step} PRAGMA user_version = {}; COMMIT;", done + 1);
        connection.execute_batch(&step).map_err(Fault::of)?;
    }
    Ok(())
}

impl Opened {
    /// A prepared statement with its parameters.
    fn bound(&self, sql: &str, values: &[Value<'_>]) -> rusqlite::Result<CachedStatement<'_>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        for (value, number) in values.iter().zip(1..) {
            statement.raw_bind_parameter(number, value)?;
        }
        Ok(statement)
    }
}

impl Connection for Opened {
    fn begin(&mut self) -> Result<(), Fault> {
        self.batch("BEGIN IMMEDIATE; SAVEPOINT job")
    }

    fn batch(&mut self, sql: &str) -> Result<(), Fault> {
        self.connection.execute_batch(sql).map_err(Fault::of)
    }

    fn execute(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Fault> {
        let changed = self.bound(sql, values).and_then(|mut statement| statement.raw_execute());
        changed.map(|changed| changed as u64).map_err(Fault::of)
    }

    fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Fault> {
        let mut statement = self.bound(sql, values).map_err(Fault::of)?;
        rows(&mut statement).map_err(Fault::of)
    }

    fn clock(&self) -> &'static str {
        "unixepoch()"
    }
}

fn rows(statement: &mut CachedStatement<'_>) -> rusqlite::Result<Vec<Row>> {
    let names: Vec<String> = statement.column_names().map(Into::into).collect();
    let names: std::sync::Arc<[String]> = names.into();
    let mut found = statement.raw_query();
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let cells = (0..names.len()).map(|at| Ok(cell(row.get_ref(at)?)));
        rows.push(Row { names: names.clone(), cells: cells.collect::<rusqlite::Result<_>>()? });
    }
    Ok(rows)
}

fn cell(value: ValueRef<'_>) -> Cell {
    match value {
        ValueRef::Null | ValueRef::Real(_) => Cell::Null,
        ValueRef::Integer(value) => Cell::Integer(value),
        ValueRef::Text(text) => Cell::Text(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Cell::Bytes(bytes.into()),
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Value::Null => ValueRef::Null,
            Value::Integer(value) => ValueRef::Integer(value),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sql::values;
    use super::*;

    fn opened(folder: &Path) -> Opened {
        open(folder).map_err(|Fault(why)| why).unwrap()
    }

    #[test]
    fn a_file_that_is_no_database_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let text = "no database ".repeat(1000);
        std::fs::write(&path, &text).unwrap();
        assert!(open(folder.path()).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_database_of_a_later_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        opened(folder.path()).connection.pragma_update(None, "user_version", 99).unwrap();
        let Err(Fault(why)) = open(folder.path()) else { panic!("it was opened") };
        assert_eq!(why, "it is of version 99, this gateway knows up to 9");
    }

    #[test]
    fn a_database_of_an_earlier_version_keeps_its_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let first = rusqlite::Connection::open(&path).unwrap();
        first.execute_batch(MIGRATIONS[0]).unwrap();
        first.pragma_update(None, "user_version", 1).unwrap();
        let sql = "INSERT INTO batches (id, tenant, is_active, document) \
                   VALUES ('a', 't', 1, '{\"input_file_id\": \"f\", \"times\": {\"created_at\": 7}}')";
        first.execute(sql, []).unwrap();
        drop(first);
        let mut later = opened(folder.path());
        let sql = "SELECT created_at, owner FROM batches WHERE input_file = ?1";
        let mut rows = later.query(sql, values!["f"]).unwrap();
        assert_eq!(rows[0].take::<u64>("created_at"), Ok(7));
        assert_eq!(rows[0].take::<Option<String>>("owner"), Ok(None));
        assert_eq!(later.query("SELECT id FROM tasks", &[]).unwrap().len(), 0);
    }

    #[test]
    fn what_a_statement_has_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut opened = opened(folder.path());
        let sql = "SELECT ?1 AS n, ?2 AS t, ?3 AS b, ?4 AS none, ?1 AS again";
        let bytes = vec![0, 255];
        let values = values![u64::MAX, "text", &bytes, None::<u64>];
        let mut row = opened.query(sql, values).unwrap().remove(0);
        assert_eq!(row.take::<i64>("n"), Ok(i64::MAX));
        assert_eq!(row.take::<String>("t"), Ok("text".into()));
        assert_eq!(row.take::<Vec<u8>>("b"), Ok(bytes));
        assert_eq!(row.take::<Option<u64>>("none"), Ok(None));
        assert!(row.take::<String>("again").is_err(), "of another type");
        assert!(row.take::<i64>("missing").is_err());
    }
}
