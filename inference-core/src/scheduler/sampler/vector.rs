//! PURE. Loops over a whole vocabulary, written so that the compiler vectorizes them: 128 bits
//! wide, or 256 where the CPU supports it.

use multiversion::multiversion;

const LANES: usize = 16;

/// The largest value, ignoring NaN. Negative infinity if there is none.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn maximum(values: &[f32]) -> f32 {
    largest(values)
}

#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if *value > *lane { *value } else { *lane };
        }
    }
    let larger = |max: f32, value: &f32| if *value > max { *value } else { max };
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, larger)
}

/// Values of a block of [`block_maxima`].
pub(crate) const MAXIMA_BLOCK: usize = 64;

/// Writes the largest value of each block, as [`maximum`] does.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn block_maxima(values: &[f32], maxima: &mut Vec<f32>) {
    maxima.clear();
    maxima.extend(values.chunks(MAXIMA_BLOCK).map(largest));
}

/// Writes `exp((value - max) * scale)` of every value to `out`; 0 for NaN.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(crate) fn exp_differences(values: &[f32], max: f32, scale: f32, out: &mut Vec<f32>) {
    out.resize(values.len(), 0.0);
    for (out, value) in out.iter_mut().zip(values) {
        *out = exp_negative((value - max) * scale);
    }
}

/// Weights of the tokens of a vocabulary, or of a subset.
#[derive(Debug, Default)]
pub(crate) struct BlockWeights {
    /// One weight per token.
    pub(crate) values: Vec<f32>,
    /// Sum of each block, after [`Self::sum`].
    pub(crate) sums: Vec<f64>,
}

impl BlockWeights {
    /// Sums each block into `sums`; returns the total.
    pub(crate) fn sum(&mut self) -> f64 {
        block_sums(&self.values, &mut self.sums)
    }
}

/// Values summed in f32 at a time: an f32 sum of a whole vocabulary would lose the small ones.
pub(crate) const BLOCK: usize = 256;

/// Writes the sum of each block to `sums`; returns the total.
#[multiversion(targets("x86_64+avx2+fma"))]
fn block_sums(values: &[f32], sums: &mut Vec<f64>) -> f64 {
    sums.clear();
    sums.extend(values.chunks(BLOCK).map(|block| f64::from(sum(block))));
    sums.iter().sum()
}

#[inline(always)]
fn sum(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value;
        }
    }
    lanes.iter().chain(rest).sum()
}

/// e^x for x <= 0, with a relative error below 1e-5: 2^k times a polynomial of the rest, without a
/// branch. 0 below -87 and for NaN.
#[inline(always)]
fn exp_negative(x: f32) -> f32 {
    // Adding this number rounds to an integer, which the low bits then hold.
    const ROUND: f32 = 12_582_912.0;
    let small = if x > -87.0 { x } else { -87.0 };
    let t = small * std::f32::consts::LOG2_E;
    let rounded = t + ROUND;
    // The shift removes all of ROUND's own bits.
    let k = rounded.to_bits().wrapping_add(127);
    let f = t - (rounded - ROUND);
    // Fused multiply-add: one instruction on every target this is compiled for.
    let mut p = 1.540_353e-4f32;
    p = p.mul_add(f, 1.333_355_8e-3);
    p = p.mul_add(f, 9.618_129e-3);
    p = p.mul_add(f, 5.550_411e-2);
    p = p.mul_add(f, 2.402_265e-1);
    p = p.mul_add(f, 6.931_472e-1);
    p = p.mul_add(f, 1.0);
    let value = p * f32::from_bits(k << 23);
    if x > -87.0 { value } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_is_found_at_every_place_and_beside_what_is_no_number() {
        for len in 1..40 {
            for at in 0..len {
                let mut values = vec![-1.0f32; len];
                values[at] = 2.0;
                values[(at + 1) % len] = if len > 1 { f32::NAN } else { 2.0 };
                assert_eq!(maximum(&values), 2.0);
            }
        }
        assert_eq!(maximum(&[]), f32::NEG_INFINITY);
        assert_eq!(maximum(&[f32::NAN; 9]), f32::NEG_INFINITY);
    }

    #[test]
    fn each_block_has_its_maximum() {
        let values: Vec<f32> = (0..130u16).map(f32::from).collect();
        let mut maxima = vec![7.0];
        block_maxima(&values, &mut maxima);
        assert_eq!(maxima, [63.0, 127.0, 129.0]);
        block_maxima(&[], &mut maxima);
        assert!(maxima.is_empty());
    }

    #[test]
    fn sums_of_blocks_add_up_to_the_whole() {
        let values: Vec<f32> = (1..=1000u16).map(f32::from).collect();
        let mut sums = Vec::new();
        assert_eq!(block_sums(&values, &mut sums), 500_500.0);
        assert_eq!((sums.len(), sums[0]), (4, 256.0 * 257.0 / 2.0));
        assert_eq!(block_sums(&[], &mut sums), 0.0);
    }

    #[test]
    fn powers_of_e_are_right_to_five_digits() {
        let mut x = 0.0f32;
        while x > -86.9 {
            let (fast, exact) = (f64::from(exp_negative(x)), f64::from(x).exp());
            assert!((fast / exact - 1.0).abs() < 1e-5, "e^{x}: {fast} against {exact}");
            x -= 0.003;
        }
        assert_eq!((exp_negative(-1e9), exp_negative(f32::NAN)), (0.0, 0.0));
        assert_eq!(exp_negative(f32::NEG_INFINITY), 0.0);
    }
}
