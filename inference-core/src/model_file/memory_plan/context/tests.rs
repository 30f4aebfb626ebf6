//! Tests against compute buffer sizes in MiB that llama.cpp 0.6.0-dev reported for models of these
//! shapes.

use super::*;

/// Width, hidden, heads, head width, key heads, vocabulary, cells, sequence ids, flash attention,
/// experts used, reported.
type Measured = (u64, u64, u64, u64, u64, u64, u64, u64, bool, u64, f64);

const MEASURED: &[Measured] = &[
    (1024, 4096, 16, 64, 4, 32_000, 16_384, 36, true, 0, 52.75),
    (1024, 4096, 16, 64, 4, 32_000, 65_536, 36, true, 0, 103.38),
    (1024, 8192, 16, 64, 4, 32_000, 16_384, 36, true, 0, 78.07),
    (1024, 1024, 16, 64, 4, 32_000, 16_384, 36, true, 0, 29.55),
    (2048, 4096, 16, 64, 4, 32_000, 16_384, 36, true, 0, 63.30),
    (512, 4096, 16, 64, 4, 32_000, 16_384, 36, true, 0, 47.48),
    (1024, 4096, 16, 64, 4, 32_000, 16_384, 96, true, 0, 56.27),
    (1024, 512, 16, 64, 4, 152_000, 16_384, 96, true, 0, 84.93),
    (2048, 512, 16, 64, 4, 152_000, 2048, 96, true, 0, 80.43),
    (1024, 512, 64, 128, 4, 32_000, 16_384, 36, true, 0, 61.19),
    (1024, 512, 64, 128, 64, 32_000, 2048, 36, true, 0, 80.17),
    (1024, 4096, 16, 64, 4, 32_000, 16_384, 36, false, 0, 587.48),
    (1024, 4096, 32, 64, 4, 32_000, 2048, 36, false, 0, 159.27),
    (1024, 4096, 16, 64, 4, 32_000, 2048, 36, true, 2, 63.30),
    (2048, 768, 16, 64, 4, 32_000, 2048, 36, true, 8, 94.94),
    (896, 4864, 14, 64, 2, 151_936, 16_384, 36, true, 0, 56.18),
    (256, 512, 4, 64, 2, 1024, 16_384, 36, true, 0, 21.64),
    (1024, 4096, 16, 64, 4, 32_000, 256, 36, true, 0, 19.28),
];

fn sizes(kv_cells: u64, seq_ids: u64, flash_attention: bool) -> ContextSizes {
    let f16 = cache_kind("f16").unwrap();
    ContextSizes {
        kv_cells,
        seq_ids,
        batch_rows: 512,
        threads: 2,
        key_kind: f16,
        value_kind: f16,
        flash_attention,
        embeds: false,
        whole_windows: false,
    }
}

fn layout(width: u64, hidden: u64, heads: u64, head: u64, kv_heads: u64) -> Layout {
    let layer = Layer { key_width: head, value_width: head, kv_heads, ..Layer::default() };
    Layout {
        width,
        hidden,
        expert_hidden: hidden,
        heads,
        query_width: heads * head,
        layers: vec![layer; 2],
        ..Layout::default()
    }
}

#[test]
fn the_compute_buffer_is_never_below_and_seldom_far_above_what_llama_cpp_reports() {
    for (width, hidden, heads, head, kv, vocabulary, kv_cells, seq_ids, flash, used, reported) in
        MEASURED
    {
        let mut layout = layout(*width, *hidden, *heads, *head, *kv);
        layout.vocabulary = *vocabulary;
        layout.experts_used = *used;
        let planned =
            compute_bytes(&layout, &sizes(*kv_cells, *seq_ids, *flash)) as f64 / 1_048_576.0;
        let ratio = planned / reported;
        assert!(
            (1.0..1.2).contains(&ratio),
            "{width} {hidden} {kv_cells}: {planned} for {reported}"
        );
    }
}

#[test]
fn keys_and_values_are_counted_as_llama_cpp_reports_them() {
    let layout = layout(1024, 4096, 16, 64, 4);
    for (kind, mebibytes) in [("f16", 32), ("q8_0", 17), ("q4_0", 9)] {
        let kind = cache_kind(kind).unwrap();
        let sizes = ContextSizes { key_kind: kind, value_kind: kind, ..sizes(16_384, 36, true) };
        assert_eq!(context_bytes(&layout, &sizes).unwrap().kv, mebibytes << 20);
    }
    assert_eq!(sequence_bytes(&layout, &sizes(1, 1, true), 10).unwrap(), 20_480);
}

#[test]
fn a_window_bounds_cells() {
    let mut layout = layout(1024, 4096, 16, 64, 4);
    layout.window = 128;
    layout.layers[0].windowed = true;
    let sizes = sizes(65_536, 36, true);
    let ring = (128 * 36 + 512u64).next_multiple_of(256) * 1024;
    assert_eq!(context_bytes(&layout, &sizes).unwrap().kv, 65_536 * 1024 + ring);
    assert_eq!(sequence_bytes(&layout, &sizes, 1000).unwrap(), (1000 + 128) * 1024);
    let short = ContextSizes { kv_cells: 1024, ..sizes };
    assert_eq!(context_bytes(&layout, &short).unwrap().kv, 2 * 1024 * 1024, "never more");
}

#[test]
fn embeddings_take_no_logits_unless_the_model_computes_them_all_the_same() {
    let mut layout = layout(1024, 4096, 16, 64, 4);
    layout.vocabulary = 250_000;
    let sizes = ContextSizes { embeds: true, ..sizes(512, 64, true) };
    let decoder = context_bytes(&layout, &sizes).unwrap();
    assert_eq!(decoder.output, 512 * 1024 * 4);
    assert!(decoder.compute > 512 * 250_000 * 4);
    layout.is_encoder = true;
    layout.layers.clear();
    let encoder = context_bytes(&layout, &sizes).unwrap();
    assert!(encoder.kv == 0 && encoder.compute < 60 << 20, "{encoder:?}");
}

#[test]
fn types_that_cannot_hold_these_heads_are_refused() {
    let narrow = layout(1024, 4096, 16, 48, 4);
    let kind = cache_kind("q8_0").unwrap();
    let sizes = ContextSizes { key_kind: kind, value_kind: kind, ..sizes(256, 4, true) };
    assert!(context_bytes(&narrow, &sizes).unwrap_err().to_string().contains("48 elements"));
    let plain = ContextSizes { flash_attention: false, ..sizes };
    assert!(context_bytes(&narrow, &plain).unwrap_err().to_string().contains("flash attention"));
    assert!(cache_kind("q4_k").unwrap_err().to_string().contains("one of: f16"));
}

#[test]
fn a_state_is_kept_for_every_sequence_and_twice_more_while_it_is_computed() {
    let mut layout = layout(1024, 4096, 16, 64, 4);
    let before = context_bytes(&layout, &sizes(256, 36, true)).unwrap().compute;
    layout.layers[0] = Layer { state: 1000, ..Layer::default() };
    let bytes = context_bytes(&layout, &sizes(256, 36, true)).unwrap();
    assert_eq!(bytes.state, 36 * 4000);
    assert!(bytes.compute >= before.max(2 * bytes.state), "{bytes:?}");
}
