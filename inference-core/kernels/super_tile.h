// Products without AVX-512: eight columns at a time with AVX2, four on ARM, with one lane for each. What the eight
// parts of a block of 256 share is unpacked once, and four rows advance together, so that their chains of instructions
// overlap.
#pragma once

#include "dots.h"
#include "wide_products.h"

#if !defined(__AVX512VNNI__)

namespace {

/// Rows that advance together.
constexpr int TOGETHER = 4;

/// Adds the products of a block of the rows from FIRST on to their totals.
template <int FIRST, bool ARE_BESIDE, class Weights, int ROWS>
ALWAYS_INLINE void add_block(Vec (&totals)[ROWS], const WideBlock & block, const WideRow (&rows)[ROWS], int b) {
    if constexpr (FIRST < ROWS) {
        constexpr int COUNT = ROWS - FIRST < TOGETHER ? ROWS - FIRST : TOGETHER;
        add_elements<FIRST, COUNT, ARE_BESIDE, Weights>(totals, block, rows, b, 0);
        if constexpr (Weights::HAS_HALVES) add_elements<FIRST, COUNT, ARE_BESIDE, Weights>(totals, block, rows, b, 1);
        if constexpr (Weights::HAS_MINS) {
#pragma GCC unroll 4
            for (int r = FIRST; r < FIRST + COUNT; r++) totals[r] -= block.mins * rows[r].scaled_sums[b];
        }
        add_block<FIRST + COUNT, ARE_BESIDE, Weights>(totals, block, rows, b);
    }
}

/// ROWS rows times `count` columns, at most WIDE_COLUMNS, from `column` on.
template <int ROWS, bool ARE_BESIDE, class Weights>
void multiply_wide_tile(Kept<Weights> weights, int column, int count, const Activations & activations,
                        const TileRows & tile, bool is_first) {
    Vec totals[ROWS];
    WideRow rows[ROWS];
    // Unrolled: otherwise GCC keeps the totals in memory.
#pragma GCC unroll 8
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
                prepare<Weights>(blocks[i]);
                const int b = super * Weights::BLOCKS + part + i;
                if (is_first) weights.prefetch_later(column, count, b);
                add_block<0, ARE_BESIDE, Weights>(totals, blocks[i], rows, b);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) store_wide(totals[r], tile.out[r] + column, count);
}

/// ROWS rows times the columns `first..end`, whole groups.
template <int ROWS, class Weights>
void multiply_wide_columns(const Weights & weights, int first, int end, const Activations & activations,
                           const TileRows & tile, bool is_first) {
    const bool are_beside = are_rows_beside<ROWS>(tile);
    for (int column = first; column < end; column += WIDE_COLUMNS) {
        // There are whole groups.
        const int count = WIDE_COLUMNS <= GROUP || column + WIDE_COLUMNS <= end ? WIDE_COLUMNS : end - column;
        if (are_beside) multiply_wide_tile<ROWS, CAN_BE_BESIDE<ROWS>>(weights, column, count, activations, tile, is_first);
        else multiply_wide_tile<ROWS, false>(weights, column, count, activations, tile, is_first);
    }
}

} // namespace

#endif
