//! The chart: rendered, linted and validated by the parts that are made for it, in environments of
//! their own.

use std::process::Command;

use fleet_tests::process::binary;
use fleet_tests::root;

#[test]
fn the_chart_renders_what_kubernetes_and_the_gateway_accept() {
    let python = root().join("target/chart/bin/python");
    assert!(python.exists(), "{} is missing: 'make test' makes it", python.display());
    let output = Command::new(python)
        .args(["-m", "unittest", "--verbose"])
        .current_dir(root().join("tests/chart"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("FLOTILLA_GATEWAY", binary("flotilla-gateway"))
        .env("FLOTILLA_AGENT", binary("flotilla-agent"))
        .env("CRD_MODELS", root().join("target/chart/node"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    eprintln!("{said}");
    assert!(output.status.success());
}
