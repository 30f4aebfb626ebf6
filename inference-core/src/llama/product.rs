//! The product of a matrix of weights and some rows alone, as a single operation of a set of CPU
//! kernels, for the kernel trial and for tests. Computations of ours are in inference-core/kernels.

use llama_cpp_sys_2 as sys;

use super::device::{Buffer, Device, new_graph};
use super::trial_error::TrialError;

/// Columns and depth of the trial's weights: whole blocks of every quantization type.
const COLUMNS: usize = 64;
pub(super) const DEPTH: usize = 512;

/// Inputs of one product.
pub(super) struct Product {
    /// Number of rows to multiply.
    pub(crate) rows: usize,
    /// Number of results per row.
    pub(crate) columns: usize,
    /// Elements of a row, and of a column of the weights.
    pub(crate) depth: usize,
    /// `[row][depth]`
    pub(crate) input: Vec<f32>,
    /// `[column][depth]`
    pub(crate) weights: Vec<f32>,
}

impl Product {
    /// Ones times ones: every result is [`DEPTH`].
    pub(crate) fn ones(rows: usize) -> Self {
        Self {
            rows,
            columns: COLUMNS,
            depth: DEPTH,
            input: vec![1.0; rows * DEPTH],
            weights: vec![1.0; COLUMNS * DEPTH],
        }
    }

    /// The weights as they are stored in `kind`.
    pub(crate) fn packed(&self, kind: sys::ggml_type) -> Vec<u8> {
        // SAFETY: the depth is a multiple of the type's block, and the buffer has the size that
        // ggml computes for the matrix.
        unsafe {
            let mut packed = vec![0u8; sys::ggml_row_size(kind, self.depth as i64) * self.columns];
            sys::ggml_quantize_chunk(
                kind,
                self.weights.as_ptr(),
                packed.as_mut_ptr().cast(),
                0,
                self.columns as i64,
                self.depth as i64,
                std::ptr::null(),
            );
            packed
        }
    }

    /// Runs it with weights of type `kind` in `layout`; returns `[row][column]`. `None` if the
    /// layout does not support the type.
    pub(crate) fn run(
        &self,
        device: &Device,
        layout: sys::ggml_backend_buffer_type_t,
        kind: sys::ggml_type,
        threads: i32,
    ) -> Result<Option<Vec<f32>>, TrialError> {
        let [rows, columns, depth] = [self.rows, self.columns, self.depth].map(|n| n as i64);
        // SAFETY: tensors belong to contexts and buffers that live to the end of the function, all
        // copies have the tensors' sizes, and every pointer that may be null is checked.
        unsafe {
            let weights_graph = new_graph()?;
            let weights = sys::ggml_new_tensor_2d(weights_graph.0, kind, depth, columns);
            let graph = new_graph()?;
            let input = sys::ggml_new_tensor_2d(graph.0, sys::GGML_TYPE_F32, depth, rows);
            let buffer = sys::ggml_backend_alloc_ctx_tensors_from_buft(weights_graph.0, layout);
            if buffer.is_null() {
                return Ok(None);
            }
            let _weights_buffer = Buffer(buffer);
            let output = sys::ggml_mul_mat(graph.0, weights, input);
            if !device.can_compute(output) {
                return Ok(None);
            }
            let buffer = sys::ggml_backend_alloc_ctx_tensors(graph.0, device.backend());
            if buffer.is_null() {
                return Err(TrialError::NoMemory);
            }
            let _buffer = Buffer(buffer);
            let packed = self.packed(kind);
            sys::ggml_backend_tensor_set(weights, packed.as_ptr().cast(), 0, packed.len());
            let bytes = size_of_val(self.input.as_slice());
            sys::ggml_backend_tensor_set(input, self.input.as_ptr().cast(), 0, bytes);
            device.compute(graph.0, output, threads)?;
            let mut result = vec![0.0f32; self.rows * self.columns];
            let bytes = size_of_val(result.as_slice());
            sys::ggml_backend_tensor_get(output, result.as_mut_ptr().cast(), 0, bytes);
            Ok(Some(result))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Kernel;
    use crate::llama::attention::tests::runs_here;
    use proptest::prelude::*;
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    const KINDS: [sys::ggml_type; 5] = [
        sys::GGML_TYPE_Q4_0,
        sys::GGML_TYPE_Q8_0,
        sys::GGML_TYPE_Q4_K,
        sys::GGML_TYPE_Q6_K,
        sys::GGML_TYPE_F16,
    ];

    fn product([rows, columns, depth]: [usize; 3], seed: u64) -> Product {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut number = || f64::from(random.next_u32()) / f64::from(u32::MAX) * 2.0 - 1.0;
        // Scales differ between blocks, and some rows are zero.
        let mut some = |count: usize, size: f64| -> Vec<f32> {
            let mut scale = 0.0;
            let one = |i| {
                if i % 32 == 0 {
                    scale = size * (number() * 4.0).exp2();
                }
                (scale * number()) as f32
            };
            (0..count).map(one).collect()
        };
        let (mut input, weights) = (some(rows * depth, 1.0), some(columns * depth, 0.05));
        input[..depth].fill(if seed.is_multiple_of(3) { 0.0 } else { 1.0 });
        Product { rows, columns, depth, input, weights }
    }

    /// The weights after quantization.
    fn unpacked(product: &Product, kind: sys::ggml_type) -> Vec<f32> {
        let packed = product.packed(kind);
        let mut all = vec![0.0f32; product.weights.len()];
        // SAFETY: the sizes are those of the matrix, and all types here can be converted.
        unsafe {
            let to_float = (*sys::ggml_get_type_traits(kind)).to_float.unwrap();
            to_float(packed.as_ptr().cast(), all.as_mut_ptr(), all.len() as i64);
        }
        all
    }

    /// Compares with the product in double precision. Tolerates what rounding activations to 8 bits
    /// may change, with scales in half precision, as ggml's are.
    fn check(product: &Product, kind: sys::ggml_type, threads: i32) {
        let weights = unpacked(product, kind);
        for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
            let device = Device::open(*kernel).unwrap();
            for layout in device.layouts() {
                let Some(got) = product.run(&device, layout, kind, threads).unwrap() else {
                    continue;
                };
                for (i, got) in got.iter().enumerate() {
                    let (row, column) = (i / product.columns, i % product.columns);
                    let x = &product.input[row * product.depth..][..product.depth];
                    let w = &weights[column * product.depth..][..product.depth];
                    let pairs = || x.iter().zip(w).map(|(x, w)| (f64::from(*x), f64::from(*w)));
                    let expected: f64 = pairs().map(|(x, w)| x * w).sum();
                    let peak = pairs().fold(0.0f64, |peak, (x, _)| peak.max(x.abs()));
                    let rounded: f64 = pairs().map(|(_, w)| w.abs() * peak / 254.0).sum();
                    let scaled: f64 = pairs().map(|(x, w)| (x * w).abs() / 1000.0).sum();
                    let off = (f64::from(*got) - expected).abs();
                    let tolerance = 1.01 * rounded + scaled + 1e-6;
                    assert!(
                        off <= tolerance,
                        "{kernel:?}, type {kind}, {i}: {got}, not {expected}"
                    );
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn products_are_what_their_definition_says(
            rows in prop::sample::select(vec![1usize, 2, 3, 4, 5, 7, 8, 9, 13, 16, 64, 67]),
            groups in 1usize..12,
            more in prop::sample::select(vec![0usize, 0, 0, 1, 4]),
            blocks in 1usize..4,
            kind in prop::sample::select(KINDS.to_vec()),
            threads in 1i32..4,
            seed in any::<u64>(),
        ) {
            let is_small = kind == sys::GGML_TYPE_Q4_0 || kind == sys::GGML_TYPE_Q8_0;
            let depth = if is_small { 32 * (1 + seed as usize % 40) } else { 256 * blocks };
            check(&product([rows, groups * 8 + more, depth], seed), kind, threads);
        }
    }

    #[test]
    fn a_row_of_q4_0_and_q8_0_does_not_depend_on_the_rows_beside_it() {
        for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
            let device = Device::open(*kernel).unwrap();
            let kinds = [sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_Q8_0];
            for (layout, kind) in device.layouts().into_iter().flat_map(|l| kinds.map(|k| (l, k))) {
                let all = product([75, 40, 896], 5);
                let Some(together) = all.run(&device, layout, kind, 2).unwrap() else { continue };
                for rows in [1, 2, 3, 4, 9, 40, 67] {
                    let input = all.input[..rows * all.depth].to_vec();
                    let weights = all.weights.clone();
                    let some = Product { rows, input, weights, ..all };
                    let apart = some.run(&device, layout, kind, 2).unwrap().unwrap();
                    let beside = &together[..rows * all.columns];
                    assert_eq!(apart, beside, "{kernel:?}, type {kind}: {rows} of 75 rows");
                }
            }
        }
    }
}
