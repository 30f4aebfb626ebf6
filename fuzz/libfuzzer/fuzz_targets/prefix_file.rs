//! libFuzzer's entry to [`fuzz_targets::prefix_file`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::prefix_file(data));
