//! Rules, alerts and their texts.

use std::collections::BTreeSet;

use super::expressions::rules;
use super::prometheus::promtool;
use super::read;

#[test]
fn promtool_accepts_the_configuration_the_rules_and_their_tests() {
    for (command, file) in [
        (&["check", "config"][..], "prometheus.yml"),
        (&["check", "rules", "--lint=all", "--lint-fatal"][..], "rules.yml"),
        (&["check", "rules", "--lint=all", "--lint-fatal"][..], "alerts.yml"),
        (&["test", "rules"][..], "tests.yml"),
    ] {
        let file = format!("configs/prometheus/{file}");
        let arguments: Vec<&str> = command.iter().copied().chain([file.as_str()]).collect();
        let Some((ok, said)) = promtool(&arguments, "") else { return };
        assert!(ok, "{arguments:?}: {said}");
    }
}

#[test]
fn every_alert_is_tested_and_has_a_runbook() {
    let (tests, runbooks) = (read("configs/prometheus/tests.yml"), read("docs/runbooks.md"));
    let headings: BTreeSet<String> =
        runbooks.lines().filter_map(|line| Some(line.strip_prefix("## ")?.to_string())).collect();
    let alerts = rules("alerts.yml");
    assert!(alerts.len() > 20, "{}", alerts.len());
    for (name, rule) in &alerts {
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "no test raises {name}");
        let annotations = &rule["annotations"];
        for text in ["summary", "description"] {
            assert!(annotations[text].as_str().is_some_and(|t| !t.is_empty()), "{name}: {text}");
        }
        let link = annotations["runbook_url"].as_str().unwrap();
        assert_eq!(link, format!("docs/runbooks.md#{}", name.to_lowercase()));
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}");
    }
    let names = alerts.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(headings, names, "one heading of docs/runbooks.md for each alert, and no other");
}
