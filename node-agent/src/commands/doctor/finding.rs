//! PURE. The doctor's findings, as text and as JSON.

use std::fmt::{Display, Formatter, Result};

use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// Works well.
    Ok,
    /// Works, but could work better.
    Warn,
    /// Does not work.
    Fail,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub level: Level,
    /// What was checked: one word.
    pub name: &'static str,
    pub says: String,
    /// The command that fixes it, or shows what to fix.
    pub fix: Option<String>,
}

impl Finding {
    pub(crate) fn ok(name: &'static str, says: impl Into<String>) -> Self {
        Self { level: Level::Ok, name, says: says.into(), fix: None }
    }

    pub(crate) fn warn(
        name: &'static str,
        says: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warn, name, says: says.into(), fix: Some(fix.into()) }
    }

    pub(crate) fn fail(
        name: &'static str,
        says: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { level: Level::Fail, name, says: says.into(), fix: Some(fix.into()) }
    }
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// The worst level of all findings.
    pub level: Level,
    /// In the best order for reading.
    pub findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn new(findings: Vec<Finding>) -> Self {
        let level = findings.iter().map(|f| f.level).max().unwrap_or(Level::Ok);
        Self { level, findings }
    }

    pub(crate) fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|f| f.level == level).count()
    }
}

impl Display for Report {
    /// Writes a line for each finding, one more for its fix, and a summary, without a trailing
    /// newline.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for Finding { level, name, says, fix } in &self.findings {
            writeln!(f, "{:<4}  {name:<10}  {says}", level.name())?;
            if let Some(fix) = fix {
                writeln!(f, "{:18}fix: {fix}", "")?;
            }
        }
        let [ok, warn, fail] = [Level::Ok, Level::Warn, Level::Fail].map(|l| self.count(l));
        write!(f, "{ok} ok, {warn} to improve, {fail} to fix")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_as_bad_as_its_worst_finding_and_shows_every_fix() {
        let ok = Finding::ok("cpu", "fast");
        let warn = Finding::warn("swap", "is on", "swapoff -a");
        let report = Report::new(vec![ok.clone(), warn]);
        assert_eq!((report.level, report.count(Level::Warn)), (Level::Warn, 1));
        let text = report.to_string();
        assert!(text.contains("\n                  fix: swapoff -a\n"), "{text}");
        assert!(text.ends_with("1 ok, 1 to improve, 0 to fix"), "{text}");
        assert_eq!(Report::new(vec![ok]).level, Level::Ok);
    }
}
