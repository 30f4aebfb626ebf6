// The products of a block of weights and some rows with the instructions of ARM, which multiply signed bytes: two
// rows and two columns at a time (i8mm), a row and four columns (dotprod), or element by element.
//
// Sums of a block are whole numbers in all three, so that all compute the same.
#pragma once

#include "wide_block.h"

#if defined(__ARM_NEON)

namespace {

/// Gives unsigned weights their signs.
template <class Weights>
inline void prepare(WideBlock & block) {
    if constexpr (Weights::OFFSET != 0) {
        for (Integers & part : block.parts) part = (Integers) vsubq_s8((int8x16_t) part, vdupq_n_s8(Weights::OFFSET));
    }
}

/// Adds sums of products, as whole numbers, to the total of a row.
template <int ROW, int ROWS>
ALWAYS_INLINE void add_sums(Vec (&totals)[ROWS], int32x4_t sums, const Vec & scales, const WideRow (&rows)[ROWS], int b) {
    totals[ROW] += numbers_of((Integers) sums) * (scales * rows[ROW].scales[b]);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

/// The eight elements `k` of a block of two rows. `ARE_BESIDE`: they are packed together.
template <bool ARE_BESIDE>
inline int8x16_t eight_of(const WideRow & first, const WideRow & second, int b, int k) {
    const ptrdiff_t at = (ptrdiff_t) b * BLOCK_STEP + k * 2 * PAIR_BYTES;
    if (ARE_BESIDE) return vld1q_s8(first.bytes + at);
    return vcombine_s8(vld1_s8(first.bytes + at), vld1_s8(second.bytes + at));
}

/// The same of one row, and zeros.
inline int8x16_t eight_of(const WideRow & row, int b, int k) {
    const ptrdiff_t at = (ptrdiff_t) b * BLOCK_STEP + k * 2 * PAIR_BYTES;
    return vcombine_s8(vld1_s8(row.bytes + at), vdup_n_s8(0));
}

/// Adds the products of some elements of COUNT rows, one or two, from ROW on.
template <int ROW, int COUNT, bool ARE_BESIDE, class Weights, int ROWS>
ALWAYS_INLINE void add_pair(Vec (&totals)[ROWS], const WideBlock & block, const WideRow (&rows)[ROWS], int b, int half) {
    constexpr int EIGHTS = Weights::HAS_HALVES ? QUARTERS / 2 : QUARTERS;
    int32x4_t low = vdupq_n_s32(0), high = low;
#pragma GCC unroll 4
    for (int i = 0; i < EIGHTS; i++) {
        const int k = half * EIGHTS + i;
        int8x16_t of_rows;
        if constexpr (COUNT == 2) of_rows = eight_of<ARE_BESIDE>(rows[ROW], rows[ROW + 1], b, k);
        else of_rows = eight_of(rows[ROW], b, k);
        low = vmmlaq_s32(low, of_rows, (int8x16_t) block.parts[2 * k]);
        high = vmmlaq_s32(high, of_rows, (int8x16_t) block.parts[2 * k + 1]);
    }
    const Vec & scales = half == 0 ? block.scales : block.second_scales;
    add_sums<ROW>(totals, (int32x4_t) low_pairs((Integers) low, (Integers) high), scales, rows, b);
    if constexpr (COUNT == 2) {
        add_sums<ROW + 1>(totals, (int32x4_t) high_pairs((Integers) low, (Integers) high), scales, rows, b);
    }
}

/// Adds the products of some elements of COUNT rows, from FIRST on, to their totals.
template <int FIRST, int COUNT, bool ARE_BESIDE, class Weights, int ROWS>
ALWAYS_INLINE void add_elements(Vec (&totals)[ROWS], const WideBlock & block, const WideRow (&rows)[ROWS], int b, int half) {
    constexpr int NOW = COUNT < 2 ? COUNT : 2;
    add_pair<FIRST, NOW, ARE_BESIDE, Weights>(totals, block, rows, b, half);
    if constexpr (COUNT > NOW) add_elements<FIRST + NOW, COUNT - NOW, ARE_BESIDE, Weights>(totals, block, rows, b, half);
}

#else

#if defined(__ARM_FEATURE_DOTPROD)

/// Sums of products of a row and four columns.
struct Dots {
    int32x4_t sums = vdupq_n_s32(0);

    /// Adds those of sixteen elements.
    void add(const Integers * parts, int8x16_t of_row) {
        sums = vdotq_laneq_s32(sums, (int8x16_t) parts[0], of_row, 0);
        sums = vdotq_laneq_s32(sums, (int8x16_t) parts[1], of_row, 1);
        sums = vdotq_laneq_s32(sums, (int8x16_t) parts[2], of_row, 2);
        sums = vdotq_laneq_s32(sums, (int8x16_t) parts[3], of_row, 3);
    }
    int32x4_t get() const { return sums; }
};

#else

struct Dots {
    /// Of two columns each, which have two sums.
    int32x4_t low = vdupq_n_s32(0), high = low;

    void add(const Integers * parts, int8x16_t of_row) {
        const int32x4_t fours = (int32x4_t) of_row;
        add_two(parts, vdupq_laneq_s32(fours, 0), vdupq_laneq_s32(fours, 1));
        add_two(parts + 2, vdupq_laneq_s32(fours, 2), vdupq_laneq_s32(fours, 3));
    }
    int32x4_t get() const { return vpaddq_s32(low, high); }

private:
    /// Two products of bytes that are at most 127 fit into 16 bits, also if one byte is -128.
    void add_two(const Integers * parts, int32x4_t first, int32x4_t second) {
        const int8x16_t a = (int8x16_t) parts[0], b = (int8x16_t) parts[1];
        const int8x16_t x = (int8x16_t) first, y = (int8x16_t) second;
        low = vpadalq_s16(low, vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(x)), vget_low_s8(b), vget_low_s8(y)));
        high = vpadalq_s16(high, vmlal_high_s8(vmull_high_s8(a, x), b, y));
    }
};

#endif

template <int FIRST, int COUNT, class Weights, int ROWS, int R = 0>
ALWAYS_INLINE void add_all(Vec (&totals)[ROWS], const Dots (&dots)[COUNT], const Vec & scales, const WideRow (&rows)[ROWS], int b) {
    add_sums<FIRST + R>(totals, dots[R].get(), scales, rows, b);
    if constexpr (R + 1 < COUNT) add_all<FIRST, COUNT, Weights, ROWS, R + 1>(totals, dots, scales, rows, b);
}

/// Adds the products of some elements of COUNT rows, from FIRST on, to their totals.
template <int FIRST, int COUNT, bool ARE_BESIDE, class Weights, int ROWS>
ALWAYS_INLINE void add_elements(Vec (&totals)[ROWS], const WideBlock & block, const WideRow (&rows)[ROWS], int b, int half) {
    constexpr int SIXTEENS = Weights::HAS_HALVES ? 1 : 2;
    Dots dots[COUNT];
#pragma GCC unroll 2
    for (int i = 0; i < SIXTEENS; i++) {
        const int s = half * SIXTEENS + i;
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; r++) {
            dots[r].add(block.parts + s * QUARTERS, vld1q_s8(rows[FIRST + r].bytes + b * BLOCK_STEP + s * 16));
        }
    }
    const Vec & scales = half == 0 ? block.scales : block.second_scales;
    add_all<FIRST, COUNT, Weights>(totals, dots, scales, rows, b);
}

#endif

} // namespace

#endif
