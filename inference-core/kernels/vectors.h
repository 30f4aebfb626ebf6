// Vectors as wide as the kernels' instructions, and products of small matrices whose columns
// are lanes. Compiled once for each set of kernels; the names are local to each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))

namespace {

#if defined(__AVX512F__)
constexpr int WIDTH = 16;
constexpr int BLOCK_ROWS = 8;
#elif defined(__AVX__)
constexpr int WIDTH = 8;
constexpr int BLOCK_ROWS = 4;
#else
constexpr int WIDTH = 4;
constexpr int BLOCK_ROWS = 8;
#endif

typedef float Vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

inline Vec & at(float * p) { return *reinterpret_cast<Vec *>(p); }
inline const Vec & at(const float * p) { return *reinterpret_cast<const Vec *>(p); }
inline Vec all(float x) { return x - Vec{}; }

constexpr float LOG2_E = 1.44269504f;

/// Adding this number (1.5 * 2^23) rounds to a whole one, whose low bits the sum then holds.
constexpr float ROUND = 12582912.0f;

inline Vec round(Vec x) { return x + ROUND - ROUND; }

/// x * 2^n for whole n: exact, and 0 below the smallest normal number.
inline Vec shift(Vec x, Vec n) {
    const Ints bits = (Ints) x + ((Ints) (n + ROUND) << 23);
    return n < -126.0f ? Vec{} : (Vec) bits;
}

/// 2^x for |x| <= 1/2. Polynomial: Cephes, expf.
inline Vec exp2_fraction(Vec x) {
    const Vec r = x * 0.693147181f;
    Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * (r * r) + r + 1.0f;
}

/// 2^x.
inline Vec exp2(Vec x) {
    const Vec whole = round(x);
    return shift(exp2_fraction(x - whole), whole);
}

/// a * b + c, rounded once: also where the compiler may not fuse, or has the choice between two products.
inline Vec fused(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
    return (Vec) _mm512_fmadd_ps((__m512) a, (__m512) b, (__m512) c);
#elif defined(__FMA__)
    return (Vec) _mm256_fmadd_ps((__m256) a, (__m256) b, (__m256) c);
#elif defined(__ARM_NEON)
    return (Vec) vfmaq_f32((float32x4_t) c, (float32x4_t) a, (float32x4_t) b);
#endif
}

/// Below it, e^x is less than the smallest normal number: 0. Above the other, it is more than the largest.
constexpr float EXP_MIN = -87.0f, EXP_MAX = 88.0f, EXP_LARGEST = 1.65163625e38f;
/// log(2) in two parts: products of the first one and a small whole number are exact (Cephes, expf).
constexpr float LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;

/// e^x, with an error of one or two units in the last place; 0 below EXP_MIN, and as at EXP_MAX beyond it.
/// Polynomial: Cephes, expf.
inline Vec exp(Vec x) {
    const Vec shifted = fused(x, all(LOG2_E), all(ROUND)), whole = shifted - ROUND;
    const Vec r = fused(whole, all(-LN2_LOW), fused(whole, all(-LN2_HIGH), x));
    Vec p = fused(r, all(1.9875691500e-4f), all(1.3981999507e-3f));
    p = fused(p, r, all(8.3334519073e-3f));
    p = fused(p, r, all(4.1665795894e-2f));
    p = fused(p, r, all(1.6666665459e-1f));
    p = fused(p, r, all(5.0000001201e-1f));
    p = fused(p, r * r, r) + 1.0f;
    // The low bits of `shifted` are the exponent.
    const Vec power = (Vec) ((Ints) p + ((Ints) shifted << 23));
    return x < EXP_MIN ? Vec{} : (x > EXP_MAX ? all(EXP_LARGEST) : power);
}

/// Beyond +-9 it is 1 to the last bit. Polynomial: Cephes, tanhf.
inline Vec tanh(Vec x) {
    Vec size = x < 0.0f ? -x : x;
    size = size > 9.0f ? all(9.0f) : size;
    const Vec far = 1.0f - 2.0f / (exp2(size * (2 * LOG2_E)) + 1.0f);
    const Vec z = x * x;
    Vec p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const Vec near = x + x * z * p;
    return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

/// For each place, an element of `a` (0..WIDTH) or of `b` (from WIDTH on).
template <int... PLACES>
inline Vec pick(Vec a, Vec b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, PLACES...);
#else
    return __builtin_shuffle(a, b, Ints{PLACES...});
#endif
}

/// Swaps two vectors' elements whose places differ in the bit STEP, off the diagonal.
template <int STEP, int... I>
inline void swap_corners(Vec & a, Vec & b, std::integer_sequence<int, I...>) {
    const Vec low = pick<(I & STEP ? I - STEP + WIDTH : I)...>(a, b);
    b = pick<(I & STEP ? I + WIDTH : I + STEP)...>(a, b);
    a = low;
}

/// Transposes a square, by halves of halves (Eklundh, 1972).
template <int STEP = WIDTH / 2>
inline void transpose(Vec (&square)[WIDTH]) {
    for (int i = 0; i < WIDTH; i++) {
        if (i & STEP) continue;
        swap_corners<STEP>(square[i], square[i + STEP], std::make_integer_sequence<int, WIDTH>());
    }
    if constexpr (STEP > 1) transpose<STEP / 2>(square);
}

/// Lanes of a sum that runs along a row: as many with vectors of any width, so that all sets of kernels add the same
/// numbers in the same order.
constexpr int LINE = 16;
/// Vectors of a line.
constexpr int PARTS = LINE / WIDTH;

/// Adds to each lane the one whose place differs in the bit STEP, by halves.
template <int STEP, int... I>
inline Vec fold(Vec x, std::integer_sequence<int, I...> all) {
    x += pick<(I ^ STEP)...>(x, x);
    if constexpr (STEP > 1) return fold<STEP / 2>(x, all);
    return x;
}

/// A line as one vector: adds its parts, by halves.
inline Vec join(const Vec (&line)[PARTS]) {
    Vec sums[PARTS];
    for (int i = 0; i < PARTS; i++) sums[i] = line[i];
    for (int half = PARTS / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    }
    return sums[0];
}

/// The sum of a line's lanes.
inline float sum_of(const Vec (&line)[PARTS]) {
    return fold<WIDTH / 2>(join(line), std::make_integer_sequence<int, WIDTH>())[0];
}

/// A matrix whose element (row, k) stands at row * row_step + k * k_step.
struct Matrix {
    const float * data;
    ptrdiff_t row_step;
    ptrdiff_t k_step;
};

template <int ROWS, int VECS, bool ADD>
inline void multiply_block(const Matrix & a, const float * b, float * c, ptrdiff_t step, int depth) {
    Vec sums[ROWS][VECS];
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < VECS; j++) {
            sums[i][j] = ADD ? at(c + i * step + j * WIDTH) : Vec{};
        }
    }
    const float * x = a.data;
    for (int k = 0; k < depth; k++, x += a.k_step, b += step) {
        for (int j = 0; j < VECS; j++) {
            const Vec lanes = at(b + j * WIDTH);
            for (int i = 0; i < ROWS; i++) {
                sums[i][j] += x[i * a.row_step] * lanes;
            }
        }
    }
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < VECS; j++) {
            at(c + i * step + j * WIDTH) = sums[i][j];
        }
    }
}

/// c[row][lane] (+)= sum over k of a(row, k) * b[k][lane]; rows in whole blocks.
template <bool ADD>
void multiply(Matrix a, const float * b, float * c, int rows, int depth, int lanes) {
    for (int j = 0; j < lanes;) {
        const bool two = j + 2 * WIDTH <= lanes;
        Matrix block = a;
        for (int i = 0; i < rows; i += BLOCK_ROWS, block.data += BLOCK_ROWS * a.row_step) {
            float * out = c + (ptrdiff_t) i * lanes + j;
            if (two) {
                multiply_block<BLOCK_ROWS, 2, ADD>(block, b + j, out, lanes, depth);
            } else {
                multiply_block<BLOCK_ROWS, 1, ADD>(block, b + j, out, lanes, depth);
            }
        }
        j += two ? 2 * WIDTH : WIDTH;
    }
}

} // namespace
