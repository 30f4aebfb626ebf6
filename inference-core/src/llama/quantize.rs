//! Quantizes rows of f32 to a ggml type.

use llama_cpp_sys_2 as sys;

/// Size in bytes of a row with `columns` elements of a ggml type; `None` if the type does not exist
/// or its blocks do not divide the row.
pub(crate) fn row_bytes(kind: u32, columns: u64) -> Option<u64> {
    if kind >= sys::GGML_TYPE_COUNT {
        return None;
    }
    let columns = i64::try_from(columns).ok()?;
    // SAFETY: the type is one of ggml's.
    unsafe {
        let block = sys::ggml_blck_size(kind);
        let fits = block > 0 && columns % block == 0;
        fits.then(|| sys::ggml_row_size(kind, columns) as u64)
    }
}

/// Quantizes rows of `columns` elements each. `None` as for [`row_bytes`], or if `numbers` is not
/// whole rows.
pub(crate) fn quantize(kind: u32, numbers: &[f32], columns: u64) -> Option<Vec<u8>> {
    let bytes = row_bytes(kind, columns)?;
    let rows = numbers.len() as u64 / columns.max(1);
    if rows * columns != numbers.len() as u64 {
        return None;
    }
    let mut out = vec![0u8; (rows * bytes) as usize];
    // SAFETY: the source holds rows x columns elements, the destination rows x bytes, and the
    // type's blocks divide a row; no importance matrix is given.
    unsafe {
        sys::ggml_quantize_chunk(
            kind,
            numbers.as_ptr(),
            out.as_mut_ptr().cast(),
            0,
            rows as i64,
            columns as i64,
            std::ptr::null(),
        );
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_size_of_their_blocks() {
        assert_eq!(row_bytes(0, 5), Some(20));
        assert_eq!(row_bytes(2, 64), Some(36));
        assert_eq!(row_bytes(2, 63), None);
        assert_eq!(row_bytes(9_999, 64), None);
        let quantized = quantize(8, &[0.5; 64], 32).unwrap();
        assert_eq!(quantized.len(), 2 * 34);
        assert_eq!(quantize(8, &[0.5; 40], 32), None);
    }
}
