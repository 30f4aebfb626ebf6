//! Which file of a repository is the model that was asked for.

use super::*;

fn files(names: &[&str]) -> Vec<ListedFile> {
    let file = |(number, name): (usize, &&str)| ListedFile {
        path: name.split('/').map(Into::into).collect(),
        bytes: Some(1_000_000_000 + number as u64),
        sha256: None,
    };
    names.iter().enumerate().map(file).collect()
}

fn chosen(names: &[&str], quantization: Option<&str>) -> Result<Vec<String>, String> {
    let files = files(names);
    let model = choose(&files, quantization)?;
    Ok(model.files.iter().map(|file| file.path.join("/")).collect())
}

#[test]
fn a_quantization_is_the_end_of_a_name_or_of_a_folder() {
    for (path, quantization) in [
        ("qwen2.5-1.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Llama-3.2-1B-Instruct.Q8_0.gguf", "Q8_0"),
        ("m-IQ3_XXS.gguf", "IQ3_XXS"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-fp16.gguf", "F16"),
        ("m-BF16-00001-of-00002.gguf", "BF16"),
        ("Q8_0/m-00001-of-00002.gguf", "Q8_0"),
        ("UD-Q2_K_XL/m.gguf", "UD-Q2_K_XL"),
        ("Q4_0/m-Q5_0.gguf", "Q5_0"),
        ("m.gguf", ""),
        ("Qwen3.gguf", ""),
        ("q9.gguf", ""),
        (".gguf", ""),
    ] {
        let path: Vec<String> = path.split('/').map(Into::into).collect();
        assert_eq!(quantization_of(&path), quantization, "{path:?}");
    }
}

#[test]
fn the_named_quantization_is_chosen_in_any_case() {
    let names = ["README.md", "m-q4_k_m.gguf", "m-q8_0.gguf", "m-fp16.gguf", "m-UD-Q6_K_XL.gguf"];
    assert_eq!(chosen(&names, Some("Q8_0")).unwrap(), ["m-q8_0.gguf"]);
    assert_eq!(chosen(&names, Some("q4_k_m")).unwrap(), ["m-q4_k_m.gguf"]);
    assert_eq!(chosen(&names, Some("F16")).unwrap(), ["m-fp16.gguf"]);
    assert_eq!(chosen(&names, Some("Q6_K_XL")).unwrap(), ["m-UD-Q6_K_XL.gguf"]);
    let error = chosen(&names, Some("Q5_K_M")).unwrap_err();
    assert_eq!(
        error,
        "has no quantization Q5_K_M; it has UD-Q6_K_XL (1.0 GB), F16 (1.0 GB), \
         Q4_K_M (1.0 GB), Q8_0 (1.0 GB)"
    );
    // Any word of a name that is set off works, too.
    let odd = ["m-special_4bit-v2.gguf", "m-other.gguf"];
    assert_eq!(chosen(&odd, Some("SPECIAL_4BIT")).unwrap(), ["m-special_4bit-v2.gguf"]);
    assert!(chosen(&odd, Some("SPECIAL")).is_err());
}

#[test]
fn without_a_name_the_usual_ones_come_first() {
    let all = ["m-q2_k.gguf", "m-q8_0.gguf", "m-q4_0.gguf", "m-q4_k_m.gguf"];
    assert_eq!(chosen(&all, None).unwrap(), ["m-q4_k_m.gguf"]);
    assert_eq!(chosen(&all[..3], None).unwrap(), ["m-q4_0.gguf"]);
    assert_eq!(chosen(&all[..2], None).unwrap(), ["m-q8_0.gguf"]);
    assert_eq!(chosen(&["m.gguf"], None).unwrap(), ["m.gguf"]);
    let rare = ["m-q3_k_m.gguf", "m-q5_k_m.gguf", "m-q6_k.gguf"];
    assert_eq!(chosen(&rare, None).unwrap(), ["m-q5_k_m.gguf"], "the smallest from 4 bits on");
    assert!(chosen(&["a.gguf", "b.gguf"], None).unwrap_err().contains("a.gguf (1.0 GB)"));
    assert_eq!(chosen(&["README.md"], None).unwrap_err(), "has no GGUF model");
}

#[test]
fn helpers_are_no_models() {
    let names = ["mmproj-m-Q4_K_M.gguf", "m.imatrix.gguf", "mtp-m-Q4_K_M.gguf", "m-Q4_K_M.gguf"];
    assert_eq!(chosen(&names, None).unwrap(), ["m-Q4_K_M.gguf"]);
    assert_eq!(chosen(&names, Some("Q4_K_M")).unwrap(), ["m-Q4_K_M.gguf"]);
}

#[test]
fn split_files_belong_together() {
    let names = [
        "q4_k_m/m-q4_k_m-00002-of-00002.gguf",
        "q4_k_m/m-q4_k_m-00001-of-00002.gguf",
        "m-q4_k_m-00002-of-00002.gguf",
    ];
    let ordered = [names[1], names[0]];
    assert_eq!(chosen(&names, None).unwrap(), ordered);
    assert_eq!(chosen(&names, Some("Q4_K_M")).unwrap(), ordered);
    let lacking = ["m-q8_0-00001-of-00003.gguf", "m-q8_0-00003-of-00003.gguf"];
    let error = chosen(&lacking, Some("Q8_0")).unwrap_err();
    assert!(error.contains("m-q8_0-00002-of-00003.gguf is missing"), "{error}");
}

#[test]
fn two_models_of_one_quantization_must_be_named_by_file() {
    let names = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf"];
    for quantization in [None, Some("Q4_K_M")] {
        let error = chosen(&names, quantization).unwrap_err();
        assert!(error.contains("a-Q4_K_M.gguf, b-Q4_K_M.gguf"), "{error}");
    }
    let files = files(&names);
    let path = |name: &str| vec![name.to_string()];
    assert_eq!(find(&files, &path(names[1])).unwrap().files[0].name(), names[1]);
    assert!(find(&files, &path("c.gguf")).unwrap_err().contains("has no file c.gguf; it has"));
}

#[test]
fn an_error_about_many_models_is_short() {
    let names: Vec<String> = (0..1000).map(|n| format!("m{n}.gguf")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let error = chosen(&names, None).unwrap_err();
    assert!(error.ends_with("and 970 more") && error.len() < 1000, "{error}");
}
