//! Every expression of rules, alerts and dashboards, ready to be asked.

use serde_json::Value;

use super::read;

/// The dashboards.
pub const DASHBOARDS: [&str; 4] = ["fleet", "node", "tenants", "slo"];

/// Where an expression stands, and the expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// File and title.
    pub at: String,
    /// As it is asked: variables have values, and comparisons are left out.
    pub text: String,
}

/// A dashboard.
pub fn dashboard(name: &str) -> Value {
    serde_json::from_str(&read(&format!("configs/grafana/dashboards/{name}.json"))).unwrap()
}

/// The rules of a file: their names and expressions.
pub fn rules(file: &str) -> Vec<(String, serde_yaml::Value)> {
    let text = read(&format!("configs/prometheus/{file}"));
    let file: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    let groups = file["groups"].as_sequence().unwrap().clone();
    let rules = groups.iter().flat_map(|group| group["rules"].as_sequence().unwrap().clone());
    let name = |rule: &serde_yaml::Value| {
        let name = rule.get("alert").or_else(|| rule.get("record"));
        name.and_then(|name| name.as_str()).unwrap().to_string()
    };
    rules.map(|rule| (name(&rule), rule)).collect()
}

/// All of them.
pub fn all() -> Vec<Expression> {
    let mut all = Vec::new();
    for file in ["rules.yml", "alerts.yml"] {
        for (name, rule) in rules(file) {
            let at = format!("{file}: {name}");
            let text = rule["expr"].as_str().unwrap();
            let sides = comparisons(text).into_iter();
            all.extend(sides.map(|text| Expression { at: at.clone(), text }));
        }
    }
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        for panel in dashboard["panels"].as_array().unwrap() {
            let at = format!("{name}.json: {}", panel["title"]);
            let targets = panel.get("targets").and_then(Value::as_array);
            for target in targets.into_iter().flatten() {
                let text = with_values(target["expr"].as_str().unwrap());
                all.push(Expression { at: at.clone(), text });
            }
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            let at = format!("{name}.json: variable {}", variable["name"]);
            all.extend(values_of(variable).map(|text| Expression { at, text }));
        }
    }
    all
}

/// What a variable offers, as an expression.
fn values_of(variable: &Value) -> Option<String> {
    let query = variable["query"]["query"].as_str()?;
    let inner = query.strip_prefix("label_values(")?.strip_suffix(')')?;
    let (metric, label) = inner.split_once(", ")?;
    Some(format!("group by ({label}) ({metric}{{{label}!=\"\"}})"))
}

/// What Grafana writes for variables, for a second's scrapes and with everything chosen.
fn with_values(text: &str) -> String {
    let mut text = text.replace("$__rate_interval", "5s").replace("$__range", "1m");
    for variable in ["$class", "$node", "$tenant", "$model"] {
        text = text.replace(variable, ".*");
    }
    assert!(!text.contains('$'), "a variable that nobody knows: {text}");
    text
}

/// The two sides of each comparison of an alert that are no plain numbers: an alert that does not
/// rise has no data, and these must have some.
fn comparisons(text: &str) -> Vec<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sides = split(&text, &[" and "]).into_iter();
    let sides = sides.flat_map(|part| split(&part, &[" == ", " < ", " > "]));
    let is_number =
        |side: &String| side.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ' ' | '*'));
    sides.filter(|side| !is_number(side)).collect()
}

/// Splits where one of `by` stands outside of parentheses.
fn split(text: &str, by: &[&str]) -> Vec<String> {
    let (mut parts, mut depth, mut from, mut at) = (Vec::new(), 0, 0, 0);
    while at < text.len() {
        match text.as_bytes()[at] {
            b'(' | b'{' | b'[' => depth += 1,
            b')' | b'}' | b']' => depth -= 1,
            _ => {}
        }
        match by.iter().find(|by| depth == 0 && text[at..].starts_with(**by)) {
            Some(by) => {
                parts.push(text[from..at].to_string());
                at += by.len();
                from = at;
            }
            None => at += 1,
        }
    }
    parts.push(text[from..].to_string());
    parts
}

#[test]
fn alerts_are_taken_apart_at_their_comparisons() {
    let parts = |text| comparisons(text);
    assert_eq!(parts("up{job=\"a\"} == 0"), ["up{job=\"a\"}"]);
    assert_eq!(parts("a > 14.4 * 0.005 and b{c=\"d > e\"} > 2"), ["a", "b{c=\"d > e\"}"]);
    assert_eq!(parts("sum(a > 1) < 0.5 * b"), ["sum(a > 1)", "0.5 * b"]);
    assert_eq!(parts("(a or vector(0)) / b"), ["(a or vector(0)) / b"]);
}

#[test]
fn every_panel_asks_for_something() {
    let all = all();
    assert!(all.len() > 150, "{}", all.len());
    for name in DASHBOARDS {
        for panel in dashboard(name)["panels"].as_array().unwrap() {
            let asks = panel["targets"].as_array().is_some_and(|targets| !targets.is_empty());
            assert!(asks || panel["type"] == "row", "{name}: {}", panel["title"]);
        }
    }
}
