// Products of types with blocks of 256 and of those with mins, and with AVX2 of all types: sixteen columns at a
// time, or eight, with one lane for each. What the eight parts of a block share is unpacked once, and four rows
// advance together, so that their chains of instructions overlap.
#pragma once

#include "wide_vectors.h"

namespace {

/// Parts of 32 elements of a block. Activations have a scale for each of them.
constexpr int SUPER_BLOCKS = 8;
/// Rows that advance together.
constexpr int TOGETHER = 4;

/// Unpacked weights of one part of sixteen columns.
struct WideBlock {
    /// Unsigned, unless the type needs signs. Four elements of each column.
    Integers parts[2 * QUARTERS];
    Vec scales;
    /// Scales of the second half, for types that have two.
    Vec second_scales;
    /// What is subtracted from each element, for types that have this.
    Vec mins;
};

/// What types with blocks of 32 have in common if they are computed in this way.
struct SmallBlocks {
    static constexpr bool IS_WIDE = true;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;
    static constexpr int BLOCKS = 1;
    static constexpr int CHUNK = 1;
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

/// Adds the products of some elements of COUNT rows, from FIRST on, to their totals.
template <int FIRST, int COUNT, class Weights, int ROWS>
inline void add_elements(Vec (&totals)[ROWS], const WideBlock & block, const WideRow (&rows)[ROWS], int b, int half) {
    constexpr int HALVES = Weights::HAS_HALVES ? 2 : 1, PARTS = 2 * QUARTERS / HALVES;
    typedef typename Weights::Sums Sums;
    constexpr int STEP = Sums::STEP < PARTS ? Sums::STEP : PARTS;
    Sums sums[COUNT];
    // All loops are unrolled: otherwise GCC keeps the sums of some types in memory.
#pragma GCC unroll 4
    for (int r = 0; r < COUNT; r++) {
        const HalfSums & of_bytes = rows[FIRST + r].sums[b];
        const int32_t sum = HALVES == 1 ? of_bytes.both() : half == 0 ? of_bytes.first : of_bytes.second;
        sums[r] = Sums(Weights::OFFSET == 0 ? 0 : -Weights::OFFSET * sum);
    }
#pragma GCC unroll 8
    for (int p = half * PARTS; p < (half + 1) * PARTS; p += STEP) {
#pragma GCC unroll 8
        for (int i = p; i < p + STEP; i++) {
#pragma GCC unroll 4
            for (int r = 0; r < COUNT; r++) {
                int32_t four;
                memcpy(&four, rows[FIRST + r].bytes + b * BLOCK + i * 4, sizeof(four));
                sums[r].add(block.parts[i], four_bytes(four));
            }
        }
        for (Sums & sum : sums) sum.settle();
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
    for (int super = 0; super < activations.blocks / Weights::BLOCKS; super++) {
        const typename Weights::Super from(weights, column, count, super);
        for (int part = 0; part < Weights::BLOCKS; part += Weights::CHUNK) {
            WideBlock blocks[Weights::CHUNK];
            from.unpack(part, blocks);
            for (int i = 0; i < Weights::CHUNK; i++) {
                const int b = super * Weights::BLOCKS + part + i;
                if (is_first) weights.prefetch_later(column, count, b);
                add_block<0, Weights>(totals, blocks[i], rows, b);
            }
        }
    }
    for (int r = 0; r < ROWS; r++) store_wide(totals[r], tile.out[r] + column, count);
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
