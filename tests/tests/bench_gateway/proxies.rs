//! The proxies that are compared, each in a process of its own.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use fleet_tests::eventually;
use fleet_tests::process::{Folder, Server, run};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::{TcpListener, TcpStream};

use crate::stub;

/// A proxy, or the upstream itself.
pub struct Proxy {
    /// Its name in figures.
    pub name: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    /// The key of the gateway.
    pub key: Option<String>,
    process: Option<Process>,
    _folder: Option<Folder>,
}

enum Process {
    Gateway(Server),
    Other(Child),
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Self::Other(child) = self {
            // Killed, nginx would leave its worker behind.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
            let _ = child.wait();
        }
    }
}

impl Proxy {
    /// Whether it is not the upstream itself.
    pub fn is_proxy(&self) -> bool {
        self.process.is_some()
    }

    /// Ends by itself, if it is the gateway.
    pub async fn stops(mut self) {
        if let Some(Process::Gateway(server)) = &mut self.process {
            server.signal(Signal::TERM);
            assert_eq!(server.ended().await, Some(0), "{}", server.log());
        }
    }

    /// CPU time of its process and its workers.
    pub fn cpu_seconds(&self) -> f64 {
        let pid = match &self.process {
            None => return 0.0,
            Some(Process::Gateway(server)) => server.pid().as_raw_nonzero().get() as u32,
            Some(Process::Other(child)) => child.id(),
        };
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let all = children.split_whitespace().map(|child| child.parse().unwrap()).chain([pid]);
        all.map(cpu_seconds_of).sum()
    }
}

fn cpu_seconds_of(pid: u32) -> f64 {
    // Nanoseconds of all threads; the figures of stat are hundredths.
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanos = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    nanos.sum::<u64>() as f64 / 1e9
}

/// All of them before one upstream; `None` where nginx or HAProxy is missing.
pub async fn start() -> Option<Vec<Proxy>> {
    let has = |name: &str| {
        let mut asked = Command::new(name);
        asked.arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    if !has("nginx") || !has("haproxy") {
        return None;
    }
    let upstream = stub::start();
    let direct =
        Proxy { name: "direct", address: upstream, key: None, process: None, _folder: None };
    Some(vec![direct, nginx(upstream).await, haproxy(upstream).await, gateway(upstream).await])
}

async fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

async fn spawned(
    name: &'static str,
    command: &mut Command,
    address: SocketAddr,
    folder: Folder,
) -> Proxy {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually(name, async || TcpStream::connect(address).await.ok()).await;
    let process = Some(Process::Other(child));
    Proxy { name, address, key: None, process, _folder: Some(folder) }
}

async fn nginx(upstream: SocketAddr) -> Proxy {
    let (address, folder) = (free_port().await, Folder::new());
    let path = folder.path().display().to_string();
    let config = format!(
        "worker_processes 1; daemon off; pid {path}/pid; error_log /dev/null;
        events {{ worker_connections 4096; }}
        http {{ access_log off; keepalive_requests 1000000;
            client_body_temp_path {path}/a; proxy_temp_path {path}/b; fastcgi_temp_path {path}/c;
            uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;
            upstream nodes {{ least_conn; server {upstream}; keepalive 1024;
                keepalive_requests 1000000; }}
            server {{ listen {address} backlog=4096; location / {{
                proxy_pass http://nodes; proxy_http_version 1.1; proxy_buffering off;
                proxy_set_header Connection \"\"; proxy_read_timeout 600s; }} }} }}"
    );
    let config = folder.write("nginx.conf", config);
    spawned("nginx", Command::new("nginx").arg("-c").arg(config), address, folder).await
}

async fn haproxy(upstream: SocketAddr) -> Proxy {
    let (address, folder) = (free_port().await, Folder::new());
    let config = format!(
        "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 5s\n  \
         timeout client 600s\n  timeout server 600s\n  http-reuse always\nlisten all\n  bind \
         {address}\n  balance leastconn\n  server stub {upstream}\n"
    );
    let config = folder.write("haproxy.cfg", config);
    spawned("haproxy", Command::new("haproxy").arg("-f").arg(config), address, folder).await
}

/// The gateway before an upstream, with limits on and one thread for traffic.
pub async fn gateway(upstream: SocketAddr) -> Proxy {
    let folder = Folder::new();
    let limits = ["--requests-per-minute", "100000000", "--tokens-per-minute", "4000000000"];
    let made = run("flotilla-gateway", &[&["key", "new", "--name", "bench"][..], &limits].concat());
    let key = made.stdout.lines().nth(1).unwrap().to_string();
    let entry = &made.stdout[made.stdout.find("keys:").unwrap()..];
    let config = format!(
        "listen: 127.0.0.1:0\n{entry}limits: {{connections_per_ip_max: 4096}}\n\
         nodes: {{static: [{{url: 'http://{upstream}'}}]}}\n"
    );
    let config = folder.write("gateway.yaml", config);
    let arguments = ["run", "--config", config.to_str().unwrap()];
    let settings =
        [("TOKIO_WORKER_THREADS", "1"), ("RUST_LOG", "warn,flotilla_gateway=info,access=off")];
    let server = Server::start_with("flotilla-gateway", &arguments, &settings);
    let address = server.address();
    let client = fleet_tests::client::Client::new(address, Some(&key));
    eventually("the gateway to be ready", async || {
        (client.get("/readyz").await.status == 200).then_some(())
    })
    .await;
    let process = Some(Process::Gateway(server));
    Proxy { name: "flotilla", address, key: Some(key), process, _folder: Some(folder) }
}
