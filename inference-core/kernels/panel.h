// Products of many rows with AMX: weights of sixteen columns are unpacked once, and multiplied with sixteen
// rows at a time.
//
// The numbers and the order of all additions are those of the kernels for few rows, so that a row does not
// depend on the rows beside it.
#pragma once

#include "amx_steps.h"
#include "super_tile.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

namespace {

/// Blocks that are unpacked at a time: they stay in the nearest cache.
constexpr int PANEL_BLOCKS = 16;
/// Rows of a panel at most, and bytes of its activations: they stay in the second cache.
constexpr int PANEL_ROWS_MAX = 512, PANEL_BYTES = 1 << 20;

/// Rows of a panel for a depth: whole tiles.
inline int panel_rows(int depth) {
    const int fit = PANEL_BYTES / depth / AMX_ROWS * AMX_ROWS;
    return fit < AMX_ROWS ? AMX_ROWS : fit > PANEL_ROWS_MAX ? PANEL_ROWS_MAX : fit;
}

/// Unpacked weights of one block of sixteen columns.
struct alignas(64) PanelBlock {
    /// Signed. Four elements of each column.
    Integers parts[2 * QUARTERS];
    Vec scales, second_scales, mins;
};

/// True for types with scales for both halves of a block.
template <class Weights>
constexpr bool has_halves() {
    if constexpr (Weights::IS_WIDE) return Weights::HAS_HALVES;
    else return false;
}

/// Weights without their offset.
template <class Weights>
inline Integers signed_bytes(Integers x) {
    return Weights::OFFSET == 0 ? x : _mm512_sub_epi8(x, _mm512_set1_epi8((char) Weights::OFFSET));
}

/// Unpacks the blocks `first..end` of `count` columns, each with one lane.
template <class Weights>
void unpack_wide(const Weights & weights, int column, int count, int first, int end, PanelBlock * to) {
    for (int super = first / Weights::BLOCKS; super < end / Weights::BLOCKS; super++) {
        const typename Weights::Super from(weights, column, count, super);
        for (int part = 0; part < Weights::BLOCKS; part += Weights::CHUNK) {
            WideBlock blocks[Weights::CHUNK];
            from.unpack(part, blocks);
            for (int i = 0; i < Weights::CHUNK; i++, to++) {
                for (int p = 0; p < 2 * QUARTERS; p++) to->parts[p] = signed_bytes<Weights>(blocks[i].parts[p]);
                to->scales = blocks[i].scales;
                if constexpr (Weights::HAS_HALVES) to->second_scales = blocks[i].second_scales;
                if constexpr (Weights::HAS_MINS) to->mins = blocks[i].mins;
            }
        }
    }
}

/// Unpacks the blocks `first..end` of `count` columns: two groups, or one twice.
template <class Weights>
void unpack_panel(const Weights & weights, int column, int count, int first, int end, PanelBlock * to) {
    if constexpr (Weights::IS_WIDE) {
        unpack_wide(weights, column, count, first, end, to);
    } else {
        static_assert(!Weights::HAS_MINS, "types with mins have one lane for each column");
        for (int b = first; b < end; b++, to++) {
            const Unpacked low = weights.unpack(column, b);
            const Unpacked high = weights.unpack(column + (count > GROUP ? GROUP : 0), b);
            for (int q = 0; q < QUARTERS; q++) {
                for (int lane = 0; lane < 2; lane++) {
                    const Integers both = lanes_of(low.quarters[q], high.quarters[q], lane);
                    to->parts[2 * q + lane] = signed_bytes<Weights>(both);
                }
            }
            to->scales = (Vec) lanes_of((Integers) low.scales, (Integers) high.scales, 0);
        }
    }
    settle();
}

/// Adds the products of ROWS rows, at most 16, and some blocks to their totals. Calls `fetch` with each block,
/// to fetch a part of what comes next: a CPU has few places for lines on their way, so they do not all fit
/// between two panels.
template <int ROWS, class Weights, class Fetch>
class PanelTile {
public:
    PanelTile(const PackedRows & rows, const PanelBlock * blocks, Spill & spill, const Fetch & fetch)
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
    static constexpr int HALVES = has_halves<Weights>() ? 2 : 1;

    const PackedRows & rows;
    const PanelBlock * const blocks;
    Spill & spill;
    const Fetch & fetch;
    __m512 totals[ROWS];
};

/// Adds the products of `count` rows and `blocks` blocks to their totals, or begins these.
template <class Weights, class Fetch>
void add_panel_tile(const PackedRows & rows, int count, const PanelBlock * from, int blocks, Spill & spill,
                    float (*totals)[WIDE_COLUMNS], bool begins, const Fetch & fetch) {
    if (count > 12) return PanelTile<16, Weights, Fetch>(rows, from, spill, fetch).add(blocks, totals, begins);
    if (count > 8) return PanelTile<12, Weights, Fetch>(rows, from, spill, fetch).add(blocks, totals, begins);
    if (count > 4) return PanelTile<8, Weights, Fetch>(rows, from, spill, fetch).add(blocks, totals, begins);
    PanelTile<4, Weights, Fetch>(rows, from, spill, fetch).add(blocks, totals, begins);
}

/// The rows `start..start + rows` of packed activations, at most PANEL_ROWS_MAX, times the columns
/// `first..end`, whole groups. `start` is a multiple of 16; `out` has a place for each row.
template <class Weights>
void multiply_panel(const Weights & weights, int first, int end, const Activations & packed, int start, int rows,
                    float * const * out) {
    alignas(64) PanelBlock blocks[PANEL_BLOCKS];
    alignas(64) float totals[PANEL_ROWS_MAX][WIDE_COLUMNS];
    Spill spill = {};
    const AmxTiles tiles(rows < AMX_ROWS ? rows : AMX_ROWS, has_halves<Weights>() ? BLOCK / 2 : BLOCK);
    for (int column = first; column < end; column += WIDE_COLUMNS) {
        const int count = end - column < WIDE_COLUMNS ? end - column : WIDE_COLUMNS;
        for (int b = 0; b < packed.blocks; b += PANEL_BLOCKS) {
            const int last = packed.blocks < b + PANEL_BLOCKS ? packed.blocks : b + PANEL_BLOCKS;
            unpack_panel(weights, column, count, b, last, blocks);
            for (int row = 0; row < rows; row += AMX_ROWS) {
                const PackedRows tile = packed.packed_rows(start + row, b);
                const auto fetch = [&](int i) {
                    if (row == 0) weights.prefetch_later(column, count, b + i);
                };
                add_panel_tile<Weights>(tile, rows - row, blocks, last - b, spill, totals + row, b == 0, fetch);
            }
        }
        const __mmask16 stored = (__mmask16) ((1u << count) - 1);
        for (int r = 0; r < rows; r++) _mm512_mask_storeu_ps(out[r] + column, stored, _mm512_load_ps(totals[r]));
    }
}

} // namespace

#endif
