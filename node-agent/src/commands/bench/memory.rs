//! Measures the memory of one engine in a separate process, phase by phase, and compares it with
//! the memory plan.
//!
//! With mapped weights, pages of the file that were only read to be copied into another layout stay
//! resident as long as memory is not short. The plan counts those separately, and so does the
//! comparison here.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::time::Duration;

use inference_core::hardware::files::Root;
use inference_core::hardware::report::Machine;
use inference_core::llama::{ContextOptions, LlamaModel};
use inference_core::model_file::gguf::Header;
use inference_core::model_file::memory_plan::{
    LoadMode, MachineFacts, Plan, PlanFailure, RequestedSettings, plan,
};
use inference_core::tools::bench::{Bench, prompt};
use inference_core::types::request::Sampling;
use serde::{Deserialize, Serialize};

use super::Setup;
use super::report::Figure;
use crate::engine::measuring::ChildArgs;
use crate::engine::measuring::{
    MeasuringChild, command, load_confined, prepare_child, write_answer,
};
use crate::engine::plan_facts::facts;
use crate::types::exit::Failed;

/// Number of parallel requests, and their slots.
const SLOTS: u32 = 16;
/// Maximum tokens of one request: together they fill the pool.
const CONTEXT_TOKENS: u32 = 256;
const PROMPT_TOKENS: u32 = 200;
const ANSWER_TOKENS: u32 = 48;
/// Enough to load from a slow disk and run sixteen requests on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(1800);
const MEBIBYTE: f64 = 1_048_576.0;

/// Resident memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Resident {
    /// Of the process: `VmRSS`.
    all: u64,
    /// Part of `all`: pages of the mapped model file.
    model_file: u64,
}

/// Resident memory at the start, with weights and a context, after one request, and after sixteen
/// parallel ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Phases {
    start: Resident,
    loaded: Resident,
    one: Resident,
    many: Resident,
}

/// `memory-trial`: runs the phases and prints their memory.
pub(crate) fn child(args: &ChildArgs) -> Result<(), String> {
    prepare_child()?;
    let setup: Setup =
        serde_json::from_str(&args.options).map_err(|e| format!("--options: {e}"))?;
    let path = args.model.canonicalize().map_err(|e| e.to_string())?;
    let mut sources = Sources::open()?;
    let start = sources.resident(&path)?;
    let weights = load_confined(&args.model, setup.sandbox, setup.kernel, LoadMode::Mmap)?;
    let options = ContextOptions {
        slots: SLOTS,
        context_tokens: CONTEXT_TOKENS,
        kv_cells: SLOTS * CONTEXT_TOKENS,
        threads: setup.threads,
        ..ContextOptions::default()
    };
    let model = LlamaModel::new(weights, options).map_err(|e| e.to_string())?;
    let loaded = sources.resident(&path)?;
    let mut bench = Bench::new(model);
    let ask = |bench: &mut Bench<_>, n| {
        bench.submit(prompt(n, PROMPT_TOKENS), ANSWER_TOKENS, Sampling::GREEDY)
    };
    let first = ask(&mut bench, 0);
    bench.finish(&[first]);
    let one = sources.resident(&path)?;
    let all: Vec<_> = (1..=SLOTS).map(|n| ask(&mut bench, n)).collect();
    bench.finish(&all);
    write_answer(&Phases { start, loaded, one, many: sources.resident(&path)? })
}

/// The kernel's files about this process. They are opened while the sandbox still allows it;
/// reading from the start returns the current state.
struct Sources {
    status: File,
    smaps: File,
}

impl Sources {
    fn open() -> Result<Self, String> {
        let open = |path| File::open(path).map_err(|e| format!("{path}: {e}"));
        Ok(Self { status: open("/proc/self/status")?, smaps: open("/proc/self/smaps")? })
    }

    fn resident(&mut self, model: &Path) -> Result<Resident, String> {
        let all = status_bytes(&text(&mut self.status)?, "VmRSS:");
        let model_file = mapped_bytes(&text(&mut self.smaps)?, &model.to_string_lossy());
        Ok(Resident { all: all.ok_or("/proc/self/status has no VmRSS")?, model_file })
    }
}

fn text(file: &mut File) -> Result<String, String> {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    read.map(|_| text).map_err(|e| format!("/proc/self: {e}"))
}

/// The value in bytes of a line such as `VmRSS:    1234 kB`.
fn status_bytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    value.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Resident pages of all mappings of a file, from the text of `smaps`.
fn mapped_bytes(smaps: &str, path: &str) -> u64 {
    let mut inside = false;
    let mut sum = 0u64;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if !first.ends_with(':') {
            inside = line.ends_with(path);
        } else if inside && first == "Rss:" {
            sum = sum.saturating_add(status_bytes(line, "Rss:").unwrap_or(0));
        }
    }
    sum
}

/// The memory plan for the same sizes.
fn planned(header: &Header, threads: u32) -> Option<Plan> {
    let machine = Machine::read(&Root::machine(), std::env::consts::ARCH);
    let facts = MachineFacts { threads: u64::from(threads), ..facts(&machine) };
    let wanted = RequestedSettings {
        slots: Some(u64::from(SLOTS)),
        context_tokens: Some(u64::from(CONTEXT_TOKENS)),
        kv_cells: Some(u64::from(SLOTS * CONTEXT_TOKENS)),
        ..RequestedSettings::default()
    };
    match plan(header, &facts, &wanted) {
        Ok(plan) => Some(plan),
        Err(PlanFailure::Refused(refusal)) => Some(refusal.plan),
        Err(PlanFailure::Error(_)) => None,
    }
}

/// Measures; returns the figures in the order of the phases, and the comparison with the plan if
/// there is one.
pub(crate) fn measure(model: &Path, header: &Header, setup: Setup) -> Result<Vec<Figure>, Failed> {
    let mut child = MeasuringChild::start(command("memory-trial", model, &setup)?)?;
    let phases: Phases =
        child.receive(TIMEOUT).map_err(|e| Failed::data(format_args!("measuring memory: {e}")))?;
    let figure = |name: &str, resident: Resident, how: &str| {
        let how = format!("MiB resident {how}");
        Figure::new(name, resident.all as f64 / MEBIBYTE, None, &how)
    };
    let mut figures = vec![
        figure("memory_start", phases.start, "at process start"),
        figure("memory_loaded", phases.loaded, "with weights and a context of 16 slots"),
        figure("memory_one", phases.one, "after one request"),
        figure("memory_many", phases.many, "after 16 parallel requests"),
    ];
    if let Some(plan) = planned(header, setup.threads) {
        let (mapped, needed) = (plan.parts.weights_mapped, plan.needed_bytes);
        let kept = needed_of(phases.many, mapped);
        let how = "MiB of that, without pages of the file that the kernel may drop";
        figures.push(Figure::new("memory_needed", kept as f64 / MEBIBYTE, None, how));
        let mebibytes = needed as f64 / MEBIBYTE;
        figures.push(Figure::new("memory_planned", mebibytes, None, "MiB according to the plan"));
        let ratio = kept as f64 / needed.max(1) as f64;
        figures.push(Figure::new("plan_memory", ratio, Some("0.9 to 1.0"), "needed / planned"));
    }
    Ok(figures)
}

/// Resident memory, counting only those pages of the model file that computing uses.
fn needed_of(resident: Resident, mapped: u64) -> u64 {
    resident.all.saturating_sub(resident.model_file.saturating_sub(mapped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_pages_of_the_model_are_told_from_the_others() {
        let smaps = "\
7f00-7f10 r--p 00000000 fe:00 12 /models/my model.gguf
Size:              100 kB
Rss:                40 kB
7f10-7f20 r--p 00000000 fe:00 12 /models/my model.gguf
Rss:                 2 kB
VmFlags: rd mr mw me
7f20-7f30 rw-p 00000000 00:00 0
Rss:                64 kB
";
        assert_eq!(mapped_bytes(smaps, "/models/my model.gguf"), 42 * 1024);
        assert_eq!(status_bytes("Name:\tx\nVmRSS:\t  123 kB\n", "VmRSS:"), Some(123 * 1024));
        assert_eq!(status_bytes("", "VmRSS:"), None);
        let mut sources = Sources::open().unwrap();
        let own = sources.resident(Path::new("/nowhere.gguf")).unwrap();
        assert!(sources.resident(Path::new("/")).unwrap().all > 0, "as often as one likes");
        assert!(own.all > 0 && own.model_file == 0);
    }

    #[test]
    fn pages_that_may_leave_memory_are_not_what_a_model_takes() {
        let resident = Resident { all: 1000, model_file: 600 };
        assert_eq!(needed_of(resident, 200), 600);
        assert_eq!(needed_of(resident, 700), 1000, "not yet read: nothing is made up");
    }
}
