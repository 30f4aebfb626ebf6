//! libFuzzer's entry to [`fuzz_targets::message_batch`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_targets::message_batch(data));
