//! The reference of the metrics is what the code says.

use std::fmt::Write;

use fleet_tests::root;
use flotilla_gateway::observability::metrics::EndpointKind;
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::scheduler::routing_stats::{Forecast, Lookup, Reason};
use flotilla_gateway::server::guards::CloseReason;
use flotilla_gateway::types::class::Class;
use flotilla_gateway::types::limits::QueueLimit;
use inference_protocol::fleet::NodeState;

use super::read;

const FILE: &str = "docs/metrics.md";

/// A family, as the reference lists it.
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: &'static str,
    labels: Vec<String>,
    help: String,
}

macro_rules! listed {
    ($metrics:expr) => {
        $metrics
            .unwrap()
            .list()
            .unwrap()
            .into_iter()
            .map(|m| Listed { name: m.name, kind: m.kind, labels: m.labels, help: m.help })
            .collect()
    };
}

/// Those of the gateway.
pub fn gateway() -> Vec<Listed> {
    listed!(flotilla_gateway::observability::metrics::Metrics::new())
}

/// Those of the agent.
pub fn agent() -> Vec<Listed> {
    listed!(flotilla_agent::serve::metrics::Metrics::new())
}

fn table(families: &[Listed]) -> String {
    let mut text =
        String::from("| Name | Type | Labels | What it says |\n| --- | --- | --- | --- |\n");
    for Listed { name, kind, labels, help } in families {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        writeln!(text, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    text
}

fn closed_sets() -> String {
    let mut text = String::from("| Label | Values |\n| --- | --- |\n");
    let mut row = |label: &str, values: Vec<&str>| {
        let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
        writeln!(text, "| {label} | {} |", values.join(", ")).unwrap();
    };
    row("`class`", Class::ALL.map(Class::name).to_vec());
    row("`endpoint_kind`", EndpointKind::ALL.map(EndpointKind::name).to_vec());
    row("`fault`", vec!["none", "client", "gateway", "node"]);
    row("`kind` of tokens", vec!["prompt", "cached", "completion"]);
    row("`state` of nodes", NodeState::ALL.map(NodeState::name).to_vec());
    row("`policy`", Policy::ALL.map(Policy::name).to_vec());
    row("`reason` of routing decisions", Reason::ALL.map(Reason::name).to_vec());
    row("`result` of prefix lookups", Lookup::ALL.map(Lookup::name).to_vec());
    row("`result` of forecasts", Forecast::ALL.map(Forecast::name).to_vec());
    row("`reason` of refusals by a full queue", QueueLimit::ALL.map(QueueLimit::reason).to_vec());
    row("`reason` of closed connections", CloseReason::ALL.map(CloseReason::name).to_vec());
    text
}

/// The reference, with its tables as the code makes them: what stands between two marks is
/// replaced.
fn current(text: &str) -> String {
    let mut text = text.to_string();
    let parts =
        [("labels", closed_sets()), ("gateway", table(&gateway())), ("agent", table(&agent()))];
    for (name, table) in parts {
        let (begin, end) = (format!("<!-- {name} -->\n\n"), format!("\n<!-- end {name} -->"));
        let from = text.find(&begin).expect("a mark is missing") + begin.len();
        let to = text.find(&end).expect("a mark is missing");
        text.replace_range(from..to, &table);
    }
    text
}

#[test]
fn the_reference_of_the_metrics_is_current() {
    let written = read(FILE);
    let current = current(&written);
    if std::env::var_os("FLOTILLA_WRITE_DOCS").is_some() {
        std::fs::write(root().join(FILE), current).unwrap();
        return;
    }
    let differs = written.lines().zip(current.lines()).find(|(w, c)| w != c);
    assert!(
        written == current,
        "{FILE} is not current, from {differs:?}; write it with FLOTILLA_WRITE_DOCS=1 cargo test \
         --release --locked --workspace --test observability reference"
    );
}
