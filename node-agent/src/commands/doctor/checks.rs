//! PURE. Evaluates the facts: one finding per check.

mod cpus;
mod memory;
mod system;

use super::facts::Facts;
use super::finding::{Finding, Report};

/// All checks, in the order of the report. A check that does not apply returns `None`.
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

pub(crate) fn diagnose(facts: &Facts) -> Report {
    let mut findings: Vec<Finding> = CHECKS.iter().filter_map(|check| check(facts)).collect();
    findings.extend(facts.gateways.iter().map(|(url, reached)| system::gateway(url, reached)));
    Report::new(findings)
}

#[cfg(test)]
mod tests;
