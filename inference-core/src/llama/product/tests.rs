//! Compares products with their definition in double precision, and with each other.

use super::*;
use crate::hardware::Kernel;
use crate::llama::attention::tests::runs_here;
use proptest::prelude::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

/// Types with blocks of 32.
const SMALL: [sys::ggml_type; 7] = [
    sys::GGML_TYPE_Q4_0,
    sys::GGML_TYPE_Q4_1,
    sys::GGML_TYPE_Q5_0,
    sys::GGML_TYPE_Q5_1,
    sys::GGML_TYPE_Q8_0,
    sys::GGML_TYPE_IQ4_NL,
    sys::GGML_TYPE_MXFP4,
];
const LARGE: [sys::ggml_type; 5] = [
    sys::GGML_TYPE_Q3_K,
    sys::GGML_TYPE_Q4_K,
    sys::GGML_TYPE_Q5_K,
    sys::GGML_TYPE_Q6_K,
    sys::GGML_TYPE_IQ4_XS,
];
/// Types without blocks.
const FLOATS: [sys::ggml_type; 3] = [sys::GGML_TYPE_F32, sys::GGML_TYPE_F16, sys::GGML_TYPE_BF16];

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
    Product { rows, planes: 1, matrices: 1, columns, depth, input, weights, experts: None }
}

/// A product of so many matrices, each with rows of its own.
fn planes_product([rows, columns, depth]: [usize; 3], planes: usize, seed: u64) -> Product {
    let all = product([planes * rows, planes * columns, depth], seed);
    Product { planes, matrices: planes, columns, ..all }
}

/// A product whose weights are `count` matrices.
fn expert_product(
    [rows, columns, depth]: [usize; 3],
    (count, used): (usize, usize),
    are_inputs_apart: bool,
    seed: u64,
) -> Product {
    let mut random = Pcg64::seed_from_u64(seed);
    let mut choose = |_| {
        // Different experts for each row, and some that no row uses.
        let first = random.next_u32() as usize % count;
        (0..used).map(move |i| ((first + i * 3) % count) as i32)
    };
    let ids = (0..rows).flat_map(&mut choose).collect();
    let inputs = rows * if are_inputs_apart { used } else { 1 };
    let all = product([inputs, columns * count, depth], seed);
    let experts = Some(Experts { count, used, ids, are_inputs_apart });
    Product { rows, columns, experts, ..all }
}

impl Product {
    /// The input and the first column of the weights for the result at an index.
    fn operands(&self, result: usize) -> (&[f32], usize) {
        let (i, column) = (result / self.columns, result % self.columns);
        let (input, column) = match &self.experts {
            None => (i, i * self.matrices / self.rows * self.columns + column),
            Some(experts) => {
                let (row, used) = (i / experts.used, i % experts.used);
                let input = row * experts.inputs() + used % experts.inputs();
                (input, experts.ids[i] as usize * self.columns + column)
            }
        };
        (&self.input[input * self.depth..][..self.depth], column)
    }
}

/// The weights after quantization.
fn unpacked(product: &Product, kind: sys::ggml_type) -> Vec<f32> {
    let packed = product.packed(kind);
    let mut all = vec![0.0f32; product.weights.len()];
    if kind == sys::GGML_TYPE_F32 {
        return product.weights.clone();
    }
    // SAFETY: the sizes are those of the matrix, and all types here can be converted.
    unsafe {
        let to_float = (*sys::ggml_get_type_traits(kind)).to_float.unwrap();
        to_float(packed.as_ptr().cast(), all.as_mut_ptr(), all.len() as i64);
    }
    all
}

/// Compares with the product in double precision. Tolerates what rounding activations to 8 bits
/// may change, with scales in half precision, as ggml's are. Our products of floats round none.
fn check(product: &Product, kind: sys::ggml_type, threads: i32) {
    let weights = unpacked(product, kind);
    for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
        let device = Device::open(*kernel).unwrap();
        for layout in device.layouts() {
            let Some(got) = product.run(&device, layout, kind, threads).unwrap() else {
                continue;
            };
            for (i, got) in got.iter().enumerate() {
                let (x, column) = product.operands(i);
                let w = &weights[column * product.depth..][..product.depth];
                let pairs = || x.iter().zip(w).map(|(x, w)| (f64::from(*x), f64::from(*w)));
                let expected: f64 = pairs().map(|(x, w)| x * w).sum();
                let peak = pairs().fold(0.0f64, |peak, (x, _)| peak.max(x.abs()));
                let rounded: f64 = pairs().map(|(_, w)| w.abs() * peak / 254.0).sum();
                let scaled: f64 = pairs().map(|(x, w)| (x * w).abs() / 1000.0).sum();
                let off = (f64::from(*got) - expected).abs();
                let is_exact = is_ours(layout, kind) && FLOATS.contains(&kind);
                let tolerance = match is_exact {
                    true => scaled / 100.0 + 1e-9,
                    false => 1.01 * rounded + scaled + 1e-6,
                };
                assert!(off <= tolerance, "{kernel:?}, type {kind}, {i}: {got}, not {expected}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(140))]
    #[test]
    fn products_are_what_their_definition_says(
        in_plane in prop_oneof![1usize..41, Just(64), Just(67)],
        planes in prop::sample::select(vec![1usize, 1, 2, 3, 5]),
        has_matrices in any::<bool>(),
        groups in 1usize..12,
        more in prop::sample::select(vec![0usize, 0, 0, 1, 4]),
        blocks in 1usize..4,
        kind in prop::sample::select([&SMALL[..], &LARGE, &FLOATS].concat()),
        threads in 1i32..4,
        seed in any::<u64>(),
    ) {
        let depth = match kind {
            kind if SMALL.contains(&kind) => 32 * (1 + seed as usize % 40),
            kind if FLOATS.contains(&kind) => 1 + seed as usize % 400,
            _ => 256 * blocks,
        };
        let columns = groups * 8 + more;
        let product = match has_matrices {
            true => planes_product([in_plane, columns, depth], planes, seed),
            false => Product { planes, ..product([in_plane * planes, columns, depth], seed) },
        };
        check(&product, kind, threads);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn products_of_experts_are_what_their_definition_says(
        rows in prop_oneof![1usize..24, Just(64), Just(150)],
        groups in 1usize..8,
        more in prop::sample::select(vec![0usize, 0, 0, 4]),
        chosen in prop::sample::select(vec![(4usize, 1usize), (8, 2), (5, 4), (32, 8)]),
        are_inputs_apart in any::<bool>(),
        kind in prop::sample::select([&SMALL[..], &LARGE, &FLOATS].concat()),
        threads in 1i32..4,
        seed in any::<u64>(),
    ) {
        let depth = if SMALL.contains(&kind) { 32 * (1 + seed as usize % 10) } else { 256 };
        let sizes = [rows, groups * 8 + more, depth];
        check(&expert_product(sizes, chosen, are_inputs_apart, seed), kind, threads);
    }
}

#[test]
fn a_row_of_planes_is_the_same_alone_and_with_every_set_of_kernels() {
    for kind in [&SMALL[..], &LARGE, &FLOATS].concat() {
        let depth = if LARGE.contains(&kind) { 512 } else { 160 };
        let all = planes_product([43, 40, depth], 3, 5);
        let mut first = None;
        for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
            let device = Device::open(*kernel).unwrap();
            for layout in device.layouts().into_iter().filter(|l| is_read_by_ours(*l, kind)) {
                let Some(got) = all.run(&device, layout, kind, 2).unwrap() else { continue };
                let expected = first.get_or_insert_with(|| got.clone());
                assert_eq!(&got, expected, "{kernel:?}, type {kind}");
                for rows in [1, 2, 5, 9, 17, 40] {
                    let planes = all.input.chunks(43 * depth);
                    let input = planes.flat_map(|plane| plane[..rows * depth].to_vec()).collect();
                    let weights = all.weights.clone();
                    let some = Product { rows: 3 * rows, input, weights, experts: None, ..all };
                    let apart = some.run(&device, layout, kind, 2).unwrap().unwrap();
                    let planes = got.chunks(43 * 40);
                    let beside: Vec<f32> =
                        planes.flat_map(|plane| plane[..rows * 40].to_vec()).collect();
                    assert_eq!(apart, beside, "{kernel:?}, type {kind}: {rows} of 43 rows");
                }
            }
        }
        assert!(first.is_some(), "type {kind}");
    }
}

/// ggml computes IQ4_NL, MXFP4 and Q4_K where they are not interleaved. Its products of Q4_0,
/// Q5_0 and Q8_0 on x86-64 are as exact as ours.
fn is_ours(layout: sys::ggml_backend_buffer_type_t, kind: sys::ggml_type) -> bool {
    match kind {
        sys::GGML_TYPE_Q4_0 if cfg!(not(target_arch = "x86_64")) => is_interleaved(layout),
        sys::GGML_TYPE_IQ4_NL | sys::GGML_TYPE_MXFP4 | sys::GGML_TYPE_Q4_K => {
            is_interleaved(layout)
        }
        _ => true,
    }
}

/// True for the one layout of a type that our kernels read.
fn is_read_by_ours(layout: sys::ggml_backend_buffer_type_t, kind: sys::ggml_type) -> bool {
    let interleaved =
        [sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_IQ4_NL, sys::GGML_TYPE_MXFP4, sys::GGML_TYPE_Q4_K];
    is_interleaved(layout) == interleaved.contains(&kind)
}

fn is_interleaved(layout: sys::ggml_backend_buffer_type_t) -> bool {
    // SAFETY: the layout is valid, and its name is a constant.
    let name = unsafe { std::ffi::CStr::from_ptr(sys::ggml_backend_buft_name(layout)) };
    name.to_bytes() == b"CPU_REPACK"
}

/// Layouts of a device and types whose products are ours.
fn all_of_ours(device: &Device) -> Vec<(sys::ggml_backend_buffer_type_t, sys::ggml_type)> {
    let kinds = [&SMALL[..], &LARGE, &FLOATS].concat();
    let pairs = device.layouts().into_iter().flat_map(|l| kinds.iter().map(move |k| (l, *k)));
    pairs.filter(|(layout, kind)| is_ours(*layout, *kind)).collect()
}

#[test]
fn a_row_does_not_depend_on_the_rows_beside_it() {
    for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
        let device = Device::open(*kernel).unwrap();
        let mut tested = std::collections::BTreeSet::new();
        for (layout, kind) in all_of_ours(&device) {
            let depth = match kind {
                kind if SMALL.contains(&kind) => 928,
                kind if FLOATS.contains(&kind) => 907,
                _ => 1280,
            };
            let all = product([75, 40, depth], 5);
            let Some(together) = all.run(&device, layout, kind, 2).unwrap() else { continue };
            tested.insert(kind);
            for rows in (1..=40).chain([64, 67]) {
                let input = all.input[..rows * all.depth].to_vec();
                let weights = all.weights.clone();
                let some = Product { rows, input, weights, experts: None, ..all };
                let apart = some.run(&device, layout, kind, 2).unwrap().unwrap();
                let beside = &together[..rows * all.columns];
                assert_eq!(apart, beside, "{kernel:?}, type {kind}: {rows} of 75 rows");
            }
        }
        let all = SMALL.len() + LARGE.len() + FLOATS.len();
        assert_eq!(tested.len(), all, "{kernel:?}: {tested:?}");
    }
}

#[test]
fn a_row_does_not_depend_on_how_many_panels_there_are() {
    for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
        let device = Device::open(*kernel).unwrap();
        // Activations of so many rows do not stay in the second cache.
        let all = product([200, 24, 5120], 5);
        for (layout, kind) in all_of_ours(&device) {
            let Some(together) = all.run(&device, layout, kind, 2).unwrap() else { continue };
            for rows in [1, 97, 130] {
                let input = all.input[..rows * all.depth].to_vec();
                let weights = all.weights.clone();
                let some = Product { rows, input, weights, experts: None, ..all };
                let apart = some.run(&device, layout, kind, 2).unwrap().unwrap();
                let beside = &together[..rows * all.columns];
                assert_eq!(apart, beside, "{kernel:?}, type {kind}: {rows} of 200 rows");
            }
        }
    }
}

/// Sums of a block are whole numbers, and totals are added and rounded in one order.
#[test]
fn all_sets_of_kernels_compute_the_same_products() {
    for kind in [&SMALL[..], &LARGE, &FLOATS].concat() {
        let sizes = [20, 40, if LARGE.contains(&kind) { 1280 } else { 928 }];
        for all in [product(sizes, 5), expert_product(sizes, (8, 2), false, 5)] {
            let mut first = None;
            for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
                let device = Device::open(*kernel).unwrap();
                for layout in device.layouts().into_iter().filter(|l| is_read_by_ours(*l, kind)) {
                    let Some(got) = all.run(&device, layout, kind, 2).unwrap() else { continue };
                    let expected = first.get_or_insert_with(|| got.clone());
                    assert_eq!(&got, expected, "{kernel:?}, type {kind}");
                }
            }
            assert!(first.is_some(), "type {kind}");
        }
    }
}

#[test]
fn a_row_of_experts_does_not_depend_on_the_rows_beside_it() {
    for kernel in Kernel::ALL.iter().filter(|kernel| runs_here(**kernel)) {
        let device = Device::open(*kernel).unwrap();
        for ((layout, kind), are_inputs_apart) in
            all_of_ours(&device).into_iter().flat_map(|some| [(some, false), (some, true)])
        {
            let all = expert_product([75, 40, 256], (32, 8), are_inputs_apart, 5);
            let Some(together) = all.run(&device, layout, kind, 2).unwrap() else { continue };
            for rows in [1, 2, 3, 5, 9, 18, 40, 67] {
                let chosen = all.experts.as_ref().unwrap();
                let input = all.input[..rows * chosen.inputs() * all.depth].to_vec();
                let ids = chosen.ids[..rows * chosen.used].to_vec();
                let experts = Some(Experts { ids, ..*chosen });
                let weights = all.weights.clone();
                let some = Product { rows, input, weights, experts, ..all };
                let apart = some.run(&device, layout, kind, 2).unwrap().unwrap();
                let beside = &together[..apart.len()];
                assert_eq!(apart, beside, "{kernel:?}, type {kind}: {rows} of 75 rows");
            }
        }
    }
}
