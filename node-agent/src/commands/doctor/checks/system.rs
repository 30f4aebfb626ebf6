//! PURE. Checks of the system: limits, disk, clock, gateways.

use inference_core::types::units::bytes;

use crate::commands::doctor::facts::{Facts, JoinCheck};
use crate::commands::doctor::finding::Finding;

/// Enough for client connections and files, with a margin.
const OPEN_FILES_MIN: u64 = 4096;
/// Less free space than this, in bytes, holds no model.
const FREE_MIN: u64 = 2 << 30;

/// Each connection is an open file.
pub(crate) fn open_files(facts: &Facts) -> Option<Finding> {
    let limit = facts.open_files?;
    let says = format!("a process may open {limit} files");
    Some(match limit < OPEN_FILES_MIN {
        true => Finding::warn(
            "files",
            says,
            "ulimit -n 65536 (the packaged unit has LimitNOFILE=65536)",
        ),
        false => Finding::ok("files", says),
    })
}

/// The sandbox keeps a hostile model file from doing harm.
pub(crate) fn sandbox(facts: &Facts) -> Option<Finding> {
    let sandbox = match facts.sandbox.as_ref()? {
        Ok(sandbox) => sandbox,
        Err(why) => {
            let says = format!("the sandbox could not be tested: {why}");
            return Some(Finding::warn("sandbox", says, "flotilla-agent sandbox-trial"));
        }
    };
    let says = format!("the sandbox restricts: {sandbox}");
    Some(match sandbox.missing() {
        None => Finding::ok("sandbox", says),
        Some(why) => Finding::warn(
            "sandbox",
            format!("{says} ({why})"),
            "cat /sys/kernel/security/lsm (Linux 5.13 or later with landlock in this list)",
        ),
    })
}

pub(crate) fn disk(facts: &Facts) -> Option<Finding> {
    let folder = &facts.disk.folder;
    let Some(free) = facts.disk.free else {
        let fix = format!("sudo mkdir -p {folder}");
        return Some(Finding::warn("disk", format!("{folder} cannot be read"), fix));
    };
    let says = format!("{} free in {folder}", bytes(free));
    Some(match free < FREE_MIN {
        true => Finding::warn("disk", says, format!("sudo du -xh {folder} | sort -h | tail")),
        false => Finding::ok("disk", says),
    })
}

/// TLS and comparing the logs of several machines require a correct clock. A container uses its
/// host's.
pub(crate) fn clock(facts: &Facts) -> Option<Finding> {
    if let Some(service) = facts.clock {
        return Some(Finding::ok("clock", format!("synchronized by {service}")));
    }
    if facts.machine.container.is_some() {
        return None;
    }
    Some(Finding::warn(
        "clock",
        "no time synchronization service found",
        "sudo apt-get install systemd-timesyncd && sudo timedatectl set-ntp true",
    ))
}

pub(crate) fn gateway(url: &str, reached: &JoinCheck) -> Finding {
    match reached {
        JoinCheck::Accepted => Finding::ok("gateway", format!("{url} accepts the join key")),
        JoinCheck::Refused(why) => Finding::fail(
            "gateway",
            format!("{url}: {why}"),
            "copy the gateway's join key, /etc/flotilla/join.key there, to this machine",
        ),
        JoinCheck::Unreachable(why) => Finding::fail(
            "gateway",
            format!("{url}: {why}"),
            format!("curl -v {}/livez", url.trim_end_matches('/')),
        ),
    }
}
