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

/// Measurements at one batch size or prompt length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    /// Number of parallel requests, or tokens of the prompt.
    pub size: u32,
    /// Tokens per second of llama.cpp alone.
    pub raw: f64,
    /// Tokens per second through the scheduler.
    pub served: f64,
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
            Some(Point { size: size.parse().ok()?, raw: figure.value, served })
        };
        self.0.iter().filter_map(point).collect()
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
            lines.push(format!("{title:<18} {:>10} {:>10}  served/raw", "raw t/s", "served t/s"));
            for Point { size, raw, served } in self.points(prefix) {
                let ratio = served / raw;
                lines.push(format!("{size:>18} {raw:>10.1} {served:>10.1}  {ratio:>10.2}"));
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
        assert_eq!(figures.points("decode_batch_"), [Point { size: 1, raw: 40.0, served: 39.0 }]);
        assert_eq!(figures.phases(), [("start", 12.0), ("many", 512.0)]);
        let table = figures.table();
        let line = |text: &str| table.lines().find(|l| l.contains(text)).unwrap().to_string();
        assert!(line("40.0").contains("39.0"), "{table}");
        assert!(line("200.0").contains("0.95"), "{table}");
        assert!(line("plan_memory").contains("NO"), "{table}");
        assert!(line("decode_batch_1 ").contains("yes"), "{table}");
        assert!(!table.contains("memory_start"), "{table}");
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
