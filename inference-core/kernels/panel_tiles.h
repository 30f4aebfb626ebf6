// The products of unpacked weights and many rows with AMX, sixteen rows at a time.
#pragma once

#include "amx_steps.h"
#include "panel_block.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

namespace {

/// Some blocks of a panel and sixteen rows.
template <class Weights>
struct PanelSteps {
    /// Steps of a block: one for each half that has scales of its own.
    static constexpr unsigned HALVES = Weights::HAS_HALVES ? 2 : 1;

    const PackedRows rows;
    const PanelBlock * const blocks;
    const PanelFetch<Weights> fetch;

    template <int A, int B>
    ALWAYS_INLINE void load(unsigned i) const {
        const unsigned b = i / HALVES, half = i % HALVES;
        load_tile<A>(rows.bytes + (size_t) b * AMX_ROWS * BLOCK + half * (BLOCK / 2), BLOCK);
        load_tile<B>(blocks[b].parts + half * QUARTERS, AMX_BYTES);
        if (half == 0) fetch((int) b);
    }

    template <int ROWS>
    ALWAYS_INLINE void add(__m512 (&totals)[ROWS], unsigned i, const Spill::Place & results) const {
        const unsigned b = i / HALVES;
        const __m512 scales = (__m512) (i % HALVES == 0 ? blocks[b].scales : blocks[b].second_scales);
        const float * of_rows = rows.scales + (size_t) b * AMX_ROWS;
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            const __m512 of_row = _mm512_mul_ps(scales, _mm512_set1_ps(of_rows[r]));
            totals[r] = _mm512_fmadd_ps(small_number(results[r]), of_row, totals[r]);
        }
        if constexpr (Weights::HAS_MINS) {
            const __m512 mins = (__m512) blocks[b].mins;
            const float * sums = rows.scaled_sums + (size_t) b * AMX_ROWS;
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) totals[r] = _mm512_fnmadd_ps(mins, _mm512_set1_ps(sums[r]), totals[r]);
        }
    }
};

/// Adds the products of ROWS rows, at most 16, and `count` blocks to their totals, or begins these. Calls `fetch` with
/// each block, to fetch a part of what comes next: a CPU has few places for lines on their way, so they do not all fit
/// between two panels.
template <int ROWS, class Weights>
void add_panel_tile(const PackedRows & rows, const PanelBlock * blocks, int count, float (*out)[WIDE_COLUMNS],
                    bool begins, Spill & spill, const PanelFetch<Weights> & fetch) {
    __m512 totals[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) totals[r] = begins ? _mm512_setzero_ps() : _mm512_load_ps(out[r]);
    const PanelSteps<Weights> steps = {rows, blocks, fetch};
    run_steps(steps, totals, count * PanelSteps<Weights>::HALVES, spill);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) _mm512_store_ps(out[r], totals[r]);
}

/// Multiplies the rows of a panel, which has `rows`.
template <class Weights>
class PanelProduct {
public:
    explicit PanelProduct(int rows)
        : tiles(rows < AMX_ROWS ? rows : AMX_ROWS, Weights::HAS_HALVES ? BLOCK / 2 : BLOCK) {}

    /// Adds the products of `count` rows, at most the sixteen that are packed together, and `blocks` blocks to their
    /// totals, or begins these.
    void add(const PackedRows & rows, int count, const PanelBlock * from, int blocks, float (*totals)[WIDE_COLUMNS],
             bool begins, const PanelFetch<Weights> & fetch) {
        settle();
        if (count > 12) return add_panel_tile<16>(rows, from, blocks, totals, begins, spill, fetch);
        if (count > 8) return add_panel_tile<12>(rows, from, blocks, totals, begins, spill, fetch);
        if (count > 4) return add_panel_tile<8>(rows, from, blocks, totals, begins, spill, fetch);
        add_panel_tile<4>(rows, from, blocks, totals, begins, spill, fetch);
    }

private:
    Spill spill = {};
    const AmxTiles tiles;
};

} // namespace

#endif
