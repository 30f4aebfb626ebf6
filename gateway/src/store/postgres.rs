//! PostgreSQL, which several gateways use together.
//!
//! Transactions of all gateways run one after the other, as with SQLite: each waits for an advisory
//! lock, which the server releases when a connection ends, however that happens.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Config, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::database::Source;
use super::sql::{Cell, Connection, Fault, Row, Value};

/// The steps from an empty database to the current one.
const MIGRATIONS: [&str; 7] = [
    include_str!("postgres_1.sql"),
    include_str!("postgres_2.sql"),
    include_str!("postgres_3.sql"),
    include_str!("postgres_4.sql"),
    include_str!("postgres_5.sql"),
    include_str!("postgres_6.sql"),
    include_str!("postgres_7.sql"),
];
/// Longest wait for a connection, and for a statement.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(8);
/// Idle time after which the system asks whether the server is still there, and how long sent bytes
/// may stay unconfirmed.
const KEEPALIVE: Duration = Duration::from_secs(5);
const TCP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection that failed, during which all work fails at once.
const PAUSE: Duration = Duration::from_secs(1);
/// More than there are statements.
const STATEMENTS_MAX: usize = 100;
/// Begins a transaction and waits for its turn. Whoever stops in the middle of one, with its
/// connection open, loses it.
const BEGIN: &str = "BEGIN; SET LOCAL statement_timeout = '8s'; \
    SET LOCAL idle_in_transaction_session_timeout = '10s'; \
    SELECT pg_advisory_xact_lock(5088224150627583); SAVEPOINT job";

/// Where a database is, and how to connect to it. Two are equal if they name the same database.
#[derive(Debug, Clone)]
pub struct PostgresSettings {
    config: Config,
    tls: Arc<ClientConfig>,
}

impl PartialEq for PostgresSettings {
    fn eq(&self, other: &Self) -> bool {
        self.config == other.config
    }
}

impl Eq for PostgresSettings {}

impl PostgresSettings {
    /// Reads `postgres://user:password@host/database`. Without `sslmode`, connections are encrypted
    /// and the server's certificate is verified, unless all hosts are this machine.
    ///
    /// # Errors
    /// It is no such URL.
    pub fn new(url: &str, tls: Arc<ClientConfig>) -> Result<Self, String> {
        // Its errors do not repeat what was written, which has a password.
        let mut config = Config::from_str(url).map_err(|error| error.to_string())?;
        if config.get_hosts().is_empty() {
            return Err("it names no host".into());
        }
        if config.get_dbname().is_none() {
            return Err("it names no database".into());
        }
        if config.get_ssl_mode() == SslMode::Prefer {
            let is_here = config.get_hosts().iter().all(is_here);
            config.ssl_mode(if is_here { SslMode::Disable } else { SslMode::Require });
        }
        config.application_name("flotilla-gateway").connect_timeout(CONNECT_TIMEOUT);
        config.keepalives_idle(KEEPALIVE).tcp_user_timeout(TCP_TIMEOUT);
        Ok(Self { config, tls })
    }

    fn name(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts: Vec<String> = hosts.collect();
        format!("{} at {}", self.config.get_dbname().unwrap_or_default(), hosts.join(", "))
    }
}

fn is_here(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
        Host::Unix(_) => true,
    }
}

/// Connects to a server, not too often.
#[derive(Debug)]
pub(super) struct Postgres {
    settings: PostgresSettings,
    failed: Option<(Instant, Fault)>,
}

impl Postgres {
    pub(super) fn new(settings: PostgresSettings) -> Self {
        Self { settings, failed: None }
    }
}

impl Source for Postgres {
    fn open(&mut self) -> Result<Box<dyn Connection>, Fault> {
        if let Some((at, fault)) = &self.failed
            && at.elapsed() < PAUSE
        {
            return Err(fault.clone());
        }
        match open(&self.settings) {
            Ok(opened) => {
                self.failed = None;
                Ok(Box::new(opened))
            }
            Err(fault) => {
                self.failed = Some((Instant::now(), fault.clone()));
                Err(fault)
            }
        }
    }

    fn name(&self) -> String {
        self.settings.name()
    }
}

/// A connection, and the runtime that drives it while it is used.
struct Opened {
    client: Client,
    statements: HashMap<String, Statement>,
    runtime: Runtime,
}

fn open(settings: &PostgresSettings) -> Result<Opened, Fault> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Fault::of)?;
    let tls = MakeRustlsConnect::new(ClientConfig::clone(&settings.tls));
    let connect = async {
        let (client, connection) = settings.config.connect(tls).await?;
        // It ends with the client, or with the server; then statements fail.
        tokio::spawn(async move { drop(connection.await) });
        Ok::<_, tokio_postgres::Error>(client)
    };
    let connected = runtime.block_on(async { timeout(CONNECT_TIMEOUT, connect).await });
    let client = connected.map_err(|_| no_answer())?.map_err(|error| fault(&error))?;
    let mut opened = Opened { client, statements: HashMap::new(), runtime };
    opened.migrate()?;
    Ok(opened)
}

fn no_answer() -> Fault {
    Fault("the server does not answer".into())
}

/// The error with what the server says.
fn fault(error: &tokio_postgres::Error) -> Fault {
    match error.as_db_error() {
        Some(detail) => Fault(format!("{} ({})", detail.message(), detail.code().code())),
        None => {
            let source = std::error::Error::source(error).map(|source| format!(": {source}"));
            Fault(format!("{error}{}", source.unwrap_or_default()))
        }
    }
}

impl Opened {
    /// Brings the database to the current version.
    fn migrate(&mut self) -> Result<(), Fault> {
        self.begin()?;
        let sql = "SELECT CAST(to_regclass('flotilla_schema') IS NULL AS INTEGER) AS is_new";
        let found = self.query(sql, &[])?;
        if found.into_iter().next().map_or(Ok(true), |mut row| row.take("is_new"))? {
            let id = "id INTEGER PRIMARY KEY CHECK (id = 1)";
            self.batch(&format!("CREATE TABLE flotilla_schema ({id}, version BIGINT NOT NULL)"))?;
        }
        let found = self.query("SELECT version FROM flotilla_schema", &[])?;
        let version: u64 = found.into_iter().next().map_or(Ok(0), |mut row| row.take("version"))?;
        let known = MIGRATIONS.len();
        if version > known as u64 {
            let why = format!("it is of version {version}, this gateway knows up to {known}");
            return Err(Fault(why));
        }
        for step in MIGRATIONS.iter().skip(version as usize) {
            self.batch(step)?;
        }
        if version < known as u64 {
            let sql = "INSERT INTO flotilla_schema (id, version) VALUES (1, ?1) \
                       ON CONFLICT (id) DO UPDATE SET version = excluded.version";
            self.execute(sql, &[Value::from(known)])?;
        }
        self.batch("COMMIT")
    }

    fn run<T>(
        &self,
        work: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Fault> {
        let done = self.runtime.block_on(async { timeout(STATEMENT_TIMEOUT, work).await });
        done.map_err(|_| no_answer())?.map_err(|error| fault(&error))
    }

    fn statement(&mut self, sql: &str) -> Result<Statement, Fault> {
        if let Some(known) = self.statements.get(sql) {
            return Ok(known.clone());
        }
        if self.statements.len() >= STATEMENTS_MAX {
            self.statements.clear();
        }
        let prepared = self.run(self.client.prepare(&sql.replace('?', "$")))?;
        self.statements.insert(sql.into(), prepared.clone());
        Ok(prepared)
    }
}

/// Parameters, as the client takes them.
fn parameters<'a>(values: &'a [Value<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

impl Connection for Opened {
    fn begin(&mut self) -> Result<(), Fault> {
        self.batch(BEGIN)
    }

    fn batch(&mut self, sql: &str) -> Result<(), Fault> {
        self.run(self.client.batch_execute(sql))
    }

    fn execute(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Fault> {
        let statement = self.statement(sql)?;
        self.run(self.client.execute(&statement, &parameters(values)))
    }

    fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, Fault> {
        let statement = self.statement(sql)?;
        let names: Vec<String> = statement.columns().iter().map(|c| c.name().into()).collect();
        let names: Arc<[String]> = names.into();
        let found = self.run(self.client.query(&statement, &parameters(values)))?;
        let read = |row: &tokio_postgres::Row| {
            let cells = (0..names.len()).map(|at| cell(row, at)).collect::<Result<_, _>>()?;
            Ok(Row { names: names.clone(), cells })
        };
        found.iter().map(read).collect()
    }

    fn clock(&self) -> &'static str {
        "CAST(extract(epoch FROM clock_timestamp()) AS BIGINT)"
    }
}

fn cell(row: &tokio_postgres::Row, at: usize) -> Result<Cell, Fault> {
    let kind = row.columns()[at].type_();
    let read = match *kind {
        Type::INT8 => row.try_get::<_, Option<i64>>(at).map(|v| v.map(Cell::Integer)),
        Type::INT4 => row.try_get::<_, Option<i32>>(at).map(|v| v.map(|v| Cell::Integer(v.into()))),
        Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(at).map(|v| v.map(Cell::Bytes)),
        Type::TEXT => row.try_get::<_, Option<String>>(at).map(|v| v.map(Cell::Text)),
        _ => return Err(Fault(format!("a column has the unknown type {kind}"))),
    };
    read.map(|cell| cell.unwrap_or(Cell::Null)).map_err(|error| fault(&error))
}

impl ToSql for Value<'_> {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match *self {
            Self::Null => Ok(IsNull::Yes),
            Self::Integer(value) if *kind == Type::INT4 => i32::try_from(value)?.to_sql(kind, out),
            Self::Integer(value) => value.to_sql(&Type::INT8, out),
            // The server refuses this character; nothing that has it was ever stored.
            Self::Text(text) if text.contains('\0') => {
                text.replace('\0', "\u{fffd}").to_sql(kind, out)
            }
            Self::Text(text) => text.to_sql(kind, out),
            Self::Bytes(bytes) => bytes.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        matches!(*kind, Type::INT4 | Type::INT8 | Type::TEXT | Type::BYTEA)
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::super::testing::tls;
    use super::*;

    fn settings(url: &str) -> PostgresSettings {
        PostgresSettings::new(url, tls()).unwrap()
    }

    #[test]
    fn connections_to_other_machines_are_encrypted_unless_the_url_says_otherwise() {
        for (url, mode) in [
            ("postgres://u:p@db.example.com/flotilla", SslMode::Require),
            ("postgres://u:p@db1,db2/flotilla?target_session_attrs=read-write", SslMode::Require),
            ("postgres://u:p@localhost,db2/flotilla", SslMode::Require),
            ("postgres://u:p@127.0.0.1:5433/flotilla", SslMode::Disable),
            ("postgres:///flotilla?host=/var/run/postgresql", SslMode::Disable),
            ("postgres://u:p@db/flotilla?sslmode=disable", SslMode::Disable),
        ] {
            assert_eq!(settings(url).config.get_ssl_mode(), mode, "{url}");
        }
    }

    #[test]
    fn neither_errors_nor_logs_show_a_password() {
        let known = settings("postgres://me:s3cret@db/flotilla");
        assert_eq!(known.name(), "flotilla at db");
        assert!(!format!("{known:?}").contains("s3cret"));
        for wrong in ["postgres://me:s3cret@db", "postgres://me:s3cret@:x/db", "s3cret", ""] {
            let why = PostgresSettings::new(wrong, tls()).unwrap_err();
            assert!(!why.contains("s3cret"), "{why}");
        }
    }
}
