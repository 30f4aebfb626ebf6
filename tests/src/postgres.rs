//! PostgreSQL servers, which `make setup-test` installs, and databases in them.

use std::fs::{Permissions, set_permissions};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::process::{Folder, write_private};
use crate::{eventually_within, root};

/// A test that waits longer has failed.
const STARTED: Duration = Duration::from_secs(60);

/// A server of its own.
#[derive(Debug)]
pub struct Postgres {
    child: Child,
    folder: Folder,
    options: Vec<String>,
    /// Its port on 127.0.0.1.
    pub port: u16,
}

impl Postgres {
    /// Starts a server with these options. `None` where it is not installed.
    pub async fn start(options: &[&str]) -> Option<Self> {
        let is_there =
            std::fs::read_dir("/usr/lib/postgresql").is_ok_and(|mut d| d.next().is_some());
        if !is_there {
            eprintln!("skipped: there is no PostgreSQL; 'make setup-test' installs it");
            return None;
        }
        Some(Self::run("serve", options).await)
    }

    /// Starts a copy, which follows this server.
    pub async fn copy(&self) -> Self {
        Self::run("copy", &[&self.port.to_string()]).await
    }

    async fn run(kind: &str, options: &[&str]) -> Self {
        let (folder, port) = (Folder::new(), free_port());
        open_to_others(folder.path());
        let child = spawn(&folder, port, kind, options);
        let options = Vec::new();
        let server = Self { child, folder, options, port };
        let url = server.url("postgres");
        eventually_within(STARTED, "PostgreSQL to start", async || psql(&url, "SELECT 1").ok())
            .await;
        server
    }

    /// The URL of one of its databases.
    pub fn url(&self, database: &str) -> String {
        url(&[self.port], database)
    }

    /// Creates an empty database, and returns its URL.
    pub fn database(&self, name: &str) -> String {
        psql(&self.url("postgres"), &format!("CREATE DATABASE {name}")).unwrap();
        self.url(name)
    }

    /// Kills it: its processes end when they notice.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Starts it again after [`Self::kill`].
    pub async fn restart(&mut self) {
        let (url, mut is_running) = (self.url("postgres"), false);
        eventually_within(STARTED, "PostgreSQL to start again", async || {
            // What is left of the killed one uses its memory for a moment.
            if !is_running || self.child.try_wait().unwrap().is_some() {
                let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
                self.child = spawn(&self.folder, self.port, "serve", &options);
                is_running = true;
            }
            psql(&url, "SELECT 1").ok()
        })
        .await;
    }

    /// Restarts it with a certificate.
    pub async fn enable_tls(&mut self, certificate: &str, key: &str) {
        self.kill();
        let data = self.folder.path().join("server/data");
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            std::fs::write(data.join(name), text).unwrap();
        }
        // It reads no key that others may read, and only its own.
        set_permissions(data.join("server.key"), Permissions::from_mode(0o600)).unwrap();
        let owner = std::fs::metadata(&data).unwrap().uid();
        for name in ["server.crt", "server.key"] {
            chown(data.join(name), Some(owner), None).unwrap();
        }
        self.options = vec!["-c".into(), "ssl=on".into()];
        self.restart().await;
    }

    /// Makes a copy the server.
    pub fn promote(&self) {
        psql(&self.url("postgres"), "SELECT pg_promote()").unwrap();
    }

    /// Sends a signal to its first process.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// A file in its folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // It ends its other processes.
        let _ = kill_process(Pid::from_child(&self.child), Signal::QUIT);
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Folder, port: u16, kind: &str, options: &[&str]) -> Child {
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut command = Command::new(root().join("scripts/postgres.sh"));
    command.arg(kind).arg(folder.path().join("server")).arg(port.to_string()).args(options);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

/// The server runs as another user.
fn open_to_others(folder: &Path) {
    set_permissions(folder, Permissions::from_mode(0o711)).unwrap();
}

/// A free port of 127.0.0.1 for a server that cannot choose one itself. It is below those that the
/// system gives away. From one of those, a client that waits for the server to start again could
/// connect to itself, and the server could not have it any more.
pub fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let end: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
    let first = end / 2;
    // Tests in another process begin elsewhere.
    let number = || std::process::id().wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed));
    let next = || first + (number() % u32::from(first)) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).take(1000).find(is_free).expect("no port is free")
}

/// The URL of a database on servers at these ports: that one which may be written.
pub fn url(ports: &[u16], database: &str) -> String {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let choice = if ports.len() > 1 { "?target_session_attrs=read-write" } else { "" };
    format!("postgres://flotilla:test@{}/{database}{choice}", hosts.join(","))
}

/// What a statement returns, or what is wrong.
pub fn psql(url: &str, sql: &str) -> Result<String, String> {
    let mut command = Command::new("psql");
    command.args([url, "--no-psqlrc", "--tuples-only", "--no-align", "-c", sql]);
    let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_string();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The server that all tests of a run share: FLOTILLA_TEST_POSTGRES names it.
pub fn shared() -> Option<String> {
    std::env::var("FLOTILLA_TEST_POSTGRES").ok()
}

/// The URL of the database that belongs to a folder on that server.
pub fn database_of(folder: &Path) -> Option<String> {
    let server = shared()?;
    let path = folder.to_str().unwrap().to_lowercase();
    let letters: String = path.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = format!("f{}", &letters[letters.len().saturating_sub(40)..]);
    if let Err(why) = psql(&server, &format!("CREATE DATABASE {name}")) {
        assert!(why.contains("already exists"), "{why}");
    }
    let (before, _) = server.rsplit_once('/').unwrap();
    Some(format!("{before}/{name}"))
}

/// True if the stores of tests are encrypted that do not say otherwise.
pub fn is_encrypted() -> bool {
    std::env::var_os("FLOTILLA_TEST_ENCRYPTION").is_some()
}

/// The setting of a store's keys, in a folder, if [`is_encrypted`].
pub fn encryption(folder: &Path) -> String {
    if !is_encrypted() {
        return String::new();
    }
    let file = write_private(folder, "test.keys", "7".repeat(64));
    format!(", encryption_key_file: '{}'", file.display())
}

/// The settings of a store in a folder: with SQLite, or on the shared server; encrypted with
/// FLOTILLA_TEST_ENCRYPTION.
pub fn store_in(folder: &Path, more: &str) -> String {
    let mut database = String::new();
    if let Some(url) = database_of(folder) {
        let file = folder.join("database.url");
        std::fs::write(&file, url).unwrap();
        database = format!(", postgres_url_file: '{}'", file.display());
    }
    if !more.contains("encryption_key_file") {
        database += &encryption(folder);
    }
    format!("store: {{dir: '{}'{database}{more}}}\n", folder.display())
}

/// A link to a server, whose messages take as long as a test wants.
#[derive(Debug)]
pub struct SlowLink {
    /// Its port on 127.0.0.1.
    pub port: u16,
    delay: watch::Sender<Duration>,
    task: JoinHandle<()>,
}

impl SlowLink {
    /// A link to this port that delays nothing yet.
    pub async fn start(to: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let delay = watch::Sender::new(Duration::ZERO);
        let delays = delay.clone();
        let task = tokio::spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let delay = delays.subscribe();
                links.spawn(async move {
                    let server = TcpStream::connect(("127.0.0.1", to)).await?;
                    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::select! {
                        done = copy(&mut from_client, &mut to_server) => done.map(|_| ()),
                        done = copy_slowly(&mut from_server, &mut to_client, delay) => done,
                    }
                });
            }
        });
        Self { port, delay, task }
    }

    /// Delays each message of the server by so much, also those that wait already.
    pub fn delay(&self, delay: Duration) {
        self.delay.send_replace(delay);
    }
}

impl Drop for SlowLink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn copy_slowly(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    mut delay: watch::Receiver<Duration>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let begun = Instant::now();
        loop {
            let left = delay.borrow_and_update().saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            let _ = timeout(left, delay.changed()).await;
        }
        to.write_all(&buffer[..read]).await?;
    }
}
