//! Tests headers of several architectures, and what their layers store.

use proptest::prelude::*;

use super::*;

fn header(architecture: &str, numbers: &[(&str, &[u64])]) -> Header {
    let mut header =
        Header { architecture: architecture.into(), vocabulary: 100, ..Header::default() };
    for (key, list) in numbers {
        header.numbers.insert(format!("{architecture}.{key}"), list.to_vec());
    }
    header
}

fn layout(architecture: &str, numbers: &[(&str, &[u64])]) -> Layout {
    let plain: [(&str, &[u64]); 4] = [
        ("block_count", &[4]),
        ("embedding_length", &[512]),
        ("attention.head_count", &[8]),
        ("feed_forward_length", &[1024]),
    ];
    let all: Vec<(&str, &[u64])> = plain.iter().chain(numbers).copied().collect();
    Layout::read(&header(architecture, &all)).unwrap()
}

#[test]
fn heads_have_the_width_that_is_said_or_their_share() {
    let plain = layout("llama", &[("attention.head_count_kv", &[2])]);
    let expected = Layer { key_width: 64, value_width: 64, kv_heads: 2, windowed: false, state: 0 };
    assert_eq!(plain.layers, [expected; 4]);
    assert!(plain.known && plain.kv_width() == 128 && plain.query_width == 512);
    let said =
        layout("qwen3", &[("attention.key_length", &[128]), ("attention.value_length", &[32])]);
    assert_eq!((said.layers[0].key_width, said.layers[0].value_width), (128, 32));
    assert_eq!(said.layers[0].kv_heads, 8, "as many as query heads, if none are said");
}

#[test]
fn windows_follow_the_pattern_of_the_file_or_of_the_architecture() {
    let flags = |layout: &Layout| layout.layers.iter().map(|l| l.windowed).collect::<Vec<_>>();
    let window: (&str, &[u64]) = ("attention.sliding_window", &[128]);
    assert_eq!(flags(&layout("gemma2", &[window])), [true, false, true, false]);
    let listed = layout("gemma2", &[window, ("attention.sliding_window_pattern", &[0, 0, 1, 1])]);
    assert_eq!(flags(&listed), [false, false, true, true]);
    assert!(!layout("llama", &[window]).has_windows(), "an unknown pattern: full cells");
    assert!(!layout("gemma2", &[]).has_windows());
}

#[test]
fn layers_without_heads_for_keys_keep_a_state() {
    let hybrid = layout(
        "jamba",
        &[
            ("attention.head_count_kv", &[0, 2, 0, 0]),
            ("ssm.inner_size", &[1024]),
            ("ssm.state_size", &[16]),
            ("ssm.conv_kernel", &[4]),
        ],
    );
    let state = 3 * 1024 + 16 * 1024;
    assert_eq!(hybrid.layers.iter().map(|l| l.state).collect::<Vec<_>>(), [state, 0, state, state]);
    assert_eq!(hybrid.state(), 3 * state);
    let ssm: [(&str, &[u64]); 2] = [("ssm.inner_size", &[1024]), ("ssm.state_size", &[16])];
    let fourth = layout("qwen35", &ssm);
    assert_eq!(
        fourth.layers.iter().map(|l| l.kv_heads > 0).collect::<Vec<_>>(),
        [false, false, false, true]
    );
    let both = layout("falcon-h1", &ssm);
    assert!(both.layers.iter().all(|l| l.state > 0 && l.kv_heads > 0));
    let rwkv = layout("rwkv6", &[("wkv.head_size", &[64])]);
    assert_eq!(rwkv.layers[0], Layer { state: 512 * 66, ..Layer::default() });
}

#[test]
fn compressed_attention_keeps_one_latent() {
    let mla = layout(
        "deepseek2",
        &[
            ("attention.head_count_kv", &[1]),
            ("attention.key_length", &[576]),
            ("attention.value_length", &[512]),
            ("attention.key_length_mla", &[192]),
        ],
    );
    assert_eq!((mla.layers[0].key_width, mla.layers[0].value_width), (576, 0));
}

#[test]
fn shared_cells_are_counted_once() {
    let shared = layout("gemma4", &[("attention.shared_kv_layers", &[1])]);
    assert_eq!(shared.layers.iter().filter(|l| l.kv_heads > 0).count(), 3);
}

#[test]
fn what_is_missing_or_unknown_is_named() {
    let error = |h: &Header| Layout::read(h).unwrap_err().to_string();
    assert!(error(&header("llama", &[])).contains("llama.block_count"));
    let indexed = header("x", &[("attention.indexer.key_length", &[64])]);
    assert!(error(&indexed).contains("x.attention.indexer.key_length"));
    let layers = header("llama", &[("block_count", &[100_000]), ("embedding_length", &[1])]);
    assert!(error(&layers).contains("100000 layers"));
    let headless = header("llama", &[("block_count", &[1]), ("embedding_length", &[1])]);
    assert!(error(&headless).contains("head_count"));
    let other = layout("unheard-of", &[]);
    assert!(!other.known);
}

#[test]
fn models_that_make_embeddings_are_known_by_their_architecture_or_their_pooling() {
    let bert = layout("nomic-bert", &[]);
    assert!(
        bert.is_encoder
            && bert.embedding_batching == Some(EmbeddingBatching::WholeText)
            && bert.layers.is_empty()
    );
    let pooled = layout("qwen3", &[("pooling_type", &[3])]);
    assert!(
        !pooled.is_encoder
            && pooled.embedding_batching == Some(EmbeddingBatching::Ubatches)
            && pooled.layers.len() == 4
    );
    assert_eq!(
        layout("qwen3", &[("pooling_type", &[1])]).embedding_batching,
        Some(EmbeddingBatching::WholeText)
    );
    assert_eq!(layout("qwen3", &[("pooling_type", &[0])]).embedding_batching, None);
}

#[test]
fn beginnings_are_shared_where_every_layer_keeps_every_cell() {
    assert!(layout("qwen3", &[]).can_share_prefixes());
    assert!(!layout("gemma2", &[("attention.sliding_window", &[128])]).can_share_prefixes());
    let states: [(&str, &[u64]); 3] = [
        ("attention.head_count_kv", &[0, 2, 0, 0]),
        ("ssm.inner_size", &[64]),
        ("ssm.state_size", &[8]),
    ];
    assert!(!layout("jamba", &states).can_share_prefixes());
}

proptest! {
    #[test]
    fn no_numbers_make_it_panic(
        architecture in prop::sample::select(vec!["llama", "bert", "gemma3", "jamba", "qwen35", "rwkv7", "deepseek2", "z"]),
        numbers in prop::collection::vec(prop::collection::vec(
            prop_oneof![0u64..70, any::<u64>()], 1..4), 16),
    ) {
        let keys = ["block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
            "feed_forward_length", "attention.key_length", "attention.value_length", "ssm.inner_size",
            "ssm.state_size", "ssm.group_count", "ssm.conv_kernel", "attention.sliding_window",
            "attention.sliding_window_pattern", "wkv.head_size", "expert_count", "attention.shared_kv_layers"];
        let pairs: Vec<(&str, &[u64])> = keys.iter().copied().zip(numbers.iter().map(Vec::as_slice)).collect();
        let _ = Layout::read(&header(architecture, &pairs)).map(|l| (l.state(), l.kv_width()));
    }
}
