// The products of unpacked weights and many rows without tiles: up to eight rows at a time, each with one vector of
// columns. Packed rows are read from one place, so that no register is needed for each.
#pragma once

#include "activations.h"
#include "panel_block.h"

#if defined(__AVX512VNNI__) && !defined(__AMX_INT8__)

namespace {

/// Adds the products of some elements of a block and ROWS rows to their totals.
template <int ROWS, class Weights>
ALWAYS_INLINE void add_panel_block(__m512 (&totals)[ROWS], const PanelBlock & block, const PackedRows & rows, int half) {
    constexpr int PARTS = Weights::HAS_HALVES ? QUARTERS : 2 * QUARTERS;
    Sum sums[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        sums[r] = Sum(Weights::OFFSET == 0 ? 0 : half == 0 ? rows.starts[r].first : rows.starts[r].second);
    }
#pragma GCC unroll 8
    for (int p = half * PARTS; p < (half + 1) * PARTS; p++) {
        const Integers part = block.parts[p];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int32_t four;
            memcpy(&four, rows.bytes + r * BLOCK + p * 4, sizeof(four));
            sums[r].add(part, four_bytes(four));
        }
    }
    const __m512 scales = (__m512) (half == 0 ? block.scales : block.second_scales);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        const __m512 of_row = _mm512_mul_ps(scales, _mm512_set1_ps(rows.scales[r]));
        totals[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r].lanes), of_row, totals[r]);
    }
}

/// Adds the products of ROWS rows and `count` blocks to their totals, or begins these.
template <int ROWS, class Weights>
void add_panel_rows(PackedRows rows, const PanelBlock * blocks, int count, float (*out)[WIDE_COLUMNS], bool begins,
                    const PanelFetch<Weights> & fetch) {
    __m512 totals[ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) totals[r] = begins ? _mm512_setzero_ps() : _mm512_load_ps(out[r]);
    for (int b = 0; b < count; b++) {
        fetch(b);
        add_panel_block<ROWS, Weights>(totals, blocks[b], rows, 0);
        if constexpr (Weights::HAS_HALVES) add_panel_block<ROWS, Weights>(totals, blocks[b], rows, 1);
        if constexpr (Weights::HAS_MINS) {
            const __m512 mins = (__m512) blocks[b].mins;
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                totals[r] = _mm512_fnmadd_ps(mins, _mm512_set1_ps(rows.scaled_sums[r]), totals[r]);
            }
        }
        rows = rows.next();
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) _mm512_store_ps(out[r], totals[r]);
}

/// Multiplies the rows of a panel.
template <class Weights>
class PanelProduct {
public:
    explicit PanelProduct(int) {}

    /// Adds the products of `count` rows, at most the sixteen that are packed together, and `blocks` blocks to their
    /// totals, or begins these.
    void add(const PackedRows & rows, int count, const PanelBlock * from, int blocks, float (*totals)[WIDE_COLUMNS],
             bool begins, PanelFetch<Weights> fetch) {
        static constexpr decltype(&add_panel_rows<1, Weights>) of_count[TILE_ROWS] = {
            add_panel_rows<1, Weights>, add_panel_rows<2, Weights>, add_panel_rows<3, Weights>, add_panel_rows<4, Weights>,
            add_panel_rows<5, Weights>, add_panel_rows<6, Weights>, add_panel_rows<7, Weights>, add_panel_rows<8, Weights>,
        };
        // Two halves of about the same size: instructions of a few rows wait for each other.
        const int first = count <= TILE_ROWS ? count : (count + 1) / 2;
        of_count[first - 1](rows, from, blocks, totals, begins, fetch);
        if (first == count) return;
        fetch.is_on = false;
        of_count[count - first - 1](rows.from(first), from, blocks, totals + first, begins, fetch);
    }
};

} // namespace

#endif
