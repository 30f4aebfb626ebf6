//! Headers of saved prefixes on disk.

use inference_core::scheduler::prefix_disk::parse;

/// A header is read as a whole or refused, within memory that its size allows.
pub fn prefix_file(data: &[u8]) {
    let mut header = None;
    let memory = allocation_counter::measure(|| header = parse(data));
    assert!(memory.bytes_max <= data.len() as u64, "{} bytes", memory.bytes_max);
    if let Some(header) = header {
        assert_eq!(128 + 4 * header.tokens.len(), data.len());
    }
}
