//! PURE. What follows from the facts: one finding for each thing that was looked at.

mod cpus;
mod memory;
mod system;

use super::facts::Facts;
use super::finding::{Finding, Report};

/// Everything that is looked at, in the order of the report. A check without an opinion says
/// nothing.
const CHECKS: [fn(&Facts) -> Option<Finding>; 17] = [
    cpus::kernels,
    cpus::cores,
    cpus::quota,
    cpus::governor,
    cpus::steal,
    cpus::numa,
    memory::model,
    memory::room,
    memory::swap,
    memory::overcommit,
    memory::huge_pages,
    memory::locked,
    memory::address_space,
    system::sandbox,
    system::open_files,
    system::disk,
    system::clock,
];

/// Looks at everything.
pub fn diagnose(facts: &Facts) -> Report {
    let mut findings: Vec<Finding> = CHECKS.iter().filter_map(|check| check(facts)).collect();
    findings.extend(facts.gateways.iter().map(|(url, reached)| system::gateway(url, reached)));
    Report::new(findings)
}

#[cfg(test)]
mod tests;
