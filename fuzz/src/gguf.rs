//! Headers of model files, and the memory plans that are made of them.

use std::hint::black_box;

use inference_core::model_file::gguf::read_header;
use inference_core::model_file::memory_plan::weights::Repacking;
use inference_core::model_file::memory_plan::{MachineFacts, PlanFailure, RequestedSettings, plan};

/// Most bytes that are allocated for one byte of a header, and for any header: the longest
/// string, which is read as a whole.
const BYTES_PER_BYTE_MAX: u64 = 64;
const BYTES_MAX: u64 = (8 << 20) + (64 << 10);
/// Behind the header, for the data of tensors: a sparse file costs nothing.
const DATA_BYTES: u64 = 1 << 40;

/// A header is read or refused within memory that its size allows, and a plan of what was read
/// is made or refused.
pub fn gguf(data: &[u8]) {
    for data_bytes in [0, DATA_BYTES] {
        let file_bytes = data.len() as u64 + data_bytes;
        let mut header = None;
        let memory = allocation_counter::measure(|| header = Some(read_header(data, file_bytes)));
        let allowed = BYTES_PER_BYTE_MAX * data.len() as u64 + BYTES_MAX;
        assert!(memory.bytes_max <= allowed, "{} bytes for {}", memory.bytes_max, data.len());
        let Some(Ok(header)) = header else { continue };
        assert_eq!(header.tensors, header.tensor_list.len() as u64);
        let elements = |dimensions: &[u64]| {
            dimensions.iter().try_fold(1u64, |all, size| all.checked_mul(*size))
        };
        for tensor in &header.tensor_list {
            assert_eq!(elements(&tensor.dimensions), Some(tensor.elements()), "{tensor:?}");
            black_box(tensor.bytes());
        }
        for available_bytes in [1 << 30, u64::MAX] {
            check_plan(&header, available_bytes);
        }
    }
}

/// A plan fits if it says so, and says what is missing if it does not.
fn check_plan(header: &inference_core::model_file::gguf::Header, available_bytes: u64) {
    let facts = MachineFacts {
        available_bytes,
        lockable_bytes: Some(1 << 20),
        threads: 4,
        repacking: Repacking::Avx2,
        bandwidth: Some(1e10),
        prefill_rate: Some(100.0),
    };
    match plan(header, &facts, &RequestedSettings::default()) {
        Ok(plan) => {
            assert!(plan.fits && plan.needed_bytes <= available_bytes, "{plan:?}");
            assert!(plan.slots > 0 && plan.context_tokens > 0, "{plan:?}");
        }
        Err(PlanFailure::Refused(refusal)) => {
            assert!(refusal.plan.missing_bytes > 0, "{refusal:?}");
            assert!(!refusal.to_string().is_empty());
        }
        Err(PlanFailure::Error(error)) => assert!(!error.to_string().is_empty()),
    }
}
