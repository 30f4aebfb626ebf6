// The products of unpacked weights and many rows with AMX, sixteen rows at a time.
#pragma once

#include "amx_steps.h"
#include "panel_block.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

namespace {

/// Adds the products of ROWS rows, at most 16, and some blocks to their totals. Calls `fetch` with each block,
/// to fetch a part of what comes next: a CPU has few places for lines on their way, so they do not all fit
/// between two panels.
template <int ROWS, class Weights>
class PanelTile {
public:
    PanelTile(const PackedRows & rows, const PanelBlock * blocks, Spill & spill, const PanelFetch<Weights> & fetch)
        : rows(rows), blocks(blocks), spill(spill), fetch(fetch) {}

    /// `begins`: there are no totals yet.
    void add(int count, float (*out)[WIDE_COLUMNS], bool begins) {
        for (int r = 0; r < ROWS; r++) totals[r] = begins ? _mm512_setzero_ps() : _mm512_load_ps(out[r]);
        AmxSteps<PanelTile>(*this, spill).run(count * HALVES);
        for (int r = 0; r < ROWS; r++) _mm512_store_ps(out[r], totals[r]);
    }

    template <int A, int B>
    ALWAYS_INLINE void load(int i) const {
        const int b = i / HALVES, half = i % HALVES;
        load_tile<A>(rows.bytes + (ptrdiff_t) b * AMX_ROWS * BLOCK + half * (BLOCK / 2), BLOCK);
        load_tile<B>(blocks[b].parts + half * QUARTERS, AMX_BYTES);
        if (half == 0) fetch(b);
    }

    ALWAYS_INLINE void add_results(int i, const Spill::Place & results) {
        const int b = i / HALVES;
        const PanelBlock & block = blocks[b];
        const __m512 scales = (__m512) (i % HALVES == 0 ? block.scales : block.second_scales);
        const float * of_rows = rows.scales + (ptrdiff_t) b * AMX_ROWS;
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            const __m512 result = _mm512_cvtepi32_ps(_mm512_load_si512(results[r]));
            totals[r] = _mm512_fmadd_ps(result, _mm512_mul_ps(scales, _mm512_set1_ps(of_rows[r])), totals[r]);
        }
        if constexpr (Weights::HAS_MINS) {
            const __m512 mins = (__m512) block.mins;
            const float * sums = rows.scaled_sums + (ptrdiff_t) b * AMX_ROWS;
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++) totals[r] = _mm512_fnmadd_ps(mins, _mm512_set1_ps(sums[r]), totals[r]);
        }
    }

private:
    /// Steps of a block: one for each half that has scales of its own.
    static constexpr int HALVES = Weights::HAS_HALVES ? 2 : 1;

    const PackedRows & rows;
    const PanelBlock * const blocks;
    Spill & spill;
    const PanelFetch<Weights> & fetch;
    __m512 totals[ROWS];
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
        if (count > 12) return PanelTile<16, Weights>(rows, from, spill, fetch).add(blocks, totals, begins);
        if (count > 8) return PanelTile<12, Weights>(rows, from, spill, fetch).add(blocks, totals, begins);
        if (count > 4) return PanelTile<8, Weights>(rows, from, spill, fetch).add(blocks, totals, begins);
        PanelTile<4, Weights>(rows, from, spill, fetch).add(blocks, totals, begins);
    }

private:
    Spill spill = {};
    const AmxTiles tiles;
};

} // namespace

#endif
