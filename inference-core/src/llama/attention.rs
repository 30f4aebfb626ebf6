//! Attention alone, as a single operation of a set of CPU kernels, for the kernel trial and for
//! tests. The computation is in inference-core/kernels.

use llama_cpp_sys_2 as sys;

use super::device::{Buffer, Device, new_graph};
use super::trial_error::TrialError;

/// Negative infinity in half precision: masks a cell that a row does not attend to.
const HIDDEN: u16 = 0xFC00;

/// Begins the parameters of a mask that hold positions of cells (kernels/positions.h).
const POSITIONS_MARK: u64 = 0x464c_4f54_4950_4f53;

/// Inputs of one attention operation.
pub(super) struct Attention {
    /// Number of query heads.
    pub(crate) heads: usize,
    /// Number of key and value heads; a divisor of `heads`.
    pub(crate) key_heads: usize,
    /// Elements per head.
    pub(crate) size: usize,
    /// Number of query rows.
    pub(crate) rows: usize,
    /// Number of KV cells.
    pub(crate) cells: usize,
    /// `[row][head][size]`
    pub(crate) queries: Vec<f32>,
    /// `[cell][key head][size]`
    pub(crate) keys: Vec<f32>,
    /// `[cell][key head][size]`
    pub(crate) values: Vec<f32>,
    /// `[row][cell]`: true if the row attends to the cell.
    pub(crate) sees: Vec<bool>,
    /// `[cell]`: where its token stands in its sequence; empty if that is not known.
    pub(crate) positions: Vec<i32>,
    /// Scores are at most this far from 0; 0: they are not bounded.
    pub(crate) cap: f32,
    /// How steeply scores fall with `distance` (ALiBi); 0: they do not.
    pub(crate) slope: f32,
    /// `[head]`: a score that has no value; empty: there is none.
    pub(crate) sinks: Vec<f32>,
}

impl Attention {
    /// All ones: every element of the result is 1, whatever the attention weights are.
    pub(crate) fn ones(rows: usize) -> Self {
        let (heads, key_heads, size, cells) = (8, 2, 64, 256);
        Self {
            heads,
            key_heads,
            size,
            rows,
            cells,
            queries: vec![1.0; rows * heads * size],
            keys: vec![1.0; cells * key_heads * size],
            values: vec![1.0; cells * key_heads * size],
            sees: (0..rows * cells).map(|i| i % 3 != 0).collect(),
            positions: Vec::new(),
            cap: 0.0,
            slope: 0.0,
            sinks: Vec::new(),
        }
    }

    /// What scores fall with: any number that is exact in half precision.
    fn distance(cell: usize) -> f32 {
        (7 * cell % 40) as f32
    }

    /// `[row][cell]`: what is added to scores, in half precision.
    fn mask(&self) -> Vec<u16> {
        let of = |(i, sees): (usize, &bool)| match sees {
            false => HIDDEN,
            true if self.slope == 0.0 => 0,
            // SAFETY: it only computes.
            true => unsafe { sys::ggml_fp32_to_fp16(-Self::distance(i % self.cells)) },
        };
        self.sees.iter().enumerate().map(of).collect()
    }

    /// Runs it with keys and values of type `kind`; returns `[row][head][size]`.
    pub(crate) fn run(
        &self,
        device: &Device,
        kind: sys::ggml_type,
        threads: i32,
    ) -> Result<Vec<f32>, TrialError> {
        let [heads, key_heads, size, rows, cells] =
            [self.heads, self.key_heads, self.size, self.rows, self.cells].map(|n| n as i64);
        // SAFETY: all tensors belong to a context and a buffer that live to the end of the
        // function, all copies have the tensors' sizes, and null is checked.
        unsafe {
            let graph = new_graph()?;
            let cache = |kind| sys::ggml_new_tensor_3d(graph.0, kind, size, key_heads, cells);
            let queries = sys::ggml_new_tensor_3d(graph.0, sys::GGML_TYPE_F32, size, heads, rows);
            let (keys, values) = (cache(kind), cache(kind));
            let mask = sys::ggml_new_tensor_2d(graph.0, sys::GGML_TYPE_F16, cells, rows);
            if !self.positions.is_empty() {
                let noted = [POSITIONS_MARK, self.positions.as_ptr() as u64];
                (*mask).op_params.as_mut_ptr().cast::<[u64; 2]>().write_unaligned(noted);
            }
            let swap = |tensor| sys::ggml_permute(graph.0, tensor, 0, 2, 1, 3);
            let scale = 1.0 / (size as f32).sqrt();
            let output = sys::ggml_flash_attn_ext(
                graph.0,
                swap(queries),
                swap(keys),
                swap(values),
                mask,
                scale,
                self.slope,
                self.cap,
            );
            let sinks = sys::ggml_new_tensor_1d(graph.0, sys::GGML_TYPE_F32, heads);
            if !self.sinks.is_empty() {
                sys::ggml_flash_attn_ext_add_sinks(output, sinks);
            }
            let buffer = sys::ggml_backend_alloc_ctx_tensors(graph.0, device.backend());
            if buffer.is_null() {
                return Err(TrialError::NoMemory);
            }
            let _buffer = Buffer(buffer);
            set(queries, &self.queries);
            set_packed(keys, &self.keys);
            set_packed(values, &self.values);
            set(mask, &self.mask());
            if !self.sinks.is_empty() {
                set(sinks, &self.sinks);
            }
            device.compute(graph.0, output, threads)?;
            let mut result = vec![0.0f32; self.queries.len()];
            let bytes = size_of_val(result.as_slice());
            sys::ggml_backend_tensor_get(output, result.as_mut_ptr().cast(), 0, bytes);
            Ok(result)
        }
    }
}

/// # Safety
/// The tensor is allocated and has the size of the data.
unsafe fn set<T>(tensor: *mut sys::ggml_tensor, data: &[T]) {
    // SAFETY: see above.
    unsafe {
        sys::ggml_backend_tensor_set(tensor, data.as_ptr().cast(), 0, size_of_val(data));
    }
}

/// # Safety
/// The tensor is allocated and has as many elements as the data.
unsafe fn set_packed(tensor: *mut sys::ggml_tensor, data: &[f32]) {
    // SAFETY: the buffer has the tensor's size; see above.
    unsafe {
        let mut packed = vec![0u8; sys::ggml_nbytes(tensor)];
        let columns = (*tensor).ne[0];
        let (kind, out) = ((*tensor).type_, packed.as_mut_ptr().cast());
        let rows = data.len() as i64 / columns;
        sys::ggml_quantize_chunk(kind, data.as_ptr(), out, 0, rows, columns, std::ptr::null());
        set(tensor, &packed);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::hardware::Kernel;
    use proptest::prelude::*;
    use rand_core::{Rng, SeedableRng};
    use rand_pcg::Pcg64;

    /// Which cells the rows attend to.
    #[derive(Debug, Clone, Copy)]
    enum Rows {
        /// Consecutive rows of one prompt, causally.
        Prompt,
        /// One row of each of several sequences, whose cells are interleaved.
        Interleaved,
        /// The next tokens of a few sequences and a chunk of a prompt.
        Mixed,
        /// Random cells, possibly none.
        Random,
    }

    impl Rows {
        fn sees(self, random: &mut Pcg64, row: usize, rows: usize, cells: usize) -> Vec<bool> {
            let visible = cells.saturating_sub(rows) + row;
            let of_prompt = |cell: usize| cell <= visible;
            let of_stream = |cell: usize, streams: usize| cell % streams == row;
            let sees = |cell| match self {
                Self::Prompt => of_prompt(cell),
                Self::Interleaved => of_stream(cell, rows),
                Self::Mixed if row < 4 => cell < cells / 3 && of_stream(cell, 4),
                Self::Mixed => cell >= cells / 3 && of_prompt(cell),
                Self::Random => random.next_u32() % 5 < 2,
            };
            (0..cells).map(sees).collect()
        }
    }

    fn attention(shape: [usize; 5], rows_see: Rows, seed: u64) -> Attention {
        let [shared, key_heads, size, rows, cells] = shape;
        let heads = shared * key_heads;
        let mut random = Pcg64::seed_from_u64(seed);
        let queries = (0..rows * heads * size)
            .map(|_| (random.next_u32() % 257) as f32 / 128.0 - 1.0)
            .collect();
        // Multiples of 1/16 up to 127/16 in blocks that contain the maximum: exact in every type.
        let mut cache = || -> Vec<f32> {
            let mut one = |i| if i % 32 == 0 { 127 } else { random.next_u32() as i32 % 128 };
            (0..cells * key_heads * size).map(|i| one(i) as f32 / 16.0).collect()
        };
        let (keys, values) = (cache(), cache());
        let sees = (0..rows).flat_map(|row| rows_see.sees(&mut random, row, rows, cells)).collect();
        let (positions, sinks) = (Vec::new(), Vec::new());
        let inputs = Attention {
            heads,
            key_heads,
            size,
            rows,
            cells,
            queries,
            keys,
            values,
            sees,
            positions,
            cap: 0.0,
            slope: 0.0,
            sinks,
        };
        match seed % 5 {
            1 => Attention { cap: 5.0, ..inputs },
            2 => Attention { slope: 8.0, ..inputs },
            3 => Attention { sinks: (0..heads).map(|head| 3.0 - head as f32).collect(), ..inputs },
            _ => inputs,
        }
    }

    /// Reference implementation in double precision.
    fn expected(a: &Attention) -> Vec<f64> {
        let (size, shared) = (a.size, a.heads / a.key_heads);
        let mut out = vec![0.0; a.queries.len()];
        for (number, result) in out.chunks_exact_mut(size).enumerate() {
            let (row, key_head) = (number / a.heads, number % a.heads / shared);
            let query = &a.queries[number * size..][..size];
            let of = |all: &'_ [f32], cell: usize| {
                let from = (cell * a.key_heads + key_head) * size;
                all[from..from + size].iter().map(|x| f64::from(*x)).collect::<Vec<f64>>()
            };
            let seen: Vec<usize> = (0..a.cells).filter(|c| a.sees[row * a.cells + c]).collect();
            let head = number % a.heads;
            let (cap, slope) = (f64::from(a.cap), slope(a, head));
            let score = |cell: &usize| {
                let products = query.iter().zip(of(&a.keys, *cell));
                let sum =
                    products.map(|(q, k)| f64::from(*q) * k).sum::<f64>() / (size as f64).sqrt();
                let capped = if cap > 0.0 { cap * (sum / cap).tanh() } else { sum };
                capped - slope * f64::from(Attention::distance(*cell))
            };
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let sink = a.sinks.get(head).map(|sink| f64::from(*sink));
            let all = || scores.iter().copied().chain(sink);
            let peak = all().fold(f64::MIN, f64::max);
            let total: f64 = all().map(|s| (s - peak).exp()).sum();
            for (cell, score) in seen.iter().zip(&scores) {
                let weight = (score - peak).exp() / total;
                result.iter_mut().zip(of(&a.values, *cell)).for_each(|(r, v)| *r += weight * v);
            }
        }
        out
    }

    /// What distances are multiplied with for a head: powers of a number that depends on how many
    /// heads there are, with numbers between them once these are used up.
    fn slope(a: &Attention, head: usize) -> f64 {
        let whole =
            if a.heads.is_power_of_two() { a.heads } else { a.heads.next_power_of_two() / 2 };
        let (slope, whole_number) = (f64::from(a.slope), whole as f64);
        match head < whole {
            _ if a.slope == 0.0 => 0.0,
            true => (-slope / whole_number * (head + 1) as f64).exp2(),
            false => (-slope / 2.0 / whole_number * (2 * (head - whole) + 1) as f64).exp2(),
        }
    }

    impl Attention {
        /// A single row of it.
        fn only(&self, row: usize) -> Self {
            let numbers = self.heads * self.size;
            Self {
                rows: 1,
                queries: self.queries[row * numbers..][..numbers].to_vec(),
                sees: self.sees[row * self.cells..][..self.cells].to_vec(),
                keys: self.keys.clone(),
                values: self.values.clone(),
                positions: self.positions.clone(),
                sinks: self.sinks.clone(),
                ..*self
            }
        }

        /// The same tokens in other cells: cell `i` has what was in cell `order[i]`.
        fn moved(&self, order: &[usize]) -> Self {
            let numbers = self.key_heads * self.size;
            let tokens = |all: &[f32]| -> Vec<f32> {
                order.iter().flat_map(|cell| &all[cell * numbers..][..numbers]).copied().collect()
            };
            let row = |sees: &[bool]| order.iter().map(|cell| sees[*cell]).collect::<Vec<_>>();
            Self {
                queries: self.queries.clone(),
                keys: tokens(&self.keys),
                values: tokens(&self.values),
                sees: self.sees.chunks(self.cells).flat_map(row).collect(),
                positions: order.iter().map(|cell| *cell as i32).collect(),
                sinks: self.sinks.clone(),
                ..*self
            }
        }
    }

    /// By the CPU's claims; each kernel has its own trial at run time.
    pub(crate) fn runs_here(kernel: Kernel) -> bool {
        match kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => {
                std::is_x86_feature_detected!("avx512vbmi")
                    && std::is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Amx => {
                runs_here(Kernel::Avx512)
                    && std::is_x86_feature_detected!("avx512bf16")
                    && crate::llama::probe::request_tiles() == 0
            }
            #[cfg(target_arch = "aarch64")]
            Kernel::Sve => {
                std::arch::is_aarch64_feature_detected!("sve") && runs_here(Kernel::I8mm)
            }
            #[cfg(target_arch = "aarch64")]
            Kernel::I8mm => std::arch::is_aarch64_feature_detected!("i8mm"),
            #[cfg(target_arch = "aarch64")]
            Kernel::Dotprod => std::arch::is_aarch64_feature_detected!("dotprod"),
            Kernel::Baseline => true,
        }
    }

    fn check(shape: [usize; 5], rows_see: Rows, kind: sys::ggml_type, threads: i32, seed: u64) {
        let attention = attention(shape, rows_see, seed);
        let wanted = expected(&attention);
        let mut first = None;
        for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
            let device = Device::open(*kernel).unwrap();
            let got = attention.run(&device, kind, threads).unwrap();
            for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                let off = (f64::from(*got) - wanted).abs();
                assert!(off <= 2e-4, "{kernel:?}, number {i}: {got}, not {wanted}");
            }
            let row = seed as usize % attention.rows;
            let alone = attention.only(row).run(&device, kind, threads).unwrap();
            let beside = &got[row * alone.len()..][..alone.len()];
            assert_eq!(alone, beside, "{kernel:?}: row {row} depends on others");
            let in_all = first.get_or_insert_with(|| got.clone());
            assert!(*in_all == got, "{kernel:?} computes other bits than the first set");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn attention_is_what_its_definition_says(
            shared in prop::sample::select(vec![1usize, 2, 4, 7, 8, 16]),
            key_heads in prop::sample::select(vec![1usize, 2, 4]),
            size in prop::sample::select(vec![32usize, 64, 96, 128, 256]),
            rows in 1usize..40,
            blocks in 1usize..5,
            rows_see in prop::sample::select(vec![Rows::Prompt, Rows::Interleaved, Rows::Mixed, Rows::Random]),
            kind in prop::sample::select(vec![sys::GGML_TYPE_F16, sys::GGML_TYPE_F32, sys::GGML_TYPE_Q8_0]),
            threads in 1i32..4,
            seed in any::<u64>(),
        ) {
            let cells = blocks * 64 + seed as usize % 64;
            check([shared, key_heads, size, rows, cells], rows_see, kind, threads, seed);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn what_a_row_gets_does_not_depend_on_where_its_cells_lie(
            shape in prop::sample::select(vec![[2, 2, 64], [7, 2, 64], [4, 1, 128], [1, 3, 32]]),
            rows in 1usize..40,
            cells in 40usize..300,
            stretches in 1usize..80,
            rows_see in prop::sample::select(vec![Rows::Prompt, Rows::Random]),
            seed in any::<u64>(),
        ) {
            let [shared, key_heads, size] = shape;
            let attention = Attention {
                slope: 0.0,
                ..attention([shared, key_heads, size, rows, cells], rows_see, seed)
            };
            // A few stretches of the pool, or a token here and there.
            let mut order: Vec<Vec<usize>> =
                (0..cells).collect::<Vec<_>>().chunks(cells.div_ceil(stretches)).map(Into::into).collect();
            let mut random = Pcg64::seed_from_u64(seed);
            order.sort_by_cached_key(|_| random.next_u32());
            let moved = attention.moved(&order.concat());
            for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
                let device = Device::open(*kernel).unwrap();
                let [wanted, got] = [&attention, &moved]
                    .map(|inputs| inputs.run(&device, sys::GGML_TYPE_F16, 2).unwrap());
                assert_eq!(wanted, got, "{kernel:?}");
            }
        }
    }

    #[test]
    fn a_long_prompt_attends_to_everything_before_it() {
        check([7, 2, 64, 200, 1000], Rows::Prompt, sys::GGML_TYPE_F16, 2, 1);
    }
}
