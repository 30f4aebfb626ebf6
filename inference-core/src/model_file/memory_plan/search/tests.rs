//! Tests plans of real model shapes on machines of many sizes.

use proptest::prelude::*;

use super::*;
use crate::model_file::gguf::{TensorInfo, kinds};
use crate::model_file::memory_plan::weights::Repacking;
use crate::model_file::memory_plan::{LoadMode, MemoryParts};

/// The plan, or one line that says why there is none or it does not fit. With `force`, also a plan
/// that does not fit.
fn guard(outcome: Result<Plan, PlanFailure>, force: bool) -> Result<Plan, String> {
    match outcome {
        Ok(plan) => Ok(plan),
        Err(PlanFailure::Refused(refusal)) if force => Ok(refusal.plan),
        Err(PlanFailure::Refused(refusal)) => Err(refusal.to_string()),
        Err(PlanFailure::Error(error)) => Err(error.to_string()),
    }
}

const GIB: u64 = 1 << 30;

/// Llama-3.2-1B with weights of one type.
fn model(kind: &str) -> Header {
    let mut header = Header {
        architecture: "llama".into(),
        context_tokens: 131_072,
        vocabulary: 128_256,
        ..Header::default()
    };
    let numbers = [
        ("block_count", 16),
        ("embedding_length", 2048),
        ("feed_forward_length", 8192),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
    ];
    for (key, n) in numbers {
        header.numbers.insert(format!("llama.{key}"), vec![n]);
    }
    let kind = kinds::named(kind).unwrap().code;
    let mut add = |name: String, columns, rows| {
        header.tensor_list.push(TensorInfo { name, dimensions: vec![columns, rows], kind });
    };
    add("token_embd.weight".into(), 2048, 128_256);
    for layer in 0..16 {
        add(format!("blk.{layer}.attn_q.weight"), 2048, 4096);
        add(format!("blk.{layer}.ffn_up.weight"), 2048, 24_576);
    }
    header
}

fn facts(available_bytes: u64) -> MachineFacts {
    MachineFacts {
        available_bytes,
        lockable_bytes: None,
        threads: 2,
        repacking: Repacking::Avx512,
        bandwidth: Some(15e9),
        prefill_rate: None,
    }
}

fn asked(slots: u64, context: u64) -> RequestedSettings {
    RequestedSettings {
        slots: Some(slots),
        context_tokens: Some(context),
        ..RequestedSettings::default()
    }
}

fn refusal(header: &Header, facts: &MachineFacts, requested: &RequestedSettings) -> PlanRefusal {
    match plan(header, facts, requested) {
        Err(PlanFailure::Refused(refusal)) => *refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_wishes_the_longest_context_is_chosen_with_slots_in_reserve() {
    let header = model("q4_k");
    let small = plan(&header, &facts(2 * GIB), &RequestedSettings::default()).unwrap();
    assert!(small.fits && small.slots >= 1 && small.context_tokens >= 256, "{small}");
    let medium = plan(&header, &facts(8 * GIB), &RequestedSettings::default()).unwrap();
    assert_eq!(medium.slots, 4);
    assert!(
        medium.context_tokens > small.context_tokens && medium.context_tokens.is_multiple_of(256)
    );
    let large = plan(&header, &facts(512 * GIB), &RequestedSettings::default()).unwrap();
    assert_eq!((large.slots, large.context_tokens), (16, 131_072));
}

#[test]
fn a_chosen_context_leaves_memory_to_spare_and_is_the_same_at_the_next_start() {
    let header = model("q4_k");
    let four = RequestedSettings { slots: Some(4), ..RequestedSettings::default() };
    let context = |bytes: u64| plan(&header, &facts(bytes), &four).unwrap();
    let medium = context(8 * GIB);
    assert!(medium.needed_bytes <= 6 * GIB && medium.needed_bytes > 5 * GIB, "{medium}");
    assert!(medium.context_tokens > 4096 && medium.context_tokens.is_multiple_of(1024));
    assert_eq!(context(8 * GIB + (1 << 20)).context_tokens, medium.context_tokens);
    // Up to a good context, memory need not be spared.
    let sizes = (GIB / 2..4 * GIB).step_by(32 << 20);
    let plans = sizes.filter_map(|bytes| plan(&header, &facts(bytes), &four).ok());
    let mut good = plans.filter(|plan| plan.context_tokens == 4096);
    assert!(good.any(|plan| plan.needed_bytes > plan.available_bytes / 4 * 3));
    assert_eq!(context(64 * GIB).context_tokens, 131_072, "not more than it was trained for");
}

#[test]
fn saved_prefixes_get_a_part_of_what_is_left_or_what_was_requested() {
    let shares = model("q4_k");
    let mut windows = model("q4_k");
    windows.architecture = "gemma2".into();
    let numbers = windows.numbers.clone();
    for (key, value) in numbers {
        windows.numbers.insert(key.replace("llama.", "gemma2."), value);
    }
    windows.numbers.insert("gemma2.attention.sliding_window".into(), vec![512]);
    let saved = |header: &Header, requested: RequestedSettings| {
        let plan = plan(header, &facts(16 * GIB), &requested).unwrap();
        (plan.saved_prefix_bytes, plan.headroom_bytes, plan.needed_bytes)
    };
    let four = || asked(4, 4096);
    let (bytes, left, needed) = saved(&shares, four());
    assert_eq!((bytes, left > 4 * GIB), (GIB, true), "evicted prefixes");
    assert_eq!(saved(&windows, four()).0, 4 * GIB, "all prefixes");
    let some = RequestedSettings { saved_prefix_bytes: Some(2 * GIB), ..four() };
    for header in [&shares, &windows] {
        assert_eq!(saved(header, some.clone()).0, 2 * GIB);
    }
    assert_eq!(saved(&shares, some).2 - needed, 2 * GIB, "requested memory is planned for");
    assert_eq!(saved(&shares, RequestedSettings { prefix_cache: false, ..four() }).0, 0);
    let small = plan(&shares, &facts(2 * GIB), &asked(1, 4096)).unwrap();
    assert_eq!(small.saved_prefix_bytes, small.headroom_bytes / 4);
}

#[test]
fn the_estimate_is_memory_speed_over_what_a_token_reads() {
    let header = model("q8_0");
    let plan = plan(&header, &facts(32 * GIB), &asked(1, 1024)).unwrap();
    let start = plan.decode_estimate.unwrap();
    assert!((start - 15e9 / plan.read_bytes_per_token as f64).abs() < 1e-9);
    assert_eq!(plan.kv_bytes_per_token, 32 * 1024);
    let full = 15e9 / (plan.read_bytes_per_token + 1024 * 32 * 1024) as f64;
    assert!((plan.decode_estimate_full.unwrap() - full).abs() < 1e-9);
}

#[test]
fn a_refusal_says_what_is_missing_and_what_would_fit() {
    let header = model("q8_0");
    let refusal = refusal(&header, &facts(4 * GIB), &asked(8, 32_768));
    assert!(!refusal.plan.fits && refusal.plan.missing_bytes > GIB);
    let text = refusal.to_string();
    assert!(text.contains("--context-tokens") && text.contains("more than there is"), "{text}");
    assert!(!text.contains('\n') && refusal.table().contains("would fit: "));
    assert!(guard(plan(&header, &facts(4 * GIB), &asked(8, 32_768)), false).is_err());
    let forced = guard(plan(&header, &facts(4 * GIB), &asked(8, 32_768)), true).unwrap();
    assert!(!forced.fits);
}

#[test]
fn weights_that_do_not_fit_lead_to_a_smaller_quantisation_or_to_none() {
    let header = model("f16");
    let none_fits = refusal(&header, &facts(2 * GIB), &asked(1, 512));
    assert!(matches!(none_fits.advice.as_slice(), [Advice::Quantisation(_)]), "{none_fits}");
    let nothing = refusal(&header, &facts(GIB / 4), &asked(1, 512));
    assert!(nothing.advice.is_empty() && nothing.to_string().contains("nothing smaller"));
}

#[test]
fn what_is_copied_counts_once_with_a_map_and_twice_with_a_lock() {
    let header = model("q4_0");
    let parts = |load| {
        let requested = RequestedSettings { load, ..asked(1, 512) };
        plan(&header, &facts(64 * GIB), &requested).unwrap()
    };
    let (map, lock, none) = (parts(LoadMode::Mmap), parts(LoadMode::Mlock), parts(LoadMode::None));
    assert!(map.reclaimable_bytes > 0 && lock.reclaimable_bytes == 0);
    assert_eq!(lock.needed_bytes, map.needed_bytes + map.reclaimable_bytes);
    assert_eq!(none.needed_bytes, map.needed_bytes);
    assert_eq!(none.parts.weights_mapped, 0);
    let few = MachineFacts { lockable_bytes: Some(8 << 20), ..facts(64 * GIB) };
    let requested = RequestedSettings { load: LoadMode::Mlock, ..asked(1, 512) };
    assert!(plan(&header, &few, &requested).unwrap().notes[0].contains("RLIMIT_MEMLOCK"));
}

#[test]
fn what_cannot_be_asked_is_refused_with_its_bounds() {
    let header = model("q4_k");
    let error = |requested: &RequestedSettings| {
        guard(plan(&header, &facts(64 * GIB), requested), true).unwrap_err()
    };
    assert!(error(&asked(0, 512)).contains("1 to 64"));
    assert!(error(&asked(1, 200_000)).contains("131072"));
    assert!(error(&RequestedSettings { kv_cells: Some(100), ..asked(1, 512) }).contains("512"));
    let mut split = header.clone();
    split.numbers.insert("split.count".into(), vec![3]);
    let error =
        guard(plan(&split, &facts(64 * GIB), &RequestedSettings::default()), true).unwrap_err();
    assert!(error.contains("3 files"), "{error}");
}

#[test]
fn a_plan_can_be_read_by_people_and_by_machines() {
    let plan = plan(&model("q4_k"), &facts(8 * GIB), &RequestedSettings::default()).unwrap();
    let text = plan.to_string();
    for word in ["weights", "repacked", "kv", "compute", "needed", "available", "fits", "estimate"]
    {
        assert!(text.contains(word), "{word} is missing in:\n{text}");
    }
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["parts"]["kv"].as_u64(), Some(plan.parts.context.kv));
    assert_eq!(json["load"], "mmap");
}

fn kinds_of_cache() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["f16", "q8_0", "q4_0", "f32"]).prop_map(String::from)
}

proptest! {
    #[test]
    fn more_slots_and_longer_contexts_never_need_less(
        slots in 1u64..64, context in 64u64..131_000, more_slots in 0u64..8, more in 0u64..5000,
        kind in kinds_of_cache(), flash in any::<bool>(),
    ) {
        let header = model("q4_k");
        let facts = facts(64 * GIB);
        let flash_attention = flash || kind.starts_with('q');
        let requested = RequestedSettings { key_kind: kind.clone(), value_kind: kind, flash_attention, ..RequestedSettings::default() };
        let case = Case::new(&header, &facts, &requested).unwrap();
        let sum = |slots, context| case.parts(slots, context).as_ref().map(MemoryParts::sum).unwrap();
        prop_assert!(sum(slots + more_slots, context + more) >= sum(slots, context));
    }

    #[test]
    fn what_it_says_would_fit_does_fit(
        available in (GIB / 4)..(24 * GIB), slots in 1u64..=64, context in 64u64..=131_072,
        cells in prop::option::of(131_072u64..4_000_000), kind in kinds_of_cache(),
    ) {
        let header = model("q8_0");
        let facts = facts(available);
        let requested = RequestedSettings {
            kv_cells: cells, key_kind: kind.clone(), value_kind: kind, ..asked(slots, context)
        };
        let Err(PlanFailure::Refused(refused)) = plan(&header, &facts, &requested) else { return Ok(()) };
        prop_assert!(!refused.plan.fits);
        for advice in &refused.advice {
            let free = RequestedSettings { kv_cells: None, ..requested.clone() };
            let changed = match advice {
                Advice::Context(tokens) => RequestedSettings { context_tokens: Some(*tokens), ..free },
                Advice::Slots(slots) => RequestedSettings { slots: Some(*slots), ..free },
                Advice::SlotsAndContext(slots, tokens) => {
                    RequestedSettings { slots: Some(*slots), context_tokens: Some(*tokens), ..free }
                }
                Advice::KvKind(kind) => quantised(&requested, kind),
                Advice::Quantisation(_) => continue,
            };
            prop_assert!(plan(&header, &facts, &changed).is_ok(), "{advice}");
        }
    }

    #[test]
    fn what_is_chosen_fits_or_nothing_does(available in (GIB / 4)..(64 * GIB), slots in prop::option::of(1u64..64)) {
        let header = model("q8_0");
        let requested = RequestedSettings { slots, ..RequestedSettings::default() };
        match plan(&header, &facts(available), &requested) {
            Ok(plan) => prop_assert!(plan.fits && plan.needed_bytes <= available),
            Err(PlanFailure::Refused(refusal)) => prop_assert_eq!(refusal.plan.context_tokens, CONTEXT_MIN),
            Err(PlanFailure::Error(error)) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn no_header_makes_a_plan_panic(
        numbers in prop::collection::vec(prop_oneof![0u64..200, any::<u64>()], 8),
        dimensions in prop::collection::vec(prop_oneof![1u64..5000, any::<u64>()], 1..4),
        kind in 0u32..50, available in any::<u64>(), context in any::<u32>(),
    ) {
        let keys = ["block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
            "feed_forward_length", "attention.key_length", "expert_count", "expert_used_count"];
        let mut header = Header {
            architecture: "llama".into(), vocabulary: numbers[0], context_tokens: context, ..Header::default()
        };
        for (key, n) in keys.iter().zip(&numbers) {
            header.numbers.insert(format!("llama.{key}"), vec![*n]);
        }
        header.tensor_list.push(TensorInfo { name: "blk.0.a_exps.weight".into(), dimensions, kind });
        let _ = plan(&header, &facts(available), &RequestedSettings::default()).map(|plan| plan.to_string());
    }
}
