// Products of many rows without AVX-512: weights are unpacked once for all rows of a panel. Worth it on ARM, where
// unpacking is a fifth of all instructions for eight rows, and with AVX2 for types that take long to unpack. For
// others, reading unpacked weights takes as long.
//
// The numbers and the order of all additions are those of the kernels for few rows.
#pragma once

#include "super_tile.h"

#if !defined(__AVX512VNNI__)

namespace {

/// Blocks that are unpacked at a time, for the columns of a unit: they stay in the nearest cache.
constexpr int KEPT_BLOCKS = SUPER_BLOCKS;
constexpr int UNIT_TILES = UNIT / WIDE_COLUMNS;

/// Some unpacked blocks of a unit.
struct Unit {
    WideBlock blocks[UNIT_TILES][KEPT_BLOCKS];
    /// Columns, in vectors.
    int tiles;
    /// The number of the first block, and how many there are.
    int first, count;
};

/// Unpacks `count` blocks of the columns from `column` to `end`.
template <class Weights>
void unpack_unit(const Weights & weights, int column, int end, int first, int count, Unit & to) {
    to.first = first;
    to.count = count;
    to.tiles = (end - column) / WIDE_COLUMNS;
    for (int t = 0; t < to.tiles; t++, column += WIDE_COLUMNS) {
        for (int b = 0; b < count; b += Weights::BLOCKS) {
            const typename Weights::Super from(weights, column, WIDE_COLUMNS, (first + b) / Weights::BLOCKS);
            for (int part = 0; part < Weights::BLOCKS; part += Weights::CHUNK) {
                WideBlock (&blocks)[Weights::CHUNK] = *(WideBlock (*)[Weights::CHUNK]) &to.blocks[t][b + part];
                from.unpack(part, blocks);
                for (int i = 0; i < Weights::CHUNK; i++) {
                    prepare<Weights>(blocks[i]);
                    weights.prefetch_later(column, WIDE_COLUMNS, first + b + part + i);
                }
            }
        }
    }
}

/// Totals of the rows of a panel, for each vector of columns.
typedef Vec UnitTotals[UNIT_TILES][PANEL_ROWS];

/// Adds the products of ROWS rows, which are a panel's from `row` on, to their totals.
template <int ROWS, bool ARE_BESIDE, class Weights>
void add_unit(const Unit & unit, const Activations & activations, const TileRows & tile, UnitTotals & totals, int row) {
    WideRow rows[ROWS];
    for (int r = 0; r < ROWS; r++) rows[r] = WideRow(activations, tile.rows[r]);
    for (int t = 0; t < unit.tiles; t++) {
        Vec sums[ROWS];
        for (int r = 0; r < ROWS; r++) sums[r] = totals[t][row + r];
        for (int b = 0; b < unit.count; b++) {
            add_block<0, ARE_BESIDE, Weights>(sums, unit.blocks[t][b], rows, unit.first + b);
        }
        for (int r = 0; r < ROWS; r++) totals[t][row + r] = sums[r];
    }
}

template <int ROWS, class Weights>
void add_some(const Unit & unit, const Activations & activations, const TileRows & tile, UnitTotals & totals, int row) {
    if (are_rows_beside<ROWS>(tile)) add_unit<ROWS, CAN_BE_BESIDE<ROWS>, Weights>(unit, activations, tile, totals, row);
    else add_unit<ROWS, false, Weights>(unit, activations, tile, totals, row);
}

/// `rows` rows, at most PANEL_ROWS, times the columns `first..end`, at most UNIT.
template <class Weights>
void multiply_unit(const Weights & weights, int first, int end, const Activations & activations, const TileRows * tiles,
                   int rows) {
    static constexpr decltype(&add_some<1, Weights>) of_count[TILE_ROWS] = {
        add_some<1, Weights>, add_some<2, Weights>, add_some<3, Weights>, add_some<4, Weights>,
        add_some<5, Weights>, add_some<6, Weights>, add_some<7, Weights>, add_some<8, Weights>,
    };
    Unit unit;
    UnitTotals totals = {};
    for (int b = 0; b < activations.blocks; b += KEPT_BLOCKS) {
        const int count = activations.blocks - b < KEPT_BLOCKS ? activations.blocks - b : KEPT_BLOCKS;
        unpack_unit(weights, first, end, b, count, unit);
        for (int row = 0; row < rows; row += TILE_ROWS) {
            const int some = rows - row < TILE_ROWS ? rows - row : TILE_ROWS;
            of_count[some - 1](unit, activations, tiles[row / TILE_ROWS], totals, row);
        }
    }
    for (int t = 0; t < unit.tiles; t++) {
        for (int row = 0; row < rows; row++) {
            store_wide(totals[t][row], tiles[row / TILE_ROWS].out[row % TILE_ROWS] + first + t * WIDE_COLUMNS, WIDE_COLUMNS);
        }
    }
}

} // namespace

#endif
