// Products of types with blocks of 256: sixteen columns at a time, with one lane for each. What the eight
// parts of a block share is unpacked once, and four rows advance together, so that their chains of
// instructions overlap.
#pragma once

#include "tile.h"

#if defined(__AVX512VNNI__)

namespace {

/// Parts of 32 elements of a block. Activations have a scale for each of them.
constexpr int SUPER_BLOCKS = 8;
/// Columns that are computed together.
constexpr int WIDE_COLUMNS = 16;
/// Rows that advance together.
constexpr int TOGETHER = 4;

/// Unpacked weights of one part of sixteen columns.
struct WideBlock {
    /// Unsigned. Four elements of each column.
    Integers parts[2 * QUARTERS];
    Vec scales;
    /// Scales of the second half, for types that have two.
    Vec second_scales;
    /// What is subtracted from each element, for types that have this.
    Vec mins;
};

/// The activations of a row.
struct WideRow {
    const int8_t * bytes;
    const float * scales;
    const HalfSums * sums;
    const float * scaled_sums;

    WideRow() = default;
    WideRow(const Activations & from, int row)
        : bytes(from.row(row)), scales(from.row_scales(row)), sums(from.row_sums(row)),
          scaled_sums(from.row_scaled_sums(row)) {}
};

/// Two vectors of eight columns with two lanes each, as one with one lane each: the lanes `lane` of both.
inline Integers lanes_of(Integers a, Integers b, int lane) {
    const Integers even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(lane)), b);
}

/// Those bits of each lane, from `from` on, that `mask` has.
inline Integers bits_at(Integers x, int from, int mask) {
    return _mm512_and_si512(_mm512_srl_epi32(x, _mm_cvtsi32_si128(from)), _mm512_set1_epi32(mask));
}

/// Moves the bit `from` of each byte to `to`. Others are beside it.
inline Integers bit_moved(Integers x, int from, int to) {
    return from < to ? _mm512_sll_epi16(x, _mm_cvtsi32_si128(to - from))
                     : _mm512_srl_epi16(x, _mm_cvtsi32_si128(from - to));
}

/// Sixteen whole numbers of 32 bits.
inline Vec numbers_of(Integers x) { return (Vec) _mm512_cvtepi32_ps(x); }

/// Sixteen numbers in half precision.
inline Vec wide_scales_of(__m256i halves) { return (Vec) _mm512_cvtph_ps(halves); }

/// Adds the products of some elements of COUNT rows, from FIRST on, to their totals.
template <int FIRST, int COUNT, class Weights, int ROWS>
inline void add_elements(Vec (&totals)[ROWS], const WideBlock & block, const WideRow (&rows)[ROWS], int b, int half) {
    constexpr int HALVES = Weights::HAS_HALVES ? 2 : 1, PARTS = 2 * QUARTERS / HALVES;
    Sum sums[COUNT];
    for (int r = 0; r < COUNT; r++) {
        const HalfSums & of_bytes = rows[FIRST + r].sums[b];
        const int32_t sum = HALVES == 1 ? of_bytes.both() : half == 0 ? of_bytes.first : of_bytes.second;
        sums[r] = Sum(Weights::OFFSET == 0 ? 0 : -Weights::OFFSET * sum);
    }
    for (int p = half * PARTS; p < (half + 1) * PARTS; p++) {
        for (int r = 0; r < COUNT; r++) {
            int32_t four;
            memcpy(&four, rows[FIRST + r].bytes + b * BLOCK + p * 4, sizeof(four));
            sums[r].add(block.parts[p], _mm512_set1_epi32(four));
        }
    }
    const Vec & scales = half == 0 ? block.scales : block.second_scales;
    for (int r = 0; r < COUNT; r++) totals[FIRST + r] += sums[r].get() * (scales * rows[FIRST + r].scales[b]);
}

/// Adds the products of a block of the rows from FIRST on to their totals.
template <int FIRST, class Weights, int ROWS>
inline void add_block(Vec (&totals)[ROWS], const WideBlock & block, const WideRow (&rows)[ROWS], int b) {
    if constexpr (FIRST < ROWS) {
        constexpr int COUNT = ROWS - FIRST < TOGETHER ? ROWS - FIRST : TOGETHER;
        add_elements<FIRST, COUNT, Weights>(totals, block, rows, b, 0);
        if constexpr (Weights::HAS_HALVES) add_elements<FIRST, COUNT, Weights>(totals, block, rows, b, 1);
        if constexpr (Weights::HAS_MINS) {
            for (int r = FIRST; r < FIRST + COUNT; r++) totals[r] -= block.mins * rows[r].scaled_sums[b];
        }
        add_block<FIRST + COUNT, Weights>(totals, block, rows, b);
    }
}

/// ROWS rows times `count` columns, at most WIDE_COLUMNS, from `column` on.
template <int ROWS, class Weights>
void multiply_wide_tile(const Weights & weights, int column, int count, const Activations & activations,
                        const TileRows & tile, bool is_first) {
    Vec totals[ROWS];
    WideRow rows[ROWS];
    for (int r = 0; r < ROWS; r++) {
        totals[r] = Vec{};
        rows[r] = WideRow(activations, tile.rows[r]);
    }
    for (int super = 0; super < activations.blocks / SUPER_BLOCKS; super++) {
        const typename Weights::Super from(weights, column, count, super);
        for (int part = 0; part < SUPER_BLOCKS; part += Weights::CHUNK) {
            WideBlock blocks[Weights::CHUNK];
            from.unpack(part, blocks);
            for (int i = 0; i < Weights::CHUNK; i++) {
                const int b = super * SUPER_BLOCKS + part + i;
                if (is_first) weights.prefetch_later(column, count, b);
                add_block<0, Weights>(totals, blocks[i], rows, b);
            }
        }
    }
    const __mmask16 stored = (__mmask16) ((1u << count) - 1);
    for (int r = 0; r < ROWS; r++) _mm512_mask_storeu_ps(tile.out[r] + column, stored, (__m512) totals[r]);
}

/// ROWS rows times the columns `first..end`, whole groups.
template <int ROWS, class Weights>
void multiply_wide_columns(const Weights & weights, int first, int end, const Activations & activations,
                           const TileRows & tile, bool is_first) {
    for (int column = first; column < end; column += WIDE_COLUMNS) {
        const int count = end - column < WIDE_COLUMNS ? end - column : WIDE_COLUMNS;
        multiply_wide_tile<ROWS>(weights, column, count, activations, tile, is_first);
    }
}

} // namespace

#endif
