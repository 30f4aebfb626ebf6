//! PURE. Prints figures: JSON lines for programs, a table for people.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One measured figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Name; the table finds its parts by name prefixes.
    pub name: String,
    /// In the unit that `how` names.
    pub value: f64,
    /// The target, if there is one, as a comparison.
    pub aim: Option<Cow<'static, str>>,
    /// What was measured, and its unit.
    pub how: String,
}

impl Figure {
    /// Rounds `value` to three decimals.
    pub(crate) fn new(name: &str, value: f64, aim: Option<&'static str>, how: &str) -> Self {
        let value = (value * 1000.0).round() / 1000.0;
        Self { name: name.into(), value, aim: aim.map(Cow::Borrowed), how: how.into() }
    }

    /// Formats it as a line of JSON.
    pub(crate) fn json(&self) -> Value {
        json!({"name": self.name, "value": self.value, "aim": self.aim, "how": self.how})
    }

    /// True if it meets its aim; `None` without one.
    pub(crate) fn is_met(&self) -> Option<bool> {
        let aim = self.aim.as_deref()?;
        let number = |text: &str| text.trim().parse::<f64>().ok();
        if let Some((least, most)) = aim.split_once(" to ") {
            return Some((number(least)?..=number(most)?).contains(&self.value));
        }
        let (sign, bound) = aim.split_once(' ')?;
        let bound = number(bound)?;
        match sign {
            ">=" => Some(self.value >= bound),
            "<=" => Some(self.value <= bound),
            _ => None,
        }
    }
}

/// All figures of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Figures(pub Vec<Figure>);

/// What a step computes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    /// Tokens.
    pub rows: u32,
    /// Tokens whose successors are wanted: all in decoding, the last one of a prompt.
    pub outputs: u32,
}

/// Measurements at one batch size or prompt length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// Number of parallel requests, or tokens of the prompt.
    pub size: u32,
    /// Tokens per second of llama.cpp alone.
    pub raw: f64,
    /// Tokens per second through the scheduler.
    pub served: f64,
    /// Tokens per second that the machine allows at most, if that was measured.
    pub limit: Option<f64>,
}

impl Figures {
    pub(crate) fn value(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|f| f.name == name).map(|f| f.value)
    }

    /// Figures `{prefix}{size}_raw` and `_served`, in order of measurement.
    pub(crate) fn points(&self, prefix: &str) -> Vec<Point> {
        let point = |figure: &Figure| {
            let size = figure.name.strip_prefix(prefix)?.strip_suffix("_raw")?;
            let served = self.value(&format!("{prefix}{size}_served"))?;
            let limit = self.value(&format!("{prefix}{size}_limit"));
            Some(Point { size: size.parse().ok()?, raw: figure.value, served, limit })
        };
        self.0.iter().filter_map(point).collect()
    }

    /// For each point, what the machine allows at most with so many rows in a step, and how much of
    /// it llama.cpp with our kernels uses.
    pub(crate) fn limits(&self, limit: impl Fn(Step) -> Option<f64>) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (prefix, is_prompt) in [("decode_batch_", false), ("prefill_", true)] {
            for Point { size, raw, .. } in self.points(prefix) {
                let outputs = if is_prompt { 1 } else { size };
                let Some(most) = limit(Step { rows: size, outputs }) else { continue };
                let how = "tokens/s that memory and arithmetic of this machine allow at most";
                let name = format!("{prefix}{size}");
                figures.push(Figure::new(&format!("{name}_limit"), most, None, how));
                figures.push(Figure::new(&format!("{name}_used"), raw / most, None, "raw / limit"));
            }
        }
        figures
    }

    /// Resident memory in MiB, phase by phase.
    pub(crate) fn phases(&self) -> Vec<(&str, f64)> {
        fn phase(figure: &Figure) -> Option<(&str, f64)> {
            Some((figure.name.strip_prefix("memory_")?, figure.value))
        }
        self.0.iter().filter_map(phase).collect()
    }

    pub(crate) fn table(&self) -> String {
        let mut lines = Vec::new();
        for (title, prefix) in
            [("decode, parallel", "decode_batch_"), ("prefill, tokens", "prefill_")]
        {
            let columns = ["raw t/s", "served t/s", "served/raw", "limit t/s", "used"];
            let [raw, served, ratio, limit, used] = columns;
            let head = format!("{title:<18} {raw:>10} {served:>10} {ratio:>11}");
            lines.push(format!("{head} {limit:>10} {used:>6}"));
            for Point { size, raw, served, limit } in self.points(prefix) {
                let ratio = served / raw;
                let row = format!("{size:>18} {raw:>10.1} {served:>10.1} {ratio:>11.2}");
                let most = limit.map_or(format!("{:>10} {:>6}", "-", "-"), |limit| {
                    format!("{limit:>10.1} {:>5.0}%", 100.0 * raw / limit)
                });
                lines.push(format!("{row} {most}"));
            }
            lines.push(String::new());
        }
        lines.push(format!("{:<18} {:>10}", "resident memory", "MiB"));
        for (phase, mebibytes) in self.phases() {
            lines.push(format!("{phase:>18} {mebibytes:>10.0}"));
        }
        lines.push(String::new());
        lines.push(format!("{:<26} {:>9}  {:<12} {:<5} how", "figure", "value", "aim", "met"));
        let in_a_part = |f: &&Figure| {
            let parts = ["decode_batch_", "prefill_", "memory_"];
            f.aim.is_none() && parts.iter().any(|p| f.name.starts_with(p))
        };
        for figure in self.0.iter().filter(|f| !in_a_part(f)) {
            let met = match figure.is_met() {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "",
            };
            let (name, aim, how) = (&figure.name, figure.aim.as_deref().unwrap_or(""), &figure.how);
            lines.push(format!("{name:<26} {:>9.3}  {aim:<12} {met:<5} {how}", figure.value));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let f = |name: &str, value, aim| Figure::new(name, value, aim, "how it was");
        Figures(vec![
            f("decode_batch_1_raw", 40.0, None),
            f("decode_batch_1_served", 39.0, None),
            f("decode_batch_1", 0.975, Some(">= 0.97")),
            f("decode_batch_1_limit", 80.0, None),
            f("prefill_128_raw", 200.0, None),
            f("prefill_128_served", 190.0, None),
            f("memory_start", 12.0, None),
            f("memory_many", 512.0, None),
            f("plan_memory", 1.2, Some("0.9 to 1.0")),
        ])
    }

    #[test]
    fn aims_are_bounds_or_ranges() {
        let met = |value, aim| Figure::new("n", value, aim, "").is_met();
        assert_eq!(
            (met(0.97, Some(">= 0.97")), met(0.96, Some(">= 0.97"))),
            (Some(true), Some(false))
        );
        assert_eq!((met(4.0, Some("<= 4")), met(4.1, Some("<= 4"))), (Some(true), Some(false)));
        assert_eq!(met(0.95, Some("0.9 to 1.0")), Some(true));
        assert_eq!(met(1.05, Some("0.9 to 1.0")), Some(false));
        assert_eq!(met(1.0, None), None);
    }

    #[test]
    fn the_table_has_every_part_and_marks_what_misses_its_aim() {
        let figures = figures();
        assert_eq!(
            figures.points("decode_batch_"),
            [Point { size: 1, raw: 40.0, served: 39.0, limit: Some(80.0) }]
        );
        assert_eq!(figures.phases(), [("start", 12.0), ("many", 512.0)]);
        let table = figures.table();
        let line = |text: &str| table.lines().find(|l| l.contains(text)).unwrap().to_string();
        assert!(line("40.0").contains("39.0") && line("40.0").ends_with("80.0    50%"), "{table}");
        assert!(line("200.0").contains("0.95"), "{table}");
        assert!(line("plan_memory").contains("NO"), "{table}");
        assert!(line("decode_batch_1 ").contains("yes"), "{table}");
        assert!(!table.contains("memory_start"), "{table}");
    }

    #[test]
    fn each_point_has_a_limit_and_how_much_of_it_is_used() {
        let limits = figures().limits(|step| (step.rows == 1).then_some(50.0));
        let found: Vec<_> = limits.iter().map(|f| (f.name.as_str(), f.value)).collect();
        assert_eq!(found, [("decode_batch_1_limit", 50.0), ("decode_batch_1_used", 0.8)]);
    }

    #[test]
    fn a_line_of_json_has_four_keys() {
        let line = figures().0[2].json().to_string();
        assert_eq!(
            line,
            r#"{"name":"decode_batch_1","value":0.975,"aim":">= 0.97","how":"how it was"}"#
        );
    }
}
