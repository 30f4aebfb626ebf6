//! Pebble, the ACME server for tests, with a DNS server that knows every name as 127.0.0.1.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use fleet_tests::eventually;
use fleet_tests::process::Folder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::net::{TcpListener, TcpStream};

/// A running Pebble. It forgets everything when it ends.
pub struct Pebble {
    processes: [Child; 2],
    management: SocketAddr,
    /// URL of its directory.
    pub directory: String,
    /// The CA of its own HTTPS certificate.
    pub ca_file: PathBuf,
    _folder: Folder,
}

/// Free ports, all different. They lie below those that the system gives to others that ask for any
/// port, who could take them before they are used.
pub async fn free_ports<const N: usize>() -> [SocketAddr; N] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 10_000).unwrap();
    let mut ports = Vec::new();
    while ports.len() < N {
        let port = 12_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).await.is_ok() {
            ports.push(address);
        }
    }
    ports.try_into().unwrap()
}

/// True if Pebble is installed.
pub fn is_installed() -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = ["pebble", "pebble-challtestsrv"]
        .iter()
        .all(|tool| path.split(':').any(|folder| PathBuf::from(folder).join(tool).exists()));
    if !found {
        eprintln!("skipped: this test needs pebble (apt-get install pebble)");
    }
    found
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Pebble {
    /// Starts it. It validates domains at these ports, and its certificates last for `validity_s`.
    pub async fn start(http: SocketAddr, tls: SocketAddr, validity_s: u32) -> Self {
        let folder = Folder::new();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // With the name of the other certificate, curl would take that for self-signed.
        params.distinguished_name.push(DnType::CommonName, "CA of a test");
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(["127.0.0.1".to_string()]).unwrap();
        let certificate = folder.write("own.pem", own.signed_by(&key, &ca).unwrap().pem());
        let key = folder.write("own.key", key.serialize_pem());
        let [listen, management, dns] = free_ports().await;
        let config = serde_json::json!({"pebble": {
            "listenAddress": listen, "managementListenAddress": management,
            "certificate": certificate, "privateKey": key,
            "httpPort": http.port(), "tlsPort": tls.port(),
            "certificateValidityPeriod": validity_s,
        }});
        let config = folder.write("pebble.json", config.to_string());
        let mut names = Command::new("pebble-challtestsrv");
        names.args(["-defaultIPv6", "", "-http01", "", "-https01", "", "-tlsalpn01", ""]);
        names.args(["-dns01", &dns.to_string(), "-management", "127.0.0.1:0"]);
        let mut pebble = Command::new("pebble");
        pebble.arg("-config").arg(config).args(["-dnsserver", &dns.to_string()]);
        pebble.env("PEBBLE_VA_NOSLEEP", "1");
        // By default it refuses one nonce in twenty, and now and then three in a row, which is an
        // error: the next attempt would be two minutes later.
        pebble.env("PEBBLE_WFE_NONCEREJECT", "0");
        let processes = [spawn(&mut names), spawn(&mut pebble)];
        for address in [dns, listen, management] {
            eventually("pebble", async || TcpStream::connect(address).await.ok()).await;
        }
        let ca_file = folder.write("ca.pem", ca.pem());
        let directory = format!("https://{listen}/dir");
        Self { processes, management, directory, ca_file, _folder: folder }
    }

    /// The CA certificate (PEM) of the certificates that it issues.
    pub fn root(&self) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--cacert"]).arg(&self.ca_file);
        let output = curl.arg(format!("https://{}/roots/0", self.management)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Pebble {
    /// Ends it; its files stay.
    pub fn stop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        self.stop();
    }
}
