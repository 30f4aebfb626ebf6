//! `doctor` and `health` where TLS is spoken, and certificates of nodes are wanted.

use std::path::{Path, PathBuf};

use fleet_tests::process::{Fleet, Folder, run};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A certificate for 127.0.0.1 and its key, as files.
fn signed(by: &CertifiedIssuer<'static, KeyPair>, folder: &Folder, name: &str) -> [PathBuf; 2] {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_string()]).unwrap();
    let made = params.signed_by(&key, by).unwrap();
    let certificate = folder.write(&format!("{name}.pem"), made.pem());
    [certificate, folder.write(&format!("{name}.key"), key.serialize_pem())]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_with_certificates_is_asked_as_an_agent_would() {
    let folder = Folder::new();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let ca_file = folder.write("ca.pem", ca.pem());
    let [certificate, key] = signed(&ca, &folder, "gateway");
    let [node, node_key] = signed(&ca, &folder, "node");
    let fleet = Fleet::start(&format!(
        "tls: {{cert_file: {}, key_file: {}}}\nnodes: {{join_key_file: join.key, client_ca_file: {}}}\n",
        text(&certificate),
        text(&key),
        text(&ca_file)
    ))
    .await;
    let join_key = fleet.folder().path().join("join.key");
    let doctor = |more: &[&str]| {
        let asked = ["doctor", "--quick", "--join", &fleet.url, "--join-key-file", text(&join_key)];
        tokio::task::block_in_place(|| run("flotilla-agent", &[&asked, more].concat()))
    };
    let shown = ["--join-cert-file", text(&node), "--join-cert-key-file", text(&node_key)];
    let trusted = ["--join-ca-file", text(&ca_file)];
    let ran = doctor(&[&trusted[..], &shown].concat());
    assert!(ran.stdout.contains("accepts the join key"), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.code, Some(0));
    let ran = doctor(&trusted);
    assert!(ran.stdout.contains("401"), "it shows no certificate: {}", ran.stdout);
    assert_eq!(ran.code, Some(1));
    assert_eq!(doctor(&shown).code, Some(1), "the gateway's certificate is not believed");

    // Certificates are no matter of health.
    let health = ["health", "--live", "--url", &fleet.url];
    assert_eq!(tokio::task::block_in_place(|| run("flotilla-gateway", &health)).code, Some(0));
}
