//! Tests the operations of recurrent layers (inference-core/kernels/delta.cpp and conv.cpp) against
//! their definitions, in every set of kernels that runs here.

use llama_cpp_sys_2 as sys;
use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::device::Device;
use super::test_graph::{Tensors, assert_close, devices, in_every_set};

/// A gated delta net, and where the cache has its states.
#[derive(Debug, Clone)]
struct DeltaNet {
    size: usize,
    heads: usize,
    key_heads: usize,
    tokens: usize,
    seqs: usize,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    gates: Vec<f32>,
    betas: Vec<f32>,
    /// `[row][head][value element][key element]`
    cache: Vec<f32>,
    /// The row that each sequence's state is read from, and states that are moved behind them.
    rows: Vec<i32>,
}

/// The first row that states are written to, and rows that are none of theirs behind them.
const FIRST_ROW: usize = 1;
const MORE_ROWS: usize = 2;

impl DeltaNet {
    fn new([size, heads, key_heads, tokens, seqs]: [usize; 5], seed: u64) -> Self {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut draw = |count: usize, scale: f32| -> Vec<f32> {
            let one = |random: &mut Pcg64| (random.next_u32() % 2001) as f32 / 1000.0 - 1.0;
            (0..count).map(|_| one(&mut random) * scale).collect()
        };
        let (each, width) = (tokens * seqs, 1.0 / (size as f32).sqrt());
        let rows = FIRST_ROW + seqs + MORE_ROWS;
        let gates = draw(heads * each, 0.5);
        Self {
            size,
            heads,
            key_heads,
            tokens,
            seqs,
            queries: draw(size * key_heads * each, width),
            keys: draw(size * key_heads * each, width),
            values: draw(size * heads * each, 1.0),
            gates: gates.iter().map(|gate| gate - 0.5).collect(),
            betas: draw(heads * each, 0.5).iter().map(|beta| beta + 0.5).collect(),
            cache: draw(rows * heads * size * size, 1.0),
            rows: (FIRST_ROW..FIRST_ROW + seqs).map(|row| row as i32).collect(),
        }
    }

    fn state(&self) -> usize {
        self.heads * self.size * self.size
    }

    /// The tokens `range` of each sequence.
    fn only(&self, range: std::ops::Range<usize>) -> Self {
        let part = |all: &[f32], width: usize| -> Vec<f32> {
            let of_sequence = |s: usize| (s * self.tokens + range.start) * width;
            let count = range.len() * width;
            (0..self.seqs).flat_map(|s| all[of_sequence(s)..][..count].to_vec()).collect()
        };
        Self {
            tokens: range.len(),
            queries: part(&self.queries, self.size * self.key_heads),
            keys: part(&self.keys, self.size * self.key_heads),
            values: part(&self.values, self.size * self.heads),
            gates: part(&self.gates, self.heads),
            betas: part(&self.betas, self.heads),
            ..self.clone()
        }
    }

    /// What it says of each token, and the states afterwards, those that were moved included.
    /// `in_cache`: it reads and writes them there, as llama.cpp's graphs tell ours
    /// (inference-core/memory/states.h).
    fn run(&self, device: &Device, threads: i32, in_cache: bool) -> (Vec<f32>, Vec<f32>) {
        let Self { size, heads, key_heads, tokens, seqs, .. } = *self;
        let mut all = Tensors::new();
        let of_keys = || all.floats([size, key_heads, tokens, seqs]);
        let (queries, keys) = (of_keys(), of_keys());
        let values = all.floats([size, heads, tokens, seqs]);
        let of_heads = || all.floats([1, heads, tokens, seqs]);
        let (gates, betas) = (of_heads(), of_heads());
        let cache = all.floats([self.state(), self.cache.len() / self.state(), 1, 1]);
        // SAFETY: the context is valid; the view lies within the cache.
        let (rows, output) = unsafe {
            let graph = all.graph.0;
            let (bytes, [s, h, n]) = (4 * size, [size, heads, seqs].map(|n| n as i64));
            let offset = FIRST_ROW * self.state() * 4;
            let (one, head) = (bytes * size, bytes * size * heads);
            let states = sys::ggml_view_4d(graph, cache, s, s, h, n, bytes, one, head, offset);
            let moved = self.rows.len() as i64;
            let rows = sys::ggml_new_tensor_1d(graph, sys::GGML_TYPE_I32, moved);
            let net =
                sys::ggml_gated_delta_net(graph, queries, keys, values, gates, betas, states, 1);
            if in_cache {
                (*net).src[6] = rows;
                (*net).op_params[1] = FIRST_ROW as i32;
            }
            (rows, net)
        };
        all.allocate(device);
        for (tensor, data) in [
            (queries, &self.queries),
            (keys, &self.keys),
            (values, &self.values),
            (gates, &self.gates),
            (betas, &self.betas),
            (cache, &self.cache),
        ] {
            all.set(tensor, data);
        }
        all.set(rows, &self.rows);
        // SAFETY: the tensor belongs to the context, and all are allocated.
        unsafe { device.compute(all.graph.0, output, threads) }.unwrap();
        let mut out = all.get(output);
        let behind = out.split_off(size * heads * tokens * seqs);
        let first = FIRST_ROW * self.state();
        let held = self.rows.len() * self.state();
        let states = if in_cache { all.get(cache)[first..][..held].to_vec() } else { behind };
        (out, states)
    }

    /// The same in double precision.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let Self { size, heads, key_heads, tokens, seqs, .. } = *self;
        let (mut out, mut states) = (vec![0.0; size * heads * tokens * seqs], Vec::new());
        let wide = |all: &[f32]| all.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
        for seq in 0..seqs {
            let state = &self.cache[self.rows[seq] as usize * self.state()..][..self.state()];
            for (head, state) in state.chunks(size * size).enumerate() {
                let mut state = wide(state);
                for token in 0..tokens {
                    let row = seq * tokens + token;
                    let of_keys = (row * key_heads + head % key_heads) * size;
                    let key = wide(&self.keys[of_keys..][..size]);
                    let query = wide(&self.queries[of_keys..][..size]);
                    let at = row * heads + head;
                    let decay = f64::from(self.gates[at]).exp();
                    for (place, cells) in state.chunks_mut(size).enumerate() {
                        cells.iter_mut().for_each(|cell| *cell *= decay);
                        let dot = |cells: &[f64], with: &[f64]| -> f64 {
                            cells.iter().zip(with).map(|(a, b)| a * b).sum()
                        };
                        let value = f64::from(self.values[at * size + place]);
                        let change = (value - dot(cells, &key)) * f64::from(self.betas[at]);
                        cells.iter_mut().zip(&key).for_each(|(cell, key)| *cell += change * key);
                        out[at * size + place] = dot(cells, &query) / (size as f64).sqrt();
                    }
                }
                states.extend(state);
            }
        }
        for row in &self.rows[seqs..] {
            states.extend(wide(&self.cache[*row as usize * self.state()..][..self.state()]));
        }
        (out, states)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_gated_delta_net_is_what_its_definition_says_wherever_its_states_are(
        size in prop::sample::select(vec![32usize, 64, 128]),
        (heads, key_heads) in prop::sample::select(vec![(1usize, 1usize), (2, 1), (3, 3), (4, 2)]),
        tokens in 1usize..40,
        seqs in 1usize..4,
        threads in 1i32..4,
        // Where states are, behind them, or where another sequence's is.
        shift in 0usize..4,
        is_moved in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut net = DeltaNet::new([size, heads, key_heads, tokens, seqs], seed);
        for (kernel, device) in devices() {
            let (out, states) = net.expected();
            let (got_out, got_states) = net.run(&device, threads, false);
            assert_close(&got_out, &out, &format!("{kernel:?}"));
            assert_close(&got_states, &states, &format!("{kernel:?}, states"));
            // Several may begin with the same state. What was there may be moved.
            let last = (FIRST_ROW + seqs + MORE_ROWS - 1) as i32;
            net.rows = (0..seqs).map(|seq| ((FIRST_ROW + seq + shift) as i32).min(last)).collect();
            if is_moved {
                net.rows.push(FIRST_ROW as i32);
            }
            let (out, states) = net.expected();
            let (got_out, got_states) = net.run(&device, threads, true);
            assert_close(&got_out, &out, &format!("{kernel:?}, shifted by {shift}"));
            assert_close(&got_states, &states, &format!("{kernel:?}, states shifted by {shift}"));
            net.rows = (0..seqs).map(|seq| (FIRST_ROW + seq) as i32).collect();
        }
    }

    #[test]
    fn a_gated_delta_net_is_the_same_in_every_set_of_kernels(
        size in prop::sample::select(vec![32usize, 64, 128]),
        tokens in 1usize..40,
        seed in any::<u64>(),
    ) {
        let net = DeltaNet::new([size, 3, 3, tokens, 2], seed);
        in_every_set(|device| {
            let (out, states) = net.run(device, 2, false);
            [out, states].concat()
        });
    }

    #[test]
    fn what_a_gated_delta_net_says_does_not_depend_on_how_many_tokens_it_takes_at_once(
        size in prop::sample::select(vec![64usize, 128]),
        tokens in 2usize..40,
        first in 1usize..39,
        seed in any::<u64>(),
    ) {
        let net = DeltaNet::new([size, 2, 2, tokens, 2], seed);
        let first = first.min(tokens - 1);
        for (kernel, device) in devices() {
            let (out, states) = net.run(&device, 2, true);
            let (begun, between) = net.only(0..first).run(&device, 1, true);
            let mut rest = net.only(first..tokens);
            rest.cache[FIRST_ROW * net.state()..][..between.len()].copy_from_slice(&between);
            let (rest, end) = rest.run(&device, 3, false);
            let width = size * net.heads;
            let of = |all: &[f32], seq: usize, count: usize| -> Vec<f32> {
                all[seq * count * width..][..count * width].to_vec()
            };
            let joined: Vec<f32> = (0..2)
                .flat_map(|seq| [of(&begun, seq, first), of(&rest, seq, tokens - first)].concat())
                .collect();
            assert_eq!((joined, end), (out, states), "{kernel:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_short_convolution_adds_its_taps_in_order_however_many_tokens_there_are(
        taps in 2usize..5,
        // One, fewer than a vector has lanes, and more.
        tokens in prop_oneof![Just(1usize), 2usize..16, 16usize..50],
        channels in prop::sample::select(vec![16usize, 48, 16, 48, 20, 6]),
        seqs in 1usize..3,
        threads in 1i32..4,
        seed in any::<u64>(),
    ) {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut draw = |count: usize| -> Vec<f32> {
            (0..count).map(|_| random.next_u32() as f32 / u32::MAX as f32 - 0.5).collect()
        };
        let held = taps - 1;
        let before = draw(held * channels * seqs);
        let now = draw(tokens * channels * seqs);
        let weights = draw(taps * channels);
        let row = held + tokens;
        let joined: Vec<f32> = (0..seqs * channels)
            .flat_map(|at| {
                let (seq, channel) = (at / channels, at % channels);
                let token = |t: usize| now[(seq * tokens + t) * channels + channel];
                let old = before[at * held..][..held].to_vec();
                [old, (0..tokens).map(token).collect()].concat()
            })
            .collect();
        let mut expected = vec![0.0f32; tokens * channels * seqs];
        for (at, out) in expected.iter_mut().enumerate() {
            let (seq, token, channel) =
                (at / channels / tokens, at / channels % tokens, at % channels);
            for tap in 0..taps {
                let x = joined[(seq * channels + channel) * row + token + tap];
                *out = x.mul_add(weights[channel * taps + tap], *out);
            }
        }
        for (kernel, device) in devices() {
            let mut all = Tensors::new();
            let of_before = all.floats([held, channels, seqs, 1]);
            let of_now = all.floats([channels, tokens, seqs, 1]);
            let of_weights = all.floats([taps, channels, 1, 1]);
            // SAFETY: the context is valid.
            let (concat, output) = unsafe {
                let swapped = sys::ggml_transpose(all.graph.0, of_now);
                let concat = sys::ggml_concat(all.graph.0, of_before, swapped, 0);
                (concat, sys::ggml_ssm_conv(all.graph.0, concat, of_weights))
            };
            all.allocate(&device);
            all.set(of_before, &before);
            all.set(of_now, &now);
            all.set(of_weights, &weights);
            // SAFETY: the tensor belongs to the context, and all are allocated.
            unsafe { device.compute(all.graph.0, output, threads) }.unwrap();
            assert_eq!(all.get(concat), joined, "{kernel:?}");
            // Ours has whole vectors of channels; the others are ggml's.
            if channels % 16 == 0 {
                assert_eq!(all.get(output), expected, "{kernel:?}");
            }
            let wanted: Vec<f64> = expected.iter().map(|x| f64::from(*x)).collect();
            assert_close(&all.get(output), &wanted, &format!("{kernel:?}"));
        }
    }
}
