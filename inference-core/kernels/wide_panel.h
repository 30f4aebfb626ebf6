// Products of many rows without AVX-512: weights are unpacked once for all rows of a panel. On ARM, unpacking is a fifth
// of all instructions for eight rows.
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

#if defined(__AVX2__)

/// How many of some rows are computed together, each with two vectors of columns. Of the last ones about a half: two
/// rows and one take longer than three.
inline int rows_of_step(int rows) {
    return rows <= TOGETHER ? rows : rows < 2 * TOGETHER ? (rows + 1) / 2 : TOGETHER;
}

/// Adds the products of ROWS rows, which are a panel's from `row` on, and TILES vectors of columns to their totals. What
/// takes longest is to read bytes of a row into all lanes, so that the vectors of columns share it. There are no
/// registers left for totals.
template <int ROWS, int TILES, class Weights>
ALWAYS_INLINE void add_tiles(const Unit & unit, const WideRow (&rows)[ROWS], UnitTotals & totals, int row) {
    for (int i = 0; i < unit.count; i++) {
        const int b = unit.first + i;
        const WideBlock * blocks[TILES];
        for (int t = 0; t < TILES; t++) blocks[t] = &unit.blocks[t][i];
#pragma GCC unroll 2
        for (int half = 0; half < (Weights::HAS_HALVES ? 2 : 1); half++) {
            typename Weights::Sums sums[TILES][ROWS];
            sum_elements<TILES, ROWS, Weights>(sums, blocks, rows, b, half);
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 2
                for (int t = 0; t < TILES; t++) {
                    const Vec & scales = half == 0 ? blocks[t]->scales : blocks[t]->second_scales;
                    totals[t][row + r] += sums[t][r].get() * (scales * rows[r].scales[b]);
                }
            }
        }
        if constexpr (Weights::HAS_MINS) {
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 2
                for (int t = 0; t < TILES; t++) totals[t][row + r] -= blocks[t]->mins * rows[r].scaled_sums[b];
            }
        }
    }
}

/// The same for all columns of a unit.
template <int ROWS, class Weights>
void add_some(const Unit & unit, const Activations & activations, const TileRows * tiles, UnitTotals & totals, int row) {
    WideRow rows[ROWS];
    for (int r = 0; r < ROWS; r++) {
        rows[r] = WideRow(activations, tiles[(row + r) / TILE_ROWS].rows[(row + r) % TILE_ROWS]);
    }
    if (unit.tiles == 2) add_tiles<ROWS, 2, Weights>(unit, rows, totals, row);
    else add_tiles<ROWS, 1, Weights>(unit, rows, totals, row);
}

#else

inline int rows_of_step(int rows) { return rows < TILE_ROWS ? rows : TILE_ROWS; }

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
void add_some(const Unit & unit, const Activations & activations, const TileRows * tiles, UnitTotals & totals, int row) {
    const TileRows & tile = tiles[row / TILE_ROWS];
    if (are_rows_beside<ROWS>(tile)) add_unit<ROWS, CAN_BE_BESIDE<ROWS>, Weights>(unit, activations, tile, totals, row);
    else add_unit<ROWS, false, Weights>(unit, activations, tile, totals, row);
}

#endif

/// `rows` rows, at most PANEL_ROWS, times the columns `first..end`, at most UNIT.
template <class Weights>
void multiply_unit(const Weights & weights, int first, int end, const Activations & activations, const TileRows * tiles,
                   int rows) {
    static constexpr decltype(&add_some<1, Weights>) of_count[] = {
        add_some<1, Weights>, add_some<2, Weights>, add_some<3, Weights>, add_some<4, Weights>,
#if !defined(__AVX2__)
        add_some<5, Weights>, add_some<6, Weights>, add_some<7, Weights>, add_some<8, Weights>,
#endif
    };
    Unit unit;
    UnitTotals totals = {};
    for (int b = 0; b < activations.blocks; b += KEPT_BLOCKS) {
        const int count = activations.blocks - b < KEPT_BLOCKS ? activations.blocks - b : KEPT_BLOCKS;
        unpack_unit(weights, first, end, b, count, unit);
        for (int row = 0, some; row < rows; row += some) {
            some = rows_of_step(rows - row);
            of_count[some - 1](unit, activations, tiles, totals, row);
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
