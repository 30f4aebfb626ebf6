//! Tests valid, truncated, modified and hostile headers.

use proptest::prelude::*;

use super::*;

fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat()
}

/// One F32 tensor of 8 elements.
fn file() -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(1u64.to_le_bytes());
    out.extend(3u64.to_le_bytes());
    out.extend([text("general.architecture"), vec![8, 0, 0, 0], text("llama")].concat());
    out.extend([text("llama.context_length"), vec![4, 0, 0, 0], vec![0, 2, 0, 0]].concat());
    let strings = [vec![9, 0, 0, 0, 8, 0, 0, 0], 2u64.to_le_bytes().to_vec()].concat();
    out.extend([text("tokenizer.ggml.tokens"), strings, text("a"), text("b")].concat());
    out.extend([text("w"), vec![1, 0, 0, 0], 8u64.to_le_bytes().to_vec()].concat());
    out.extend([vec![0, 0, 0, 0], 0u64.to_le_bytes().to_vec()].concat());
    out.resize(out.len().next_multiple_of(32) + 32, 0);
    out
}

fn read(bytes: &[u8]) -> Result<Header, HeaderError> {
    read_header(bytes, bytes.len() as u64)
}

#[test]
fn a_whole_file_tells_its_architecture_and_context() {
    let header = read(&file()).unwrap();
    assert_eq!((header.architecture.as_str(), header.context_tokens), ("llama", 512));
    assert_eq!((header.tensors, header.vocabulary), (1, 2));
    assert_eq!(header.number("context_length"), Some(512));
    let tensor = &header.tensor_list[0];
    assert_eq!((tensor.name.as_str(), tensor.elements(), tensor.bytes()), ("w", 8, Some(32)));
}

#[test]
fn recommended_sampling_is_read() {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend([1u64.to_le_bytes(), 4u64.to_le_bytes()].concat());
    out.extend([text("general.architecture"), vec![8, 0, 0, 0], text("llama")].concat());
    let temperature = 0.5f32.to_le_bytes().to_vec();
    out.extend([text("general.sampling.temp"), vec![6, 0, 0, 0], temperature].concat());
    out.extend([text("general.sampling.top_k"), vec![5, 0, 0, 0], vec![20, 0, 0, 0]].concat());
    out.extend([text("general.sampling.min_p"), vec![8, 0, 0, 0], text("0.1")].concat());
    out.extend([text("w"), vec![1, 0, 0, 0], 8u64.to_le_bytes().to_vec()].concat());
    out.extend([vec![0, 0, 0, 0], 0u64.to_le_bytes().to_vec()].concat());
    out.resize(out.len().next_multiple_of(32) + 32, 0);
    assert_eq!(read(&out).unwrap().sampling.to_string(), "temperature 0.5, top_k 20");
}

#[test]
fn numbers_of_every_type_and_lists_for_each_layer_are_kept() {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend([1u64.to_le_bytes(), 6u64.to_le_bytes()].concat());
    out.extend([text("general.architecture"), vec![8, 0, 0, 0], text("x")].concat());
    out.extend([text("x.flag"), vec![7, 0, 0, 0], vec![1]].concat());
    out.extend([text("x.negative"), vec![5, 0, 0, 0], vec![255; 4]].concat());
    out.extend([text("x.small"), vec![2, 0, 0, 0], vec![3, 1]].concat());
    let list = [vec![9, 0, 0, 0, 5, 0, 0, 0], 2u64.to_le_bytes().to_vec()].concat();
    out.extend([text("x.layers"), list, vec![8, 0, 0, 0, 0, 0, 0, 0]].concat());
    let long = [vec![9, 0, 0, 0, 0, 0, 0, 0], 2000u64.to_le_bytes().to_vec()].concat();
    out.extend([text("x.long"), long, vec![1; 2000]].concat());
    out.extend([text("w"), vec![1, 0, 0, 0], 8u64.to_le_bytes().to_vec()].concat());
    out.extend([vec![0, 0, 0, 0], 0u64.to_le_bytes().to_vec()].concat());
    out.resize(out.len().next_multiple_of(32) + 32, 0);
    let header = read(&out).unwrap();
    assert_eq!((header.number("flag"), header.number("small")), (Some(1), Some(259)));
    assert_eq!((header.number("negative"), header.list("long")), (None, None));
    assert_eq!(header.list("layers"), Some(&[8, 0][..]));
    assert_eq!(header.number("layers"), None, "a list is no number");
}

#[test]
fn every_truncation_is_noticed() {
    let whole = file();
    for length in 4..whole.len() {
        let error = read(&whole[..length]).unwrap_err();
        assert!(matches!(error, HeaderError::Truncated { .. }), "{length}: {error}");
    }
}

#[test]
fn other_files_are_refused_by_name() {
    assert!(matches!(read(b"PK\x03\x04 zip").unwrap_err(), HeaderError::NotGguf));
    assert!(read(b"").is_err());
    let mut old = file();
    old[4] = 1;
    assert!(read(&old).unwrap_err().to_string().contains("version 1"));
}

/// A file with one more metadata number.
fn file_with(key: &str, kind: u8, value: [u8; 4]) -> Vec<u8> {
    let mut out = file();
    out[16] += 1;
    out.splice(24..24, [text(key), vec![kind, 0, 0, 0], value.to_vec()].concat());
    out.resize(out.len() + 32, 0);
    out
}

#[test]
fn numbers_that_llama_cpp_aborts_on_are_refused() {
    let layers = |n: u32| read(&file_with("llama.block_count", 4, n.to_le_bytes()));
    assert!(layers(1).is_ok() && layers(512).is_ok());
    for wrong in [layers(0), layers(513)] {
        assert!(wrong.unwrap_err().to_string().contains("1 to 512"));
    }
    for (heads, is_refused) in [(0u32, false), (2, false), (3, true), (u32::MAX, true)] {
        let mut out = file_with("llama.block_count", 4, 2u32.to_le_bytes());
        out[16] += 1;
        let value = [vec![4, 0, 0, 0], heads.to_le_bytes().to_vec()].concat();
        out.splice(24..24, [text("llama.nextn_predict_layers"), value].concat());
        out.resize(out.len() + 32, 0);
        let refused = read(&out).is_err_and(|why| why.to_string().contains("MTP heads"));
        assert_eq!(refused, is_refused, "{heads} of 2 layers");
    }
    let key = "llama.attention.layer_norm_rms_epsilon";
    let epsilon = |e: f32| read(&file_with(key, 6, e.to_le_bytes()));
    assert!(epsilon(1e-5).is_ok() && epsilon(0.0).is_ok());
    for wrong in [epsilon(-1e-5), epsilon(f32::NAN)] {
        assert!(wrong.unwrap_err().to_string().contains(key));
    }
}

#[test]
fn a_matrix_of_a_type_that_nothing_multiplies_is_refused() {
    let tensor = |name: &str, kind: u32| {
        let sizes = [2u32.to_le_bytes().to_vec(), [8u64.to_le_bytes(); 2].concat()].concat();
        let bytes = [text(name), sizes, kind.to_le_bytes().to_vec()].concat();
        read_tensor(&mut Reader { source: &bytes[..], position: 0, file_bytes: 1 << 20 })
    };
    assert!(tensor("w.weight", 0).is_ok() && tensor("ids", 26).is_ok());
    for kind in NO_MATRIX {
        let error = tensor("w.weight", kind).unwrap_err().to_string();
        assert!(error.contains("w.weight"), "{error}");
    }
}

#[test]
fn an_alignment_beyond_counting_is_no_panic() {
    let out = file_with("general.alignment", 4, (1u32 << 31).to_le_bytes());
    assert!(matches!(read(&out), Err(HeaderError::Truncated { .. })));
}

proptest! {
    #[test]
    fn no_flipped_byte_makes_it_panic_or_allocate_without_end(at in 0usize..256, to in any::<u8>()) {
        let mut bytes = file();
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = read(&bytes);
    }
}
