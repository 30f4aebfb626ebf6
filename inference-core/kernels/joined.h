// Products of up to eight rows with AVX-512. The two lanes of a column are added as whole numbers, and then multiplied
// with the scales: the numbers of the kernels for many rows, added in the same order, so that a row does not depend on
// the rows beside it.
#pragma once

#include "lanes.h"
#include "wide_block.h"

#if defined(__AVX512VNNI__)

namespace {

/// The sums of the products of a row and some quarters of a block, both lanes of a column together.
template <int QUARTER, int COUNT>
ALWAYS_INLINE Integers joined_sums(const Integers (&weights)[2][QUARTERS], const int8_t * bytes) {
    Sum first(0), second(0);
#pragma GCC unroll 4
    for (int q = QUARTER; q < QUARTER + COUNT; q++) {
        int64_t eight;
        memcpy(&eight, bytes + q * 8, sizeof(eight));
        first.add(weights[0][q], eight_bytes(eight));
        second.add(weights[1][q], eight_bytes(eight));
    }
    return _mm512_add_epi32(lanes_of(first.lanes, second.lanes, 0), lanes_of(first.lanes, second.lanes, 1));
}

/// Adds the products of what has one scale, a block or a half of one, and ROWS rows to their totals.
template <int HALF, class Lanes, int ROWS>
ALWAYS_INLINE void add_half(__m512 (&totals)[ROWS], const Integers (&weights)[2][QUARTERS], Vec scales,
                            const WideRow (&rows)[ROWS], int b) {
    constexpr int COUNT = Lanes::HAS_HALVES ? QUARTERS / 2 : QUARTERS;
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        Integers sums = joined_sums<HALF * COUNT, COUNT>(weights, rows[r].bytes + b * BLOCK);
        const HalfSums & start = rows[r].starts[b];
        if constexpr (Lanes::OFFSET != 0) sums = _mm512_add_epi32(sums, four_bytes(HALF == 0 ? start.first : start.second));
        const __m512 of_row = _mm512_mul_ps((__m512) scales, _mm512_set1_ps(rows[r].scales[b]));
        totals[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), of_row, totals[r]);
    }
}

/// Adds the products of a block and ROWS rows to their totals.
template <class Lanes, int ROWS>
ALWAYS_INLINE void add_lanes(__m512 (&totals)[ROWS], const Lanes & lanes, int part, const WideRow (&rows)[ROWS], int b) {
    Integers weights[2][QUARTERS];
    lanes.unpack(part, weights);
    add_half<0, Lanes>(totals, weights, lanes.scales(part), rows, b);
    if constexpr (Lanes::HAS_HALVES) add_half<1, Lanes>(totals, weights, lanes.second_scales(part), rows, b);
    if constexpr (Lanes::HAS_MINS) {
        const __m512 mins = (__m512) lanes.mins(part);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            totals[r] = _mm512_fnmadd_ps(mins, _mm512_set1_ps(rows[r].scaled_sums[b]), totals[r]);
        }
    }
}

/// ROWS rows times `count` columns, one or two groups, from `column` on. `is_first`: the weights come from memory.
template <int ROWS, class Weights>
void multiply_groups(const Weights & weights, int column, int count, const Activations & activations,
                     const TileRows & tile, bool is_first) {
    typedef typename Weights::Lanes Lanes;
    __m512 totals[ROWS];
    WideRow rows[ROWS];
    // Unrolled: otherwise GCC keeps the totals in memory.
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        totals[r] = _mm512_setzero_ps();
        rows[r] = WideRow(activations, tile.rows[r]);
    }
    for (int b = 0; b < activations.blocks; b += Lanes::BLOCKS) {
        Lanes lanes(weights, column, count, b / Lanes::BLOCKS);
        for (int i = 0; i < Lanes::BLOCKS; i++) {
            if (i % Lanes::CHUNK == 0) lanes.load(i);
            if (is_first) weights.prefetch_later(column, count, b + i);
            add_lanes(totals, lanes, i, rows, b + i);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) store_wide((Vec) in_order(totals[r]), tile.out[r] + column, count);
}

/// ROWS rows times the columns `first..end`, whole groups.
template <int ROWS, class Weights>
void multiply_joined_columns(const Weights & weights, int first, int end, const Activations & activations,
                             const TileRows & tile, bool is_first) {
    for (int column = first; column < end; column += WIDE_COLUMNS) {
        const int count = end - column < WIDE_COLUMNS ? end - column : WIDE_COLUMNS;
        multiply_groups<ROWS>(weights, column, count, activations, tile, is_first);
    }
}

} // namespace

#endif
