//! Tests operations on single elements and rows (inference-core/kernels/elements.cpp and scan.cpp,
//! and ggml's beside them) against their definitions, and that every set of kernels computes the
//! same: a response continues the same on a CPU of another kind.

use llama_cpp_sys_2 as sys;
use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::test_graph::{Tensor, Tensors, assert_close, in_every_set};

type Context = *mut sys::ggml_context;

/// Numbers of up to `size`, among them zeros.
fn draw(count: usize, size: f32, seed: u64) -> Vec<f32> {
    let mut random = Pcg64::seed_from_u64(seed);
    let one = |_| match random.next_u32() {
        number if number % 50 == 0 => 0.0,
        number => (number as f32 / u32::MAX as f32 * 2.0 - 1.0) * size,
    };
    (0..count).map(one).collect()
}

/// Runs an operation of one or two inputs with rows of `row` elements, in every set of kernels.
fn run(
    row: usize,
    inputs: &[&[f32]],
    threads: i32,
    op: impl Fn(Context, &[Tensor]) -> Tensor,
) -> Vec<f32> {
    in_every_set(|device| {
        let mut all = Tensors::new();
        let of = |data: &&[f32]| all.floats([row, data.len() / row, 1, 1]);
        let tensors: Vec<Tensor> = inputs.iter().map(of).collect();
        let output = op(all.graph.0, &tensors);
        all.allocate(device);
        tensors.iter().zip(inputs).for_each(|(tensor, data)| all.set(*tensor, data));
        // SAFETY: the tensor belongs to the context, and all are allocated.
        unsafe { device.compute(all.graph.0, output, threads) }.unwrap();
        all.get(output)
    })
}

fn wide(all: &[f32]) -> Vec<f64> {
    all.iter().map(|x| f64::from(*x)).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Asserts that numbers are right to a few units in the last place.
fn assert_precise(got: &[f32], wanted: &[f64], what: &str) {
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let off = (f64::from(*got) - wanted).abs();
        assert!(off <= 4e-7 * wanted.abs() + 1e-30, "{what}, number {i}: {got}, not {wanted}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn gates_and_softmax_are_what_their_definitions_say_in_every_set_of_kernels(
        row in 1usize..200,
        rows in 1usize..5,
        size in prop::sample::select(vec![0.01f32, 1.0, 20.0, 80.0]),
        threads in 1i32..4,
        seed in any::<u64>(),
    ) {
        let (x, gate) = (draw(row * rows, size, seed), draw(row * rows, 2.0, seed ^ 1));
        // SAFETY, here and below: the tensors belong to the context.
        let got = run(row, &[&x], threads, |c, t| unsafe { sys::ggml_silu(c, t[0]) });
        let silus: Vec<f64> = wide(&x).into_iter().map(silu).collect();
        assert_precise(&got, &silus, "SiLU");

        let got = run(row, &[&x, &gate], threads, |c, t| unsafe { sys::ggml_swiglu_split(c, t[0], t[1]) });
        let gated: Vec<f64> = silus.iter().zip(wide(&gate)).map(|(x, gate)| x * gate).collect();
        assert_precise(&got, &gated, "SwiGLU");

        let got = run(row, &[&x], threads, |c, t| unsafe { sys::ggml_soft_max(c, t[0]) });
        let of_row = |x: &[f32]| {
            let max = x.iter().copied().fold(f32::MIN, f32::max);
            let weights: Vec<f64> = x.iter().map(|x| f64::from(x - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            weights.into_iter().map(move |weight| weight / sum).collect::<Vec<f64>>()
        };
        assert_close(&got, &x.chunks(row).flat_map(of_row).collect::<Vec<f64>>(), "softmax");
    }

    #[test]
    fn norms_are_what_their_definitions_say_in_every_set_of_kernels(
        row in 2usize..200,
        rows in 1usize..5,
        threads in 1i32..4,
        seed in any::<u64>(),
    ) {
        let x = draw(row * rows, 3.0, seed);
        let normed = |centered: bool, x: &[f32]| -> Vec<f64> {
            let x = wide(x);
            let mean = if centered { x.iter().sum::<f64>() / x.len() as f64 } else { 0.0 };
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            x.iter().map(|x| (x - mean) / (variance + 1e-6).sqrt()).collect()
        };
        let got = run(row, &[&x], threads, |c, t| unsafe { sys::ggml_norm(c, t[0], 1e-6) });
        assert_close(&got, &x.chunks(row).flat_map(|x| normed(true, x)).collect::<Vec<_>>(), "norm");
        let got = run(row, &[&x], threads, |c, t| unsafe { sys::ggml_rms_norm(c, t[0], 1e-6) });
        assert_close(&got, &x.chunks(row).flat_map(|x| normed(false, x)).collect::<Vec<_>>(), "RMS norm");
    }

    /// ggml's own: compiled so that products are rounded before they are added.
    #[test]
    fn other_operations_of_models_are_the_same_in_every_set_of_kernels(
        heads in 1usize..4,
        half in prop::sample::select(vec![8usize, 16, 32, 48, 64]),
        rows in 1usize..6,
        threads in 1i32..4,
        mode in prop::sample::select(vec![0i32, 2]),
        seed in any::<u64>(),
    ) {
        let row = 2 * half;
        let (x, y) = (draw(row * heads * rows, 3.0, seed), draw(row * heads * rows, 2.0, seed ^ 1));
        let unary: [unsafe extern "C" fn(Context, Tensor) -> Tensor; 6] = [
            sys::ggml_gelu, sys::ggml_sigmoid, sys::ggml_softplus, sys::ggml_tanh, sys::ggml_sum_rows, sys::ggml_exp,
        ];
        for op in unary {
            run(row, &[&x], threads, |c, t| unsafe { op(c, t[0]) });
        }
        run(row, &[&x], threads, |c, t| unsafe { sys::ggml_l2_norm(c, t[0], 1e-6) });
        // What is left of a row after whole vectors would be rounded otherwise; models have none.
        let whole = draw(64 * rows, 3.0, seed);
        run(64, &[&whole], threads, |c, t| unsafe { sys::ggml_scale_bias(c, t[0], 0.7, 0.3) });
        run(row, &[&x, &y], threads, |c, t| unsafe { sys::ggml_mul(c, sys::ggml_add(c, t[0], t[1]), t[1]) });
        run(row, &[&x, &y], threads, |c, t| unsafe { sys::ggml_geglu_split(c, t[0], t[1]) });
        in_every_set(|device| {
            let mut all = Tensors::new();
            let (input, positions) = (all.floats([row, heads, rows, 1]), all.integers(rows));
            let output = unsafe {
                sys::ggml_rope_ext(all.graph.0, input, positions, std::ptr::null_mut(), row as i32, mode,
                    4096, 10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
            };
            all.allocate(device);
            all.set(input, &x);
            all.set(positions, &(0..rows as i32).map(|i| i * 100).collect::<Vec<i32>>());
            unsafe { device.compute(all.graph.0, output, threads) }.unwrap();
            all.get(output)
        });
    }
}

/// A scan of state space models.
struct Scan {
    size: usize,
    channels: usize,
    heads: usize,
    groups: usize,
    tokens: usize,
    seqs: usize,
    /// Whether each state decays at a rate of its own.
    is_each_decayed: bool,
    /// States that are kept.
    kept: usize,
}

impl Scan {
    /// The cache of states, inputs, lengths of steps, rates, and the two matrices.
    fn inputs(&self, seed: u64) -> [Vec<f32>; 6] {
        let Self { size, channels, heads, groups, tokens, seqs, .. } = *self;
        let rates = if self.is_each_decayed { size * heads } else { heads };
        [
            draw(size * channels * heads * (seqs + 1), 1.0, seed),
            draw(channels * heads * tokens * seqs, 1.0, seed ^ 1),
            draw(heads * tokens * seqs, 3.0, seed ^ 2),
            draw(rates, 1.0, seed ^ 3).into_iter().map(|rate| -rate.abs()).collect(),
            draw(size * groups * tokens * seqs, 0.3, seed ^ 4),
            draw(size * groups * tokens * seqs, 0.3, seed ^ 5),
        ]
    }

    /// The cache's row of a sequence: from behind.
    fn row(&self, seq: usize) -> usize {
        self.seqs - seq
    }

    /// What it says, and the states that are kept.
    fn run(&self, inputs: &[Vec<f32>; 6], threads: i32) -> Vec<f32> {
        let Self { size, channels, heads, groups, tokens, seqs, .. } = *self;
        let rates = if self.is_each_decayed { size } else { 1 };
        in_every_set(|device| {
            let mut all = Tensors::new();
            let tensors = [
                all.floats([size, channels, heads, seqs + 1]),
                all.floats([channels, heads, tokens, seqs]),
                all.floats([heads, tokens, seqs, 1]),
                all.floats([rates, heads, 1, 1]),
                all.floats([size, groups, tokens, seqs]),
                all.floats([size, groups, tokens, seqs]),
            ];
            let [cache, x, dt, a, b, c] = tensors;
            let ids = all.integers(seqs);
            // SAFETY: the tensors belong to the context.
            let output = unsafe {
                sys::ggml_ssm_scan(all.graph.0, cache, x, dt, a, b, c, ids, self.kept as i64)
            };
            all.allocate(device);
            tensors.iter().zip(inputs).for_each(|(tensor, data)| all.set(*tensor, data));
            all.set(ids, &(0..seqs).map(|seq| self.row(seq) as i32).collect::<Vec<i32>>());
            // SAFETY: the tensor belongs to the context, and all are allocated.
            unsafe { device.compute(all.graph.0, output, threads) }.unwrap();
            all.get(output)
        })
    }

    /// The same in double precision.
    fn expected(&self, inputs: &[Vec<f32>; 6]) -> Vec<f64> {
        let Self { size, channels, heads, groups, tokens, seqs, kept, .. } = *self;
        let [cache, x, dt, a, b, c] = inputs.each_ref().map(|data| wide(data));
        let of_sequence = size * channels * heads;
        let mut out = vec![0.0; x.len()];
        let mut states = vec![0.0; kept * seqs * of_sequence];
        for seq in 0..seqs {
            let mut state = cache[self.row(seq) * of_sequence..][..of_sequence].to_vec();
            for token in 0..tokens {
                let at = seq * tokens + token;
                for (row, state) in state.chunks_mut(size).enumerate() {
                    let (head, group) = (row / channels, row / channels / (heads / groups));
                    let step = dt[at * heads + head].exp().ln_1p();
                    let input = x[at * channels * heads + row] * step;
                    let matrices = (at * groups + group) * size;
                    for (i, state) in state.iter_mut().enumerate() {
                        let rate = if self.is_each_decayed { a[head * size + i] } else { a[head] };
                        *state = *state * (step * rate).exp() + b[matrices + i] * input;
                        out[at * channels * heads + row] += *state * c[matrices + i];
                    }
                }
                let behind = tokens - 1 - token;
                if behind < kept {
                    let place = (behind * seqs + seq) * of_sequence;
                    states[place..][..of_sequence].copy_from_slice(&state);
                }
            }
        }
        [out, states].concat()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn a_state_space_model_is_what_its_definition_says_in_every_set_of_kernels(
        size in prop::sample::select(vec![16usize, 32, 128]),
        channels in prop::sample::select(vec![1usize, 3, 64]),
        (heads, groups) in prop::sample::select(vec![(1usize, 1usize), (4, 2), (6, 1), (8, 8)]),
        tokens in 1usize..12,
        seqs in 1usize..4,
        is_each_decayed in any::<bool>(),
        kept in 1usize..4,
        threads in 1i32..4,
        seed in any::<u64>(),
    ) {
        let kept = if is_each_decayed { 1 } else { kept.min(tokens) };
        let scan = Scan { size, channels, heads, groups, tokens, seqs, is_each_decayed, kept };
        let inputs = scan.inputs(seed);
        assert_close(&scan.run(&inputs, threads), &scan.expected(&inputs), "scan");
    }
}
