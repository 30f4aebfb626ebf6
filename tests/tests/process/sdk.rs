//! The official `openai` package for Python talks to the gateway.

use std::process::Command;

use fleet_tests::process::Fleet;
use fleet_tests::root;

#[tokio::test(flavor = "multi_thread")]
async fn the_official_openai_package_works() {
    let python = root().join("target/sdk-venv/bin/python");
    assert!(python.exists(), "{} is missing: 'make test' makes it", python.display());
    let fleet = Fleet::start("").await;
    let _a = fleet.join("a", &[]).await;
    let script = root().join("tests/sdk/openai_package.py");
    let output = tokio::task::block_in_place(|| {
        Command::new(python)
            .arg(script)
            .env("OPENAI_BASE_URL", format!("{}/v1", fleet.url))
            .env("OPENAI_API_KEY", &fleet.key)
            .output()
            .unwrap()
    });
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    eprintln!("{said}");
    assert!(output.status.success());
}
