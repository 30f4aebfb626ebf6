//! libFuzzer's entry to [`fuzz_targets::request`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::request(data));
