//! The services, as systemd's own tools see them, and the variables that they are told.

use std::path::PathBuf;
use std::process::Command;

use fleet_tests::process::{Folder, binary, run};

use crate::text;
use fleet_tests::tools::{has, output};

const PROGRAMS: [&str; 2] = ["flotilla-gateway", "flotilla-agent"];

/// The unit of a program, which need not be installed for it.
fn unit(folder: &Folder, program: &str) -> PathBuf {
    let unit = text(&format!("packaging/systemd/{program}.service"));
    let installed = format!("/usr/bin/{program} ");
    assert!(unit.contains(&installed));
    let here = format!("{} ", binary(program).display());
    folder.write(&format!("{program}.service"), unit.replace(&installed, &here))
}

#[test]
fn the_units_have_no_mistakes() {
    if !has("systemd-analyze", "systemd") {
        return;
    }
    let folder = Folder::new();
    for program in PROGRAMS {
        let said =
            output(Command::new("systemd-analyze").arg("verify").arg(unit(&folder, program)));
        assert_eq!(said, "", "{program}");
    }
}

/// systemd-analyze reads the drop-ins beside a unit.
#[test]
fn the_drop_in_of_the_examples_has_no_mistakes() {
    if !has("systemd-analyze", "systemd") {
        return;
    }
    let folder = Folder::new();
    let unit = unit(&folder, "flotilla-agent");
    let name = "flotilla-agent.service.d/shared-machine.conf";
    std::fs::create_dir(folder.path().join("flotilla-agent.service.d")).unwrap();
    let verify = |text: &str| {
        folder.write(name, text);
        let verified = Command::new("systemd-analyze").arg("verify").arg(&unit).output().unwrap();
        String::from_utf8(verified.stderr).unwrap()
    };
    let drop_in = text(&format!("examples/systemd/{name}"));
    assert_eq!(verify(&drop_in), "");
    assert!(verify(&drop_in.replace("6G", "much")).contains("Invalid memory limit"));
}

#[test]
fn the_units_expose_little() {
    if !has("systemd-analyze", "systemd") {
        return;
    }
    let folder = Folder::new();
    for program in PROGRAMS {
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["security", "--offline=true", "--threshold=20", "--no-pager"]);
        let said = output(analyze.arg(unit(&folder, program)));
        let last = said.lines().rev().find(|line| line.contains("Overall")).unwrap();
        eprintln!("{program}: {last}");
    }
}

#[test]
fn every_flag_of_serve_has_a_variable_and_the_conffile_shows_it() {
    let help = run("flotilla-agent", &["serve", "--help"]).stdout;
    let shown =
        text("packaging/systemd/agent.env") + &text("packaging/systemd/flotilla-agent.service");
    let mut flags = 0;
    for line in help.lines().filter(|line| line.trim_start().starts_with("--")) {
        let flag = line.trim_start().split([' ', '=']).next().unwrap();
        let name = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
        let variable = format!("FLOTILLA_{name}=");
        // The value of a secret is not shown.
        let secret = format!("[env: FLOTILLA_{name}]");
        let has_one = help.contains(&format!("[env: {variable}")) || help.contains(&secret);
        assert!(has_one, "{flag} has no variable");
        assert!(shown.contains(&variable), "{variable} is not shown");
        flags += 1;
    }
    assert!(flags >= 20, "only {flags} flags were found");
}
