// Products with AMX, one after the other, whose results are added to totals.
//
// Each block has scales of its own, so a tile of results is converted and added to totals block by block.
// That takes longer than the multiplication, so both overlap: results are stored three steps after they were
// begun, and added some steps later.
#pragma once

#include "amx.h"
#include "vectors.h"

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

namespace {

/// Results on their way from tiles to totals.
struct alignas(64) Spill {
    typedef int32_t Place[AMX_ROWS][AMX_BYTES / 4];
    static constexpr int PLACES = 4;
    Place results[PLACES];
};

/// A whole number below 2^22 in size, exactly. The instruction that converts runs on the units that multiply, and
/// while a CPU uses tiles only one of these two runs; additions have both.
inline __m512 small_number(const int32_t (&from)[AMX_BYTES / 4]) {
    const __m512 round = _mm512_set1_ps(ROUND);
    const __m512i low_bits = _mm512_add_epi32(_mm512_load_si512(from), _mm512_castps_si512(round));
    return _mm512_sub_ps(_mm512_castsi512_ps(low_bits), round);
}

/// Steps after which results are stored, and added. A place is free again when it is needed.
constexpr unsigned STORED_AFTER = RESULT_TILES - 1, ADDED_AFTER = 5;
static_assert(ADDED_AFTER - STORED_AFTER < Spill::PLACES && Spill::PLACES == RESULT_TILES, "no result is overwritten");

/// Begins step i, whose result is in tile TILE, and advances the steps before it.
template <unsigned TILE, class Work, int LANES>
ALWAYS_INLINE void run_step(const Work & work, __m512 (&totals)[LANES], unsigned steps, Spill & spill, unsigned i) {
    constexpr int A = LEFT_TILE + TILE % 2, B = RIGHT_TILE + TILE % 2;
    constexpr unsigned STORED = (TILE - STORED_AFTER) % RESULT_TILES, ADDED = (TILE - ADDED_AFTER) % RESULT_TILES;
    if (__builtin_expect(i < steps, true)) {
        work.template load<A, B>(i);
        multiply_bytes<TILE, A, B>();
    }
    // Below 0, numbers are larger than all steps.
    if (__builtin_expect(i - STORED_AFTER < steps, true)) store_tile<STORED>(spill.results[STORED]);
    if (__builtin_expect(i - ADDED_AFTER < steps, true)) work.add(totals, i - ADDED_AFTER, spill.results[ADDED]);
}

/// Runs steps, and adds their results to LANES vectors of totals, or begins these. `Work` has two functions:
/// `load<A, B>(i)` loads what step i multiplies, and `add(totals, i, results)` adds its results. Both have to be inlined,
/// so that totals stay in registers.
template <int LANES, class Work>
void run_steps(const Work work, unsigned steps, Spill & spill, float (*out)[AMX_BYTES / 4], bool begins) {
    __m512 totals[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) totals[i] = begins ? _mm512_setzero_ps() : _mm512_load_ps(out[i]);
    for (unsigned i = 0; i < steps + ADDED_AFTER; i += RESULT_TILES) {
        run_step<0>(work, totals, steps, spill, i);
        run_step<1>(work, totals, steps, spill, i + 1);
        run_step<2>(work, totals, steps, spill, i + 2);
        run_step<3>(work, totals, steps, spill, i + 3);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) _mm512_store_ps(out[i], totals[i]);
}

} // namespace

#endif
