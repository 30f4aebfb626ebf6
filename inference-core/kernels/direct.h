// Products of some rows with AMX and weights whose bytes tiles read where they are: a column of the matrix is a
// row of the tile on the left, and activations are on the right. Nothing is unpacked, which for few rows takes
// longer than all else.
//
// The numbers and the order of all additions are those of the other kernels.
#pragma once

#include "amx_steps.h"
#include "super_tile.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

namespace {

/// Blocks whose scales are converted at a time.
constexpr int DIRECT_BLOCKS = 32;

/// Some blocks of sixteen columns, and sixteen rows.
template <class Weights, class Fetch>
struct DirectSteps {
    const int8_t * const bytes;
    const ptrdiff_t stride;
    /// Of the columns.
    const float (* const scales)[WIDE_COLUMNS];
    const PackedRows rows;
    const Fetch & fetch;

    template <int A, int B>
    ALWAYS_INLINE void load(unsigned i) const {
        load_tile<A>(bytes + (size_t) i * Weights::BLOCK_BYTES, stride);
        load_tile<B>(rows.bytes + (size_t) i * PACKED * BLOCK, AMX_BYTES);
        fetch((int) i);
    }

    ALWAYS_INLINE void add(__m512 (&totals)[WIDE_COLUMNS], unsigned i, const Spill::Place & results) const {
        const __m512 of_rows = _mm512_loadu_ps(rows.scales + (size_t) i * PACKED);
#pragma GCC unroll 16
        for (int c = 0; c < WIDE_COLUMNS; c++) {
            const __m512 of_column = _mm512_mul_ps(of_rows, _mm512_set1_ps(scales[i][c]));
            totals[c] = _mm512_fmadd_ps(small_number(results[c]), of_column, totals[c]);
        }
    }
};

/// Most rows: of more, it is faster to unpack weights once.
constexpr int DIRECT_ROWS_MAX = 2 * PACKED;

/// All rows of packed activations, at most DIRECT_ROWS_MAX, times `count` columns, at most sixteen, from `column` on.
template <class Weights>
void multiply_direct_columns(const Weights & weights, int column, int count, const Activations & packed, int rows,
                             float * const * out, Spill & spill) {
    alignas(64) float totals[DIRECT_ROWS_MAX / PACKED][WIDE_COLUMNS][PACKED];
    alignas(64) float scales[DIRECT_BLOCKS][WIDE_COLUMNS];
    for (int first = 0; first < packed.blocks; first += DIRECT_BLOCKS) {
        const int blocks = packed.blocks - first < DIRECT_BLOCKS ? packed.blocks - first : DIRECT_BLOCKS;
        for (int b = 0; b < blocks; b++) at(scales[b]) = weights.scales_of_columns(column, count, first + b);
        for (int row = 0; row < rows; row += PACKED) {
            const auto fetch = [&](int i) {
                if (row == 0) weights.prefetch_later(column, count, first + i);
            };
            const DirectSteps<Weights, decltype(fetch)> steps = {
                weights.bytes_of(column, first), weights.stride(), scales, packed.packed_rows(row, first), fetch};
            run_steps<WIDE_COLUMNS>(steps, blocks, spill, totals[row / PACKED], first == 0);
        }
    }
    const __mmask16 stored = (__mmask16) ((1u << count) - 1);
    for (int row = 0; row < rows; row += PACKED) {
        Vec square[WIDE_COLUMNS];
        for (int c = 0; c < WIDE_COLUMNS; c++) square[c] = at(totals[row / PACKED][c]);
        transpose(square);
        for (int r = row; r < rows && r < row + PACKED; r++) {
            _mm512_mask_storeu_ps(out[r] + column, stored, (__m512) square[r - row]);
        }
    }
}

/// The same for the columns `first..end`, whole groups.
template <class Weights>
void multiply_direct(const Weights & weights, int first, int end, const Activations & packed, int rows,
                     float * const * out) {
    Spill spill = {};
    const int whole = first + (end - first) / WIDE_COLUMNS * WIDE_COLUMNS;
    if (first < whole) {
        const AmxTiles tiles(WIDE_COLUMNS, BLOCK);
        for (int column = first; column < whole; column += WIDE_COLUMNS) {
            multiply_direct_columns(weights, column, WIDE_COLUMNS, packed, rows, out, spill);
        }
    }
    if (whole < end) {
        // No byte beyond the last column is read.
        const AmxTiles tiles(end - whole, BLOCK);
        multiply_direct_columns(weights, whole, end - whole, packed, rows, out, spill);
    }
}

} // namespace

#endif
