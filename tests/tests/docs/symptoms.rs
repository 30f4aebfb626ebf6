//! The index of symptoms: programs say what it quotes, and have the commands that it names.

use fleet_tests::process::run;

use crate::claims::sources;
use crate::current;

const PAGE: &str = "docs/symptoms.md";
/// Programs of the system that the page may name.
const FOREIGN: [&str; 10] =
    ["curl", "df", "getent", "journalctl", "kubectl", "openssl", "ps", "ss", "systemctl", "vmstat"];
/// Sections about what other programs show.
const OTHERS: [&str; 1] = ["On Kubernetes"];

/// Everything that the programs may write, as one text: string literals that go on in the next line
/// are put together.
fn written() -> String {
    let text = sources(&["gateway/src", "node-agent/src", "listeners/src", "inference-core/src"]);
    let mut joined = String::new();
    let mut lines = text.split("\\\n");
    joined.push_str(lines.next().unwrap_or_default());
    lines.for_each(|line| joined.push_str(line.trim_start()));
    joined + &current::read("configs/prometheus/alerts.yml") + &current::read("docs/metrics.md")
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Rows of the page's tables, with the title of their section.
fn rows(page: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for section in page.split("\n## ").skip(1) {
        let title = section.lines().next().unwrap();
        for line in section.lines().filter(|line| line.starts_with("| ")).skip(2) {
            let cells: Vec<String> =
                line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_string()).collect();
            assert_eq!(cells.len(), 4, "{line}");
            found.push((title.to_string(), cells));
        }
    }
    found
}

#[test]
fn what_the_index_of_symptoms_quotes_is_what_the_programs_write() {
    let written = written();
    let mut quoted = 0;
    for (title, cells) in rows(&current::read(PAGE)) {
        if OTHERS.contains(&title.as_str()) {
            continue;
        }
        for message in code(&cells[0]) {
            // Names of commands, flags and states are no messages; commands are tried below.
            if message.starts_with("flotilla-") || message.starts_with("--") {
                continue;
            }
            for part in message.split('…').map(str::trim).filter(|part| part.len() > 2) {
                assert!(written.contains(part), "{PAGE}: nothing writes '{part}' of '{message}'");
                quoted += 1;
            }
        }
    }
    assert!(quoted > 60, "only {quoted} messages were found");
}

#[test]
fn every_alert_of_the_index_of_symptoms_has_its_runbook() {
    let runbooks = current::read("docs/runbooks.md");
    let page = current::read(PAGE);
    let alerts: Vec<&str> = code(&page).filter(|name| name.starts_with("Flotilla")).collect();
    assert!(alerts.len() >= 8, "{alerts:?}");
    for alert in alerts {
        assert!(runbooks.contains(&format!("\n## {alert}\n")), "{alert} has no runbook");
    }
}

#[test]
fn commands_of_the_index_of_symptoms_exist_with_their_flags() {
    let mut tried = 0;
    for (_, cells) in rows(&current::read(PAGE)) {
        let looks: Vec<&str> = code(&cells[2]).collect();
        assert_eq!(looks.len(), 1, "one command: {}", cells[2]);
        let others = cells.iter().flat_map(|cell| code(cell));
        for command in others.filter(|text| text.starts_with("flotilla-")) {
            let mut words = command.split_whitespace();
            let program = words.next().unwrap();
            let mut words: Vec<&str> = words.collect();
            if words.is_empty() || !["flotilla-gateway", "flotilla-agent"].contains(&program) {
                continue;
            }
            words.push("--help");
            let ran = run(program, &words);
            assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
            tried += 1;
        }
        let look = looks[0].split_whitespace().next().unwrap();
        let known = FOREIGN.contains(&look) || look.starts_with("flotilla-");
        assert!(known, "what is {look}?");
    }
    assert!(tried > 20, "only {tried} commands were found");
}
