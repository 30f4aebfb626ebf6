// The products of a block of weights and some rows with the instructions of x86, which multiply unsigned by
// signed bytes.
#pragma once

#include "wide_block.h"

#if !defined(__ARM_NEON) && !defined(__AVX512VNNI__)

namespace {

/// The sums of the products of some elements of a block of each of TILES vectors of columns, and COUNT rows.
template <int TILES, int COUNT, class Weights>
ALWAYS_INLINE void sum_elements(typename Weights::Sums (&sums)[TILES][COUNT], const WideBlock * const * blocks,
                                const WideRow * rows, int b, int half) {
    constexpr int HALVES = Weights::HAS_HALVES ? 2 : 1, PARTS = 2 * QUARTERS / HALVES;
    typedef typename Weights::Sums Sums;
    constexpr int STEP = Sums::STEP < PARTS ? Sums::STEP : PARTS;
    // All loops are unrolled: otherwise GCC keeps the sums of some types in memory.
#pragma GCC unroll 4
    for (int r = 0; r < COUNT; r++) {
        const HalfSums & starts = rows[r].starts[b];
#pragma GCC unroll 2
        for (int t = 0; t < TILES; t++) {
            sums[t][r] = Sums(Weights::OFFSET == 0 ? 0 : half == 0 ? starts.first : starts.second);
        }
    }
#pragma GCC unroll 8
    for (int p = half * PARTS; p < (half + 1) * PARTS; p += STEP) {
#pragma GCC unroll 8
        for (int i = p; i < p + STEP; i++) {
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; r++) {
                int32_t four;
                memcpy(&four, rows[r].bytes + b * BLOCK + i * 4, sizeof(four));
                const Integers bytes = four_bytes(four);
#pragma GCC unroll 2
                for (int t = 0; t < TILES; t++) {
                    if (i == p) sums[t][r].begin(blocks[t]->parts[i], bytes);
                    else sums[t][r].add(blocks[t]->parts[i], bytes);
                }
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < COUNT; r++) {
#pragma GCC unroll 2
            for (int t = 0; t < TILES; t++) sums[t][r].settle();
        }
    }
}

/// Adds the products of some elements of COUNT rows, from FIRST on, to their totals.
template <int FIRST, int COUNT, bool, class Weights, int ROWS>
ALWAYS_INLINE void add_elements(Vec (&totals)[ROWS], const WideBlock & block, const WideRow (&rows)[ROWS], int b, int half) {
    typename Weights::Sums sums[1][COUNT];
    const WideBlock * const blocks[] = {&block};
    sum_elements<1, COUNT, Weights>(sums, blocks, rows + FIRST, b, half);
    const Vec & scales = half == 0 ? block.scales : block.second_scales;
    for (int r = 0; r < COUNT; r++) totals[FIRST + r] += sums[0][r].get() * (scales * rows[FIRST + r].scales[b]);
}

/// The sums of the activations take the offset of unsigned weights into account.
template <class Weights>
inline void prepare(WideBlock &) {}

} // namespace

#endif
