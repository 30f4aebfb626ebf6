// Products of a few rows beside those with AMX: the same numbers, added in the same order, so that a row does
// not depend on the rows beside it.
//
// Sixteen columns have one lane each. The kernels for few rows of the other sets have two lanes for a column,
// which are multiplied with scales apart: their last bits differ.
#pragma once

#include "super_tile.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

namespace {

/// Weights of one block of sixteen columns, four elements of each in a part.
struct Joined {
    Integers parts[2 * QUARTERS];
    __m512 scales;

    Joined(const Unpacked & low, const Unpacked & high) {
        for (int q = 0; q < QUARTERS; q++) {
            for (int lane = 0; lane < 2; lane++) {
                parts[2 * q + lane] = lanes_of(low.quarters[q], high.quarters[q], lane);
            }
        }
        scales = (__m512) lanes_of((Integers) low.scales, (Integers) high.scales, 0);
    }
};

/// ROWS rows times `count` columns from `column` on: two groups, or one.
template <int ROWS, class Weights>
void multiply_joined_tile(const Weights & weights, int column, int count, const Activations & activations,
                          const TileRows & tile, bool is_first) {
    static_assert(!Weights::HAS_MINS, "mins are of types with blocks of 256");
    __m512 totals[ROWS];
    for (__m512 & total : totals) total = _mm512_setzero_ps();
    const int second = column + (count > GROUP ? GROUP : 0);
    for (int b = 0; b < activations.blocks; b++) {
        const Joined block(weights.unpack(column, b), weights.unpack(second, b));
        if (is_first) weights.prefetch_later(column, count, b);
        for (int r = 0; r < ROWS; r++) {
            const int row = tile.rows[r];
            int32_t words[2 * QUARTERS];
            memcpy(words, activations.row(row) + b * BLOCK, sizeof(words));
            // Two chains, because one would wait for each of its sums.
            __m512i sum = _mm512_set1_epi32(-Weights::OFFSET * activations.row_sums(row)[b].both());
            __m512i other = _mm512_setzero_si512();
            for (int p = 0; p < 2 * QUARTERS; p += 2) {
                sum = _mm512_dpbusd_epi32(sum, block.parts[p], _mm512_set1_epi32(words[p]));
                other = _mm512_dpbusd_epi32(other, block.parts[p + 1], _mm512_set1_epi32(words[p + 1]));
            }
            const __m512 product = _mm512_cvtepi32_ps(_mm512_add_epi32(sum, other));
            const __m512 scale = _mm512_mul_ps(block.scales, _mm512_set1_ps(activations.row_scales(row)[b]));
            totals[r] = _mm512_fmadd_ps(product, scale, totals[r]);
        }
    }
    const __mmask16 stored = (__mmask16) ((1u << count) - 1);
    for (int r = 0; r < ROWS; r++) _mm512_mask_storeu_ps(tile.out[r] + column, stored, totals[r]);
}

/// ROWS rows times the columns `first..end`, whole groups.
template <int ROWS, class Weights>
void multiply_joined_columns(const Weights & weights, int first, int end, const Activations & activations,
                             const TileRows & tile, bool is_first) {
    for (int column = first; column < end; column += 2 * GROUP) {
        const int count = end - column < 2 * GROUP ? end - column : 2 * GROUP;
        multiply_joined_tile<ROWS>(weights, column, count, activations, tile, is_first);
    }
}

} // namespace

#endif
