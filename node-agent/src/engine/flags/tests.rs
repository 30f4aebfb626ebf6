//! The values that flags have on machines of several sizes.

use super::*;

#[test]
fn the_context_is_bounded_by_the_model() {
    let header = Header { context_tokens: 1024, ..Header::default() };
    assert_eq!(context_tokens(None, 1024, &header), Ok(1024));
    assert_eq!(context_tokens(Some(512), 1024, &header), Ok(512));
    assert!(context_tokens(Some(2048), 1024, &header).is_err());
    assert_eq!(trained_tokens(&Header::default()), CONTEXT_USUAL);
}

fn default_context(arguments: &[&str], trained: u32, available_bytes: u64) -> u32 {
    use clap::{Command, FromArgMatches};
    let command = EngineFlags::augment_args(Command::new("serve").no_binary_name(true));
    let flags = EngineFlags::from_arg_matches(&command.get_matches_from(arguments)).unwrap();
    let header = one_layer(trained);
    let facts = MachineFacts {
        available_bytes,
        lockable_bytes: None,
        threads: 2,
        repacking: inference_core::model_file::memory_plan::weights::Repacking::Off,
        bandwidth: None,
        prefill_rate: None,
    };
    let attention = Setting::of(None, None, FlashAttention::Auto);
    let case = Case { header: &header, facts: &facts, attention, batch_rows: 512, vectors: None };
    flags.default_context(&case, SLOTS_DEFAULT)
}

/// A model without weights; each KV cell takes 16 KiB.
fn one_layer(trained: u32) -> Header {
    let mut header = Header {
        architecture: "llama".into(),
        context_tokens: trained,
        vocabulary: 100,
        ..Header::default()
    };
    let numbers = [
        ("block_count", 16),
        ("embedding_length", 256),
        ("feed_forward_length", 512),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 4),
    ];
    for (key, n) in numbers {
        header.numbers.insert(format!("llama.{key}"), vec![n]);
    }
    header
}

#[test]
fn the_default_context_is_the_trained_one_as_far_as_memory_allows() {
    const GIB: u64 = 1 << 30;
    assert_eq!(default_context(&[], 32_768, 64 * GIB), 32_768);
    let limited = default_context(&[], 131_072, 4 * GIB);
    assert!((16_384..65_536).contains(&limited) && limited.is_multiple_of(1024), "{limited}");
    assert!(default_context(&["--kv-type", "q8_0"], 131_072, 4 * GIB) > limited);
    // The caller reduces this, or refuses it, as it is too much.
    assert_eq!(default_context(&[], 131_072, GIB / 4), CONTEXT_USUAL);
    assert_eq!(default_context(&[], 2048, GIB / 8), 2048);
    assert_eq!(default_context(&["--no-memory-plan"], 131_072, 64 * GIB), CONTEXT_USUAL);
    // The pool is the operator's: one request may use all of it.
    assert_eq!(default_context(&["--kv-cells", "20480"], 131_072, 64 * GIB), 20_480);
    assert_eq!(default_context(&[], u32::MAX, u64::MAX / 2), KV_CELLS_MAX / SLOTS_DEFAULT);
}

#[test]
fn cpus_are_a_list_without_repetitions() {
    assert_eq!(read_cpus("3,0-1,1"), Ok(vec![0, 1, 3]));
    assert!(read_cpus("").is_err() && read_cpus("a").is_err() && read_cpus("3-1").is_err());
}
