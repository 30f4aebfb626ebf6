//! What the programs say about themselves in a terminal: completions in a real bash, man pages as
//! man reads them, help, and exit codes.

use std::process::{Command, Stdio};

use fleet_tests::demo_model;
use fleet_tests::process::{Folder, binary, run, run_command};

const PROGRAMS: [&str; 2] = ["flotilla-gateway", "flotilla-agent"];

fn has(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let found = command.status().is_ok();
    if !found {
        eprintln!("skipped: there is no {program}");
    }
    found
}

/// What bash offers after some words, with the script of a program.
fn offered(program: &str, words: &[&str]) -> Vec<String> {
    let script = format!(
        "set -euo pipefail\n\
         source <(\"{}\" completions bash)\n\
         FUNCTION=$(complete -p {program} | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
         COMP_WORDS=({program} {}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         \"$FUNCTION\" {program} \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        binary(program).display(),
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]);
    let ran = run_command(bash);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout.lines().map(String::from).collect()
}

#[test]
fn bash_completes_commands_and_flags() {
    assert_eq!(offered("flotilla-gateway", &["unc"]), ["uncordon"]);
    assert_eq!(offered("flotilla-gateway", &["key", "rev"]), ["revoke"]);
    assert_eq!(offered("flotilla-gateway", &["drain", "--wai"]), ["--wait-s"]);
    assert_eq!(offered("flotilla-agent", &["serve", "--join-key-f"]), ["--join-key-file"]);
    let all = offered("flotilla-agent", &[""]);
    assert!(all.contains(&"serve".into()) && all.contains(&"plan".into()), "{all:?}");
    assert!(!all.iter().any(|word| word.contains("trial")), "hidden commands: {all:?}");
}

#[test]
fn zsh_and_fish_have_their_scripts() {
    for program in PROGRAMS {
        let zsh = run(program, &["completions", "zsh"]).stdout;
        assert!(zsh.starts_with(&format!("#compdef {program}")), "{zsh}");
        let fish = run(program, &["completions", "fish"]).stdout;
        assert!(fish.contains(&format!("complete -c {program}")), "{fish}");
        assert_eq!(run(program, &["completions", "tcsh"]).code, Some(64));
        for shell in ["zsh", "fish"] {
            if has(shell) {
                let mut check = Command::new(shell);
                let script = if shell == "zsh" { &zsh } else { &fish };
                check.args(["-n", "-c", script]);
                let ran = run_command(check);
                assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{program}");
            }
        }
    }
}

#[test]
fn man_reads_every_page_without_a_warning() {
    let folder = Folder::new();
    let to = folder.path().to_str().unwrap();
    for program in PROGRAMS {
        let ran = run(program, &["man", "--to", to]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        let page = run(program, &["man"]).stdout;
        assert_eq!(
            std::fs::read_to_string(folder.path().join(format!("{program}.1"))).unwrap(),
            page
        );
    }
    let pages: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(pages.len() > 20, "{} pages", pages.len());
    let (groff, mandoc) = (has("groff"), has("mandoc"));
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        assert!(text.contains(".SH \"EXIT STATUS\"") && text.contains(".SH NAME"), "{page:?}");
        if groff {
            let mut lint = Command::new("groff");
            lint.args(["-man", "-Tutf8", "-ww", "-z"]).arg(page);
            let ran = run_command(lint);
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{page:?}");
        }
        if mandoc {
            let mut lint = Command::new("mandoc");
            lint.args(["-T", "lint", "-W", "warning"]).arg(page);
            let ran = run_command(lint);
            assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
        }
    }
}

#[test]
fn help_shows_examples_units_and_exit_codes() {
    for program in PROGRAMS {
        let help = run(program, &["--help"]).stdout;
        assert!(help.contains("Examples:\n") && help.contains("Exit codes:\n"), "{help}");
        let codes: Vec<&str> =
            help.split("Exit codes:\n").nth(1).unwrap().lines().take(8).collect();
        let page = crate::current::read("docs/README.md");
        for line in codes {
            let (code, said) = line.trim().split_once(' ').unwrap();
            let row = format!("| {code} | {} |", said.trim());
            assert!(page.contains(&row), "docs/README.md has no row: {row}");
        }
    }
    let serve = run("flotilla-agent", &["serve", "--help"]).stdout;
    for part in ["Gateways to join:", "<SECONDS>", "[default: ", "Examples:\n"] {
        assert!(serve.contains(part), "no {part} in {serve}");
    }
}

fn code(program: &str, arguments: &[&str]) -> Option<i32> {
    run(program, arguments).code
}

#[test]
fn exit_codes_of_the_gateway_are_those_of_its_help() {
    let folder = Folder::new();
    let config = |port: u16| {
        let text = format!(
            "listen: 127.0.0.1:{port}\nallow_anonymous: true\n\
             nodes: {{static: [{{url: 'http://127.0.0.1:9'}}]}}\n\
             admin: {{listen: '127.0.0.1:{port}', key_file: admin.key}}\n"
        );
        folder.write("gateway.yaml", text).to_str().unwrap().to_string()
    };
    folder.write("admin.key", "an-operators-key-for-tests");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = config(taken.local_addr().unwrap().port());
    assert_eq!(code("flotilla-gateway", &["check", "--config", &config]), Some(0));
    assert_eq!(code("flotilla-gateway", &["--help"]), Some(0));
    for wrong in [&["--no-such-flag"][..], &["check"], &[], &["check", "--config", "missing.yaml"]]
    {
        assert_eq!(code("flotilla-gateway", wrong), Some(64), "{wrong:?}");
    }
    assert_eq!(code("flotilla-gateway", &["run", "--config", &config]), Some(69));
    drop(taken);
    assert_eq!(code("flotilla-gateway", &["nodes", "--config", &config]), Some(69));
    let nowhere = ["man", "--to", "/proc/nowhere"];
    assert_eq!(code("flotilla-gateway", &nowhere), Some(74));
}

#[test]
fn exit_codes_of_the_agent_are_those_of_its_help() {
    let model = demo_model();
    let model = model.to_str().unwrap();
    for wrong in [&["--no-such-flag"][..], &["serve"], &["serve", "--model", model, "--slots", "0"]]
    {
        assert_eq!(code("flotilla-agent", wrong), Some(64), "{wrong:?}");
    }
    assert_eq!(code("flotilla-agent", &["plan", "--quick", model]), Some(0));
    assert_eq!(code("flotilla-agent", &["plan", "--quick", "missing.gguf"]), Some(65));
    assert_eq!(code("flotilla-agent", &["plan", "--quick", model, "--memory-mib", "1"]), Some(69));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    assert_eq!(code("flotilla-agent", &["serve", "--model", model, "--listen", &taken]), Some(69));
    for words in ["completions bash", "man", "hardware --quick", &format!("plan --quick {model}")] {
        let mut command = Command::new("bash");
        command.arg("-c").arg(format!("exec \"$0\" {words} > /dev/full"));
        command.arg(binary("flotilla-agent"));
        assert_eq!(run_command(command).code, Some(74), "{words}");
    }
}
