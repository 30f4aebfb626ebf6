// Products of a few rows beside those with AMX: the same numbers, added in the same order, so that a row does
// not depend on the rows beside it.
//
// The kernels of the other sets multiply the two lanes of a column with its scales apart. Here they are added
// first, as whole numbers.
#pragma once

#include "super_tile.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

namespace {

/// The products of a row and some vectors of columns, two lanes each.
template <class Weights, int VECS>
inline void joined_sums(Sum (&sums)[VECS], const Unpacked (&unpacked)[VECS], const Activations & activations, int row,
                        int block) {
    const int8_t * bytes = activations.row(row) + block * BLOCK;
    add_quarters<Weights::OFFSET>(sums, unpacked, bytes, activations.row_sums(row)[block].both());
}

/// Adds products of whole numbers to a total.
inline void add_products(__m512 & total, __m512i products, __m512 scales, float of_row) {
    total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_mul_ps(scales, _mm512_set1_ps(of_row)), total);
}

/// ROWS rows times two groups of columns, from `column` on.
template <int ROWS, class Weights>
void multiply_pair(const Weights & weights, int column, const Activations & activations, const TileRows & tile,
                   bool is_first) {
    static_assert(!Weights::HAS_MINS, "types with mins have one lane for each column");
    __m512 totals[ROWS];
    for (__m512 & total : totals) total = _mm512_setzero_ps();
    for (int b = 0; b < activations.blocks; b++) {
        const Unpacked unpacked[2] = {weights.unpack(column, b), weights.unpack(column + GROUP, b)};
        const Integers scales = lanes_of((Integers) unpacked[0].scales, (Integers) unpacked[1].scales, 0);
        if (is_first) weights.prefetch_later(column, 2 * GROUP, b);
        for (int r = 0; r < ROWS; r++) {
            const int row = tile.rows[r];
            Sum sums[2];
            joined_sums<Weights>(sums, unpacked, activations, row, b);
            const Integers first = lanes_of(sums[0].lanes, sums[1].lanes, 0);
            const Integers second = lanes_of(sums[0].lanes, sums[1].lanes, 1);
            const float of_row = activations.row_scales(row)[b];
            add_products(totals[r], _mm512_add_epi32(first, second), (__m512) scales, of_row);
        }
    }
    for (int r = 0; r < ROWS; r++) _mm512_storeu_ps(tile.out[r] + column, totals[r]);
}

/// ROWS rows times one group of columns, which is read as one stream. Both lanes have the total of a column.
template <int ROWS, class Weights>
void multiply_group(const Weights & weights, int column, const Activations & activations, const TileRows & tile,
                    bool is_first) {
    static_assert(!Weights::HAS_MINS, "types with mins have one lane for each column");
    __m512 totals[ROWS];
    for (__m512 & total : totals) total = _mm512_setzero_ps();
    for (int b = 0; b < activations.blocks; b++) {
        const Unpacked unpacked[1] = {weights.unpack(column, b)};
        if (is_first) weights.prefetch_later(column, GROUP, b);
        for (int r = 0; r < ROWS; r++) {
            const int row = tile.rows[r];
            Sum sums[1];
            joined_sums<Weights>(sums, unpacked, activations, row, b);
            const Integers swapped = _mm512_shuffle_epi32(sums[0].lanes, (_MM_PERM_ENUM) 0xB1);
            const float of_row = activations.row_scales(row)[b];
            add_products(totals[r], _mm512_add_epi32(sums[0].lanes, swapped), (__m512) unpacked[0].scales, of_row);
        }
    }
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    for (int r = 0; r < ROWS; r++) {
        const __m512 columns = _mm512_permutexvar_ps(even, totals[r]);
        _mm256_storeu_ps(tile.out[r] + column, _mm512_castps512_ps256(columns));
    }
}

/// ROWS rows times the columns `first..end`, whole groups.
template <int ROWS, class Weights>
void multiply_joined_columns(const Weights & weights, int first, int end, const Activations & activations,
                             const TileRows & tile, bool is_first) {
    int column = first;
    if constexpr (ROWS > FEW_ROWS) {
        for (; column + 2 * GROUP <= end; column += 2 * GROUP) {
            multiply_pair<ROWS>(weights, column, activations, tile, is_first);
        }
    }
    for (; column < end; column += GROUP) multiply_group<ROWS>(weights, column, activations, tile, is_first);
}

} // namespace

#endif
