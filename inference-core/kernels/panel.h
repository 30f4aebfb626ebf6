// Products of many rows with AVX-512 or AMX: weights of sixteen columns are unpacked once, and multiplied with
// sixteen rows at a time.
//
// The numbers and the order of all additions are those of the kernels for few rows, so that a row does not
// depend on the rows beside it.
#pragma once

#include "panel_rows.h"
#include "panel_tiles.h"

#if defined(__AVX512VNNI__)

namespace {

/// Blocks that are unpacked at a time, which stay in the nearest caches together with the totals of the rows of a
/// panel, at most PANEL_ROWS_MAX; and bytes of a panel's activations, which stay in the second one.
constexpr int PANEL_BLOCKS = 32;
#if defined(__AMX_INT8__)
constexpr int PANEL_ROWS_MAX = 512;
#else
constexpr int PANEL_ROWS_MAX = 256;
#endif
constexpr int PANEL_BYTES = 1 << 20;

/// Rows of a panel for a depth: whole packs.
inline int panel_rows(int depth) {
    const int fit = PANEL_BYTES / depth / PACKED * PACKED;
    return fit < PACKED ? PACKED : fit > PANEL_ROWS_MAX ? PANEL_ROWS_MAX : fit;
}

/// Fetches the places of some results, each on a page of its own, from memory.
inline void prefetch_results(float * const * out, int rows, int column) {
    // GCC has a builtin for it, which fetches for reading unless a flag says that the CPU knows more.
    for (int r = 0; r < rows; r++) asm volatile("prefetchw (%0)" : : "r"(out[r] + column));
}

/// Stores the results of some rows and `count` columns.
inline void store_results(float * const * out, int rows, int column, int count, const float (*totals)[WIDE_COLUMNS]) {
    const __mmask16 stored = (__mmask16) ((1u << count) - 1);
    for (int r = 0; r < rows; r++) _mm512_mask_storeu_ps(out[r] + column, stored, in_order(_mm512_load_ps(totals[r])));
}

/// The rows `start..start + rows` of packed activations, at most PANEL_ROWS_MAX, times the columns
/// `first..end`, whole groups. `start` is a multiple of 16; `out` has a place for each row.
template <class Weights>
void multiply_panel(const Weights & weights, int first, int end, const Activations & packed, int start, int rows,
                    float * const * out) {
    alignas(64) PanelBlock blocks[PANEL_BLOCKS];
    alignas(64) float totals[PANEL_ROWS_MAX][WIDE_COLUMNS];
    PanelProduct<Weights> product(rows);
    for (int column = first; column < end; column += WIDE_COLUMNS) {
        const int count = end - column < WIDE_COLUMNS ? end - column : WIDE_COLUMNS;
        for (int b = 0; b < packed.blocks; b += PANEL_BLOCKS) {
            const int last = packed.blocks < b + PANEL_BLOCKS ? packed.blocks : b + PANEL_BLOCKS;
            unpack_panel(weights, column, count, b, last, blocks);
            for (int row = 0; row < rows; row += PACKED) {
                const int some = rows - row < PACKED ? rows - row : PACKED;
                const PanelFetch<Weights> fetch = {weights, column, count, b, row == 0};
                const bool ends = last == packed.blocks;
                if (ends) prefetch_results(out + row, some, column);
                product.add(packed.packed_rows(start + row, b), some, blocks, last - b, totals + row, b == 0, fetch);
                // Not all rows at the end of the columns: a CPU has few places for stores on their way.
                if (ends) store_results(out + row, some, column, count, totals + row);
            }
        }
    }
}

} // namespace

#endif
