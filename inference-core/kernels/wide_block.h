// What the products of some columns and some rows read, if each column has one lane: a block of weights, and the
// activations of a row.
#pragma once

#include "wide_vectors.h"

namespace {

/// Parts of 32 elements of a block of 256. Activations have a scale for each of them.
constexpr int SUPER_BLOCKS = 8;

/// Unpacked weights of one part of WIDE_COLUMNS columns.
struct WideBlock {
    /// Unsigned, unless the type or the set of kernels needs signs. Four elements of each column.
    Integers parts[2 * QUARTERS];
    Vec scales;
    /// Scales of the second half, for types that have two.
    Vec second_scales;
    /// What is subtracted from each element, for types that have this.
    Vec mins;
};

/// What types with blocks of 32 have in common if they are computed in this way.
struct SmallBlocks {
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;
    static constexpr int BLOCKS = 1;
    static constexpr int CHUNK = 1;
};

/// True if ROWS rows can be packed in pairs that are computed together: it matters for BY_ROW.
template <int ROWS>
constexpr bool CAN_BE_BESIDE = BY_ROW == Packing::Pairs && ROWS > 1;

/// True if they are. The rows of experts may not be.
template <int ROWS>
inline bool are_rows_beside(const TileRows & tile) {
    if constexpr (!CAN_BE_BESIDE<ROWS>) return false;
    bool all = true;
    for (int r = 0; r + 1 < ROWS; r += 2) all &= tile.rows[r] % 2 == 0 && tile.rows[r + 1] == tile.rows[r] + 1;
    return all;
}

/// Weights as an argument. On ARM by value: of what is in memory, a compiler must believe that all that is stored
/// may change it, so that it was read again for each block.
#if defined(__ARM_NEON)
template <class Weights>
using Kept = const Weights;
#else
template <class Weights>
using Kept = const Weights &;
#endif

/// The activations of a row.
struct WideRow {
    const int8_t * bytes;
    const float * scales;
    const HalfSums * starts;
    const float * scaled_sums;

    WideRow() = default;
    WideRow(const Activations & from, int row)
        : bytes(from.row(row)), scales(from.row_scales(row)), starts(from.row_starts(row)),
          scaled_sums(from.row_scaled_sums(row)) {}
};

} // namespace
