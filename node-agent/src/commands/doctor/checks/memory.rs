//! PURE. Checks of memory: what the model needs, and the kernel's settings.

use inference_core::model_file::memory_plan::{LoadMode, PlanFailure, plan};
use inference_core::types::units::bytes;

use crate::commands::doctor::facts::{Facts, Model};
use crate::commands::doctor::finding::Finding;
use crate::commands::pull::reference::is_remote;
use crate::engine::plan_facts;

/// Less memory than this, in bytes, leaves no room for a useful model.
const ROOM_MIN: u64 = 1 << 30;
/// Swapping out a model costs more than dropping page cache; a swappiness above this makes it
/// likely.
const SWAPPINESS_MAX: u64 = 10;

pub(crate) fn model(facts: &Facts) -> Option<Finding> {
    let Model { file, header, wanted, .. } = facts.model.as_ref()?;
    let header = match header {
        Ok(header) => header,
        // `serve` downloads it.
        Err(why) if is_remote(file) => {
            return Some(Finding::warn(
                "model",
                why,
                format!("flotilla-agent pull --cache {file}"),
            ));
        }
        Err(why) => {
            let fix = format!("flotilla-agent pull URL --to {}", facts.disk.folder);
            return Some(Finding::fail("model", why, fix));
        }
    };
    Some(match plan(header, &plan_facts::facts(&facts.machine), wanted) {
        Ok(plan) => {
            let (slots, tokens) = (plan.slots, plan.context_tokens);
            let (needed, available) = (bytes(plan.needed_bytes), bytes(plan.available_bytes));
            Finding::ok(
                "model",
                format!("{file}: {slots} slots of {tokens} tokens need {needed} of {available}"),
            )
        }
        Err(PlanFailure::Refused(refusal)) => {
            Finding::fail("model", refusal.to_string(), format!("flotilla-agent plan {file}"))
        }
        Err(PlanFailure::Error(error)) => {
            let fix = format!("flotilla-agent check {file}");
            Finding::warn("model", format!("no memory plan is possible: {error}"), fix)
        }
    })
}

pub(crate) fn room(facts: &Facts) -> Option<Finding> {
    let memory = &facts.machine.memory;
    let (room, by) = (memory.available_here, &memory.bound_by);
    let says = format!("{} available for the model (limited by {by})", bytes(room));
    Some(match room < ROOM_MIN {
        true => Finding::warn("memory", says, "ps aux --sort=-rss | head (what else uses memory)"),
        false => Finding::ok("memory", says),
    })
}

/// An idle model should not be the first to be swapped out.
pub(crate) fn swap(facts: &Facts) -> Option<Finding> {
    let memory = &facts.machine.memory;
    if memory.swap_total == 0 {
        return Some(Finding::ok("swap", "no swap"));
    }
    let (size, swappiness) = (bytes(memory.swap_total), memory.swappiness.unwrap_or(60));
    let says = format!("{size} of swap, vm.swappiness is {swappiness}");
    Some(match swappiness > SWAPPINESS_MAX {
        true => Finding::warn(
            "swap",
            format!("{says}: an idle model may be swapped out"),
            sysctl("swap", &format!("vm.swappiness={SWAPPINESS_MAX}")),
        ),
        false => Finding::ok("swap", says),
    })
}

/// Without overcommit, the kernel refuses large buffers although there is memory.
pub(crate) fn overcommit(facts: &Facts) -> Option<Finding> {
    let says = |mode: u64| format!("vm.overcommit_memory is {mode}");
    Some(match facts.machine.memory.overcommit? {
        2 => Finding::warn(
            "overcommit",
            format!("{}: large allocations may fail", says(2)),
            sysctl("overcommit", "vm.overcommit_memory=0"),
        ),
        mode => Finding::ok("overcommit", says(mode)),
    })
}

/// Small pages cost a few percent of speed.
pub(crate) fn huge_pages(facts: &Facts) -> Option<Finding> {
    let mode = facts.machine.memory.huge_pages.as_deref()?;
    let says = format!("transparent huge pages: {mode}");
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    Some(match mode == "never" {
        true => Finding::warn(
            "hugepages",
            format!("{says}: all memory uses small pages"),
            format!(
                "echo 'w {file} - - - - madvise' | sudo tee /etc/tmpfiles.d/flotilla.conf && sudo \
                 systemd-tmpfiles --create flotilla.conf"
            ),
        ),
        false => Finding::ok("hugepages", says),
    })
}

/// If the weights are to be locked, the limit must allow it.
pub(crate) fn locked(facts: &Facts) -> Option<Finding> {
    let model = facts.model.as_ref().filter(|m| m.wanted.load == LoadMode::Mlock)?;
    let needs = model.bytes;
    Some(match facts.machine.memory.lockable {
        Some(limit) if limit < needs => Finding::fail(
            "mlock",
            format!(
                "the limit for locked memory is {}, the model needs {}",
                bytes(limit),
                bytes(needs)
            ),
            "ulimit -l unlimited (the packaged unit has LimitMEMLOCK=infinity)",
        ),
        _ => Finding::ok("mlock", "the model can be locked in memory"),
    })
}

/// An address space limit also counts mapped files.
pub(crate) fn address_space(facts: &Facts) -> Option<Finding> {
    let space = facts.machine.memory.address_space?;
    Some(Finding::warn(
        "rlimit",
        format!("RLIMIT_AS is {}: mapped model files count too", bytes(space)),
        "ulimit -v unlimited",
    ))
}

/// The command that changes a kernel setting, now and after the next boot.
fn sysctl(name: &str, setting: &str) -> String {
    let file = format!("/etc/sysctl.d/90-flotilla-{name}.conf");
    format!("echo {setting} | sudo tee {file} && sudo sysctl -p {file}")
}
