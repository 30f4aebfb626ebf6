//! A certificate that cert-manager renews: the kubelet changes the files of a Secret at once, by
//! one link. The gateway presents the new certificate, and its nodes stay.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use fleet_tests::eventually;
use fleet_tests::process::{Fleet, Folder};

/// Writes a new certificate for loopback as the kubelet does: a new folder, and one link that
/// changes at once.
fn publish(folder: &Path, version: &str) {
    let names = ["localhost".to_string(), "127.0.0.1".to_string()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let new = folder.join(format!("..{version}"));
    std::fs::create_dir(&new).unwrap();
    for (name, content) in [
        ("tls.key", made.signing_key.serialize_pem()),
        ("tls.crt", made.cert.pem()),
        ("ca.crt", made.cert.pem()),
    ] {
        std::fs::write(new.join(name), content).unwrap();
        if !folder.join(name).exists() {
            symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
        }
    }
    let fresh = folder.join("..data_tmp");
    symlink(format!("..{version}"), &fresh).unwrap();
    std::fs::rename(fresh, folder.join("..data")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_of_a_secret_is_presented_and_nodes_stay() {
    let secret = Folder::new();
    publish(secret.path(), "first");
    let path = |name: &str| secret.path().join(name).display().to_string();
    let (certificate, key) = (path("tls.crt"), path("tls.key"));
    let fleet =
        Fleet::start(&format!("tls: {{cert_file: {certificate}, key_file: {key}}}\n")).await;
    let agent = fleet.join("a", &["--join-ca-file", &path("ca.crt")]).await;
    let old: PathBuf = secret.path().join("..first/ca.crt");
    let new = secret.path().join("..second/ca.crt");
    let is_known = |ca: &Path| fleet.curl(ca, "/readyz", &["--fail"]).contains("ready");
    assert!(is_known(&old));

    publish(secret.path(), "second");
    eventually("the new certificate", async || is_known(&new).then_some(())).await;
    assert!(!is_known(&old));
    assert!(!agent.server.log().contains("link lost"), "{}", agent.server.log());
}
