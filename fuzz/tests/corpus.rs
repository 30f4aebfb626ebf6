//! Replays the corpus: small inputs that reach much of each parser, and all that a fuzzer found.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "the input that fails is the last that was named")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fuzz_targets::TARGETS;

/// Bytes of all inputs together: what is larger belongs to the machine that fuzzes.
const CORPUS_BYTES_MAX: u64 = 500_000;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn names(folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(here(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let name = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_string();
    entries.map(|entry| name(entry.unwrap().path())).collect()
}

fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = here("corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{target}: {e}"));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The properties hold for every input of a target's corpus.
fn replay(name: &str) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let inputs = inputs(name);
    assert!(inputs.len() >= 3, "{name} has {} inputs", inputs.len());
    for input in inputs {
        println!("{}", input.display());
        target(&std::fs::read(input).unwrap());
        target(&[]);
    }
}

#[test]
fn every_target_has_a_corpus_and_a_binary_and_all_is_small() {
    let known: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_string()).collect();
    assert_eq!(names("corpus"), known);
    assert_eq!(names("libfuzzer/fuzz_targets"), known);
    assert!(names("dictionaries").is_subset(&known));
    let all = TARGETS.iter().flat_map(|(name, _)| inputs(name));
    let bytes: u64 = all.map(|input| std::fs::metadata(input).unwrap().len()).sum();
    assert!(bytes < CORPUS_BYTES_MAX, "{bytes} bytes");
}

#[test]
fn the_gateway_answers_or_hangs_up_whatever_a_client_sends() {
    replay("http");
}

#[test]
fn a_request_body_is_its_fields() {
    replay("request");
}

#[test]
fn message_batches_become_lines_or_are_refused_however_they_arrive() {
    replay("message_batch");
}

#[test]
fn events_do_not_depend_on_how_their_bytes_arrive() {
    replay("sse");
}

#[test]
fn resume_marks_are_read_as_written_and_reach_no_client() {
    replay("resume");
}

#[test]
fn headers_of_model_files_are_read_within_their_size_and_planned() {
    replay("gguf");
}

#[test]
fn headers_of_saved_prefixes_are_read_as_a_whole_or_refused() {
    replay("prefix_file");
}

#[test]
fn gbnf_grammars_compile_or_are_refused_with_a_reason() {
    replay("gbnf");
}

#[test]
fn json_schemas_compile_or_are_refused_and_answers_are_json() {
    replay("json_schema");
}

#[test]
fn lark_grammars_compile_or_are_refused_with_a_reason() {
    replay("lark");
}

#[test]
fn tool_calls_do_not_depend_on_chunks_and_lose_no_text() {
    replay("tool_calls");
}

#[test]
fn chat_templates_render_within_limits_and_users_write_no_control_tokens() {
    replay("chat_template");
}

#[test]
fn configurations_are_refused_with_reasons_or_survive_being_printed() {
    replay("config");
}
