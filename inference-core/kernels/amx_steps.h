// Products with AMX, one after the other, whose results are added to totals.
//
// Each block has scales of its own, so a tile of results is converted and added to totals block by block.
// That takes as long as the multiplication, so both overlap: results are stored three steps after they were
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

/// `Work` has two functions: `load<A, B>(i)` loads what step i multiplies, and `add_results(i, results)` adds
/// the results to the totals.
template <class Work>
class AmxSteps {
public:
    AmxSteps(Work & work, Spill & spill) : work(work), spill(spill) {}

    ALWAYS_INLINE void run(int steps) {
        const int whole = steps / RESULT_TILES * RESULT_TILES;
        for (int i = 0; i < whole; i += RESULT_TILES) {
            step<0>(i);
            step<1>(i + 1);
            step<2>(i + 2);
            step<3>(i + 3);
        }
        if (whole < steps) step<0>(whole);
        if (whole + 1 < steps) step<1>(whole + 1);
        if (whole + 2 < steps) step<2>(whole + 2);
        // What is stored is added before its place is needed again.
        const int stored = steps < STORED ? 0 : steps - STORED, added = steps < ADDED ? 0 : steps - ADDED;
        for (int i = added; i < stored; i++) add(i);
        for (int i = stored; i < steps; i++) store(i);
        for (int i = stored; i < steps; i++) add(i);
    }

private:
    /// Steps after which results are stored, and added. A place is free again when it is needed.
    static constexpr int STORED = RESULT_TILES - 1, ADDED = 5;
    static_assert(ADDED - STORED < Spill::PLACES && STORED < Spill::PLACES, "no result is overwritten");

    Work & work;
    Spill & spill;

    Spill::Place & place(int i) const { return spill.results[i % Spill::PLACES]; }

    ALWAYS_INLINE void add(int i) { work.add_results(i, place(i)); }

    /// Begins step i, whose result is in tile TILE, and advances the steps before it.
    template <int TILE>
    ALWAYS_INLINE void step(int i) {
        constexpr int A = LEFT_TILE + TILE % 2, B = RIGHT_TILE + TILE % 2;
        work.template load<A, B>(i);
        multiply_bytes<TILE, A, B>();
        if (i >= STORED) store_tile<(TILE + 1) % RESULT_TILES>(place(i - STORED));
        if (i >= ADDED) add(i - ADDED);
    }

    /// Stores the result of step i.
    void store(int i) const {
        switch (i % RESULT_TILES) {
            case 0: return store_tile<0>(place(i));
            case 1: return store_tile<1>(place(i));
            case 2: return store_tile<2>(place(i));
            default: return store_tile<3>(place(i));
        }
    }
};

} // namespace

#endif
