//! Figures of several servers, and their medians as a table in Markdown and as lines of JSON.

use serde_json::json;

use crate::median;
use crate::peers::Peer;

/// Rows are figures, columns are servers.
pub struct Table {
    title: String,
    peers: Vec<&'static str>,
    rows: Vec<(String, Vec<Vec<f64>>)>,
    turns: u64,
}

impl Table {
    /// Empty; servers are added as they come.
    pub fn new(title: &str, peers: &[Peer]) -> Self {
        let peers = peers.iter().map(|peer| peer.name).collect();
        Self { title: title.into(), peers, rows: Vec::new(), turns: 0 }
    }

    /// All servers, in an order that changes from round to round, each with the number of this
    /// turn: prompts that contain it are new.
    pub fn turn<'a>(&mut self, round: u64, peers: &'a [Peer]) -> Vec<(u64, &'a Peer)> {
        self.turns += 1;
        let salt = 10_000 + self.turns;
        let first = round as usize % peers.len();
        let (before, after) = peers.split_at(first);
        after.iter().chain(before).map(|peer| (salt, peer)).collect()
    }

    /// One measurement.
    pub fn add(&mut self, row: &str, peer: &Peer, value: f64) {
        eprintln!("{} | {row} | {} | {value:.3}", self.title, peer.name);
        if !self.peers.contains(&peer.name) {
            self.peers.push(peer.name);
        }
        let column = self.peers.iter().position(|name| *name == peer.name).unwrap();
        let at = self.rows.iter().position(|(name, _)| name == row).unwrap_or(self.rows.len());
        if at == self.rows.len() {
            self.rows.push((row.into(), Vec::new()));
        }
        let values = &mut self.rows[at].1;
        values.resize_with(values.len().max(column + 1), Vec::new);
        values[column].push(value);
    }

    /// Prints medians.
    pub fn print(&self) {
        println!("\n{}\n\n| | {} |", self.title, self.peers.join(" | "));
        println!("| --- |{}", " --- |".repeat(self.peers.len()));
        for (row, columns) in &self.rows {
            let medians: Vec<f64> = columns.iter().map(|values| median(values.clone())).collect();
            let cells: Vec<String> = medians.iter().map(|value| shown(*value)).collect();
            println!("| {row} | {} |", cells.join(" | "));
        }
        for (row, columns) in &self.rows {
            for (peer, values) in self.peers.iter().zip(columns) {
                let figure = json!({"table": self.title, "row": row, "server": peer,
                    "median": median(values.clone()), "all": values});
                println!("{figure}");
            }
        }
    }
}

/// Three digits.
fn shown(value: f64) -> String {
    match value {
        v if !v.is_finite() => "none".into(),
        v if v >= 100.0 || v.fract() == 0.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
