//! Model files with something wrong in them: thousands are judged by what reads a header here,
//! some hundreds are loaded. Nothing panics, nothing hangs, and each gets one line.
//!
//! `FLOTILLA_FUZZ_SEED` repeats a run, `FLOTILLA_FUZZ_HEADERS` and `FLOTILLA_FUZZ_MODELS` say how
//! many are judged and loaded.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fleet_tests::demo_model;
use fleet_tests::process::{Folder, run};
use inference_core::model_file::gguf::{HeaderError, read_header};
use inference_core::model_file::memory_plan::weights::Repacking;
use inference_core::model_file::memory_plan::{MachineFacts, RequestedSettings, plan};

use crate::hostile::number;

mod file;

use file::Original;

/// Headers of each of the two models.
const HEADERS: u64 = 5000;
/// Files of each that are loaded.
const MODELS: u64 = 200;
/// Files that one process loads, one after the other.
const BATCH: usize = 20;

fn originals(folder: &Folder) -> [Original; 2] {
    let tiny = folder.path().join("tiny.gguf");
    let made = run(
        "flotilla-agent",
        &["synth", "--shape", "tiny", "--quant", "q4_0", tiny.to_str().unwrap()],
    );
    assert_eq!(made.code, Some(0), "{made:?}");
    [tiny, demo_model()].map(|path| Original::new(std::fs::read(path).unwrap()))
}

/// Reads a header and makes a plan, as `serve` does before it loads.
fn judge(header: &[u8], file_bytes: u64) -> &'static str {
    let facts = MachineFacts {
        available_bytes: 1 << 34,
        lockable_bytes: None,
        threads: 2,
        repacking: Repacking::Avx2,
        bandwidth: Some(1e10),
        prefill_rate: Some(100.0),
    };
    match read_header(header, file_bytes) {
        Err(HeaderError::Io(_)) => "unreadable",
        Err(HeaderError::NotGguf) => "no GGUF",
        Err(HeaderError::Truncated { .. }) => "truncated",
        Err(HeaderError::Invalid(_)) => "invalid",
        Ok(header) => match plan(&header, &facts, &RequestedSettings::default()) {
            Ok(plan) => {
                assert!(!plan.to_string().is_empty());
                "planned"
            }
            Err(_) => "refused by the plan",
        },
    }
}

#[test]
fn no_changed_header_is_more_than_refused() {
    let folder = Folder::new();
    let (seed, count) = (number("FLOTILLA_FUZZ_SEED", 1), number("FLOTILLA_FUZZ_HEADERS", HEADERS));
    let begun = Instant::now();
    let mut outcomes: BTreeMap<&str, usize> = BTreeMap::new();
    for original in originals(&folder) {
        for n in 0..count {
            let (header, how) = original.mutant(seed.wrapping_add(n), false);
            let file_bytes = if how.contains("cut") { header.len() } else { original.bytes.len() };
            let judged = std::panic::catch_unwind(|| judge(&header, file_bytes as u64));
            *outcomes.entry(judged.unwrap_or_else(|_| panic!("{how}"))).or_default() += 1;
        }
    }
    eprintln!("{count} x 2 headers in {:.1?}: {outcomes:?}", begun.elapsed());
    assert!(outcomes.len() >= 4, "that is no good mixture");
}

/// Numbers do not make two reasons out of one.
fn kind_of(line: &str) -> String {
    let reason = line.split(".gguf: ").nth(1).unwrap_or(line);
    let plain: String = reason.chars().filter(|c| !c.is_ascii_digit()).take(70).collect();
    if plain.starts_with("works") { "works".into() } else { plain }
}

#[test]
fn changed_model_files_work_or_are_refused_with_one_line() {
    let folder = Folder::new();
    let (seed, count) = (number("FLOTILLA_FUZZ_SEED", 1), number("FLOTILLA_FUZZ_MODELS", MODELS));
    let begun = Instant::now();
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut asserted: BTreeMap<String, usize> = BTreeMap::new();
    for original in originals(&folder) {
        let mut waiting: Vec<String> = Vec::new();
        let mut hows = Vec::new();
        let mut drawn = 0;
        let mut loaded = 0;
        while loaded < count {
            let (bytes, how) = original.mutant(seed.wrapping_add(drawn), true);
            drawn += 1;
            // Only what a header does not tell is worth a process.
            if read_header(&bytes[..], bytes.len() as u64).is_err() && !drawn.is_multiple_of(10) {
                continue;
            }
            loaded += 1;
            let path = folder.write(&format!("{loaded}.gguf"), bytes);
            waiting.push(path.to_str().unwrap().to_string());
            hows.push(how);
            if waiting.len() == BATCH || loaded == count {
                check(&waiting, &hows, &mut reasons, &mut asserted);
                waiting.clear();
                hows.clear();
            }
        }
    }
    eprintln!("{count} x 2 model files in {:.1?}", begun.elapsed());
    for (reason, hows) in &reasons {
        eprintln!("{:4}  {reason}  ({})", hows.len(), hows[0]);
    }
    for (line, times) in &asserted {
        eprintln!("{times:4}  {line}");
    }
}

/// Has one process load some files; each must have its line.
fn check(
    files: &[String],
    hows: &[String],
    reasons: &mut BTreeMap<String, Vec<String>>,
    asserted: &mut BTreeMap<String, usize>,
) {
    let begun = Instant::now();
    let mut arguments = vec!["check", "--threads", "1", "--load-seconds", "20"];
    arguments.extend(files.iter().map(String::as_str));
    let ran = run("flotilla-agent", &arguments);
    assert!(matches!(ran.code, Some(0 | 65)), "{ran:?}\n{hows:#?}");
    assert!(!ran.stderr.contains("panicked"), "{ran:?}\n{hows:#?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), files.len(), "{ran:?}\n{hows:#?}");
    for ((line, file), how) in lines.iter().zip(files).zip(hows) {
        assert!(line.contains(file), "{line}: {how}");
        assert!(!line.contains("did not load"), "{line}: {how}");
        reasons.entry(kind_of(line)).or_default().push(how.clone());
    }
    for line in ran.stderr.lines().filter(|l| l.contains("GGML_ASSERT") || l.contains("what():")) {
        let at = line.rfind('/').map_or(0, |i| i + 1);
        *asserted.entry(line[at..].chars().take(120).collect()).or_default() += 1;
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{hows:#?}");
}
