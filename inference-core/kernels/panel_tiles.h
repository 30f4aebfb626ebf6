// The products of unpacked weights and many rows with AMX, sixteen rows at a time.
#pragma once

#include "amx_steps.h"
#include "panel_block.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

namespace {

/// Some blocks of a panel and sixteen rows. Calls `fetch` with each block, to fetch a part of what comes next: a CPU has
/// few places for lines on their way, so they do not all fit between two panels.
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
        const PanelSteps<Weights> work = {rows, from, fetch};
        const unsigned steps = blocks * PanelSteps<Weights>::HALVES;
        if (count > 12) return run_steps<16>(work, steps, spill, totals, begins);
        if (count > 8) return run_steps<12>(work, steps, spill, totals, begins);
        if (count > 4) return run_steps<8>(work, steps, spill, totals, begins);
        run_steps<4>(work, steps, spill, totals, begins);
    }

private:
    Spill spill = {};
    const AmxTiles tiles;
};

} // namespace

#endif
