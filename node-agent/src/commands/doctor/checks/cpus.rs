//! PURE. Checks of the CPUs.

use inference_core::hardware::simd::Level as Simd;

use crate::commands::doctor::facts::Facts;
use crate::commands::doctor::finding::Finding;

/// Fraction of CPU time that other machines may steal before it has a noticeable effect.
const STEAL_MAX: f64 = 0.03;
/// The instruction sets of the baseline kernels on x86-64.
const BASELINE: [Simd; 4] = [Simd::Avx2, Simd::Fma, Simd::F16c, Simd::Bmi2];

/// Whether there are kernels for this CPU: by testing them, or else by its claims.
pub(crate) fn kernels(facts: &Facts) -> Option<Finding> {
    let machine = &facts.machine;
    let look =
        "lscpu; in a virtual machine, set the CPU type to the host's, or use another machine";
    match &facts.kernel {
        Some(Ok(what)) => {
            return Some(Finding::ok("cpu", format!("{}: {what}", machine.cpus.model)));
        }
        Some(Err(why)) => return Some(Finding::fail("cpu", why, look)),
        None => {}
    }
    let claimed = |level: &Simd| machine.simd.iter().any(|s| s.level == *level && s.claimed);
    let needed = if machine.architecture == "x86_64" { &BASELINE[..] } else { &[] };
    let missing: Vec<&str> = needed.iter().filter(|l| !claimed(l)).map(|l| l.name()).collect();
    Some(match missing.is_empty() {
        true => Finding::ok(
            "cpu",
            format!("{} supports the instructions that the kernels need", machine.cpus.model),
        ),
        false => {
            let missing = missing.join(", ");
            Finding::fail("cpu", format!("{} lacks {missing}", machine.cpus.model), look)
        }
    })
}

/// Only physical cores count; their second threads share the same units.
pub(crate) fn cores(facts: &Facts) -> Option<Finding> {
    let (cpus, threads) = (&facts.machine.cpus, facts.machine.threads);
    if cpus.cores_allowed < cpus.cores {
        let says = format!("this process may use {} of {} cores", cpus.cores_allowed, cpus.cores);
        let fix = "systemctl set-property flotilla-agent.service AllowedCPUs= (or the container's cpuset)";
        return Some(Finding::warn("cores", says, fix));
    }
    let logical = match cpus.smt {
        true => format!(" with {} hardware threads", cpus.logical),
        false => String::new(),
    };
    Some(Finding::ok("cores", format!("{} cores{logical}: {threads} compute", cpus.cores)))
}

/// A quota below the number of cores stops all threads in the middle of a token.
pub(crate) fn quota(facts: &Facts) -> Option<Finding> {
    let (group, cpus) = (&facts.machine.cgroup, &facts.machine.cpus);
    let quota = group.cpu_quota.filter(|quota| *quota < cpus.cores_allowed as f64)?;
    let (of, threads) = (group.cpu_quota_of.as_deref().unwrap_or_default(), facts.machine.threads);
    let says = format!("the control group {of} allows {quota} CPUs: {threads} compute");
    let fix = "systemctl set-property flotilla-agent.service CPUQuota= (or the container's --cpus)";
    // Whole CPUs are deliberate; a fraction of a CPU is wasted.
    match quota.fract() == 0.0 {
        true => Some(Finding::ok("quota", says)),
        false => Some(Finding::warn("quota", format!("{says}, the rest is wasted"), fix)),
    }
}

/// Cores that save power start every burst slowly.
pub(crate) fn governor(facts: &Facts) -> Option<Finding> {
    let names: Vec<&str> = facts.governors.iter().map(String::as_str).collect();
    match names.as_slice() {
        [] => None,
        ["performance"] => Some(Finding::ok("governor", "the cores run at full frequency")),
        _ => Some(Finding::warn(
            "governor",
            format!(
                "the frequency governor is '{}', which raises the frequency too late",
                names.join(", ")
            ),
            "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
        )),
    }
}

/// Time that the host gave to others while this machine wanted it.
pub(crate) fn steal(facts: &Facts) -> Option<Finding> {
    let share = facts.steal?;
    let says =
        format!("other machines took {:.1} % of the CPU time since boot (steal)", share * 100.0);
    Some(match share > STEAL_MAX {
        true => {
            Finding::warn("steal", says, "vmstat 1 5 (column st); use a plan with dedicated CPUs")
        }
        false => Finding::ok("steal", says),
    })
}

/// One engine across several NUMA nodes is slower than one on each.
pub(crate) fn numa(facts: &Facts) -> Option<Finding> {
    let count = facts.machine.memory.nodes.iter().filter(|node| node.total > 0).count();
    (count > 1).then(|| {
        Finding::warn(
            "numa",
            format!("{count} NUMA nodes: an agent on each is faster than one on all"),
            "numactl --cpunodebind=0 --membind=0 flotilla-agent serve ... (and so for each)",
        )
    })
}
