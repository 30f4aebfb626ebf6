// Unpacked weights of sixteen columns, which many rows share.
#pragma once

#include "lanes.h"

#if defined(__AVX512VNNI__)

namespace {

/// Unpacked weights of one block of two groups of columns, two columns of either in turns.
struct alignas(64) PanelBlock {
    /// Four elements of each column: signed for tiles, unsigned otherwise.
    Integers parts[2 * QUARTERS];
    Vec scales, second_scales, mins;
};

/// Weights as they are multiplied: tiles need no offset.
template <class Weights>
inline Integers panel_bytes(Integers x) {
#if defined(__AMX_INT8__)
    return Weights::OFFSET == 0 ? x : _mm512_sub_epi8(x, _mm512_set1_epi8((char) Weights::OFFSET));
#else
    return x;
#endif
}

/// Fetches a part, for the block `block + i`, of what comes after some columns.
template <class Weights>
struct PanelFetch {
    const Weights & weights;
    int column, count, block;
    bool is_on;

    void operator()(int i) const {
        if (is_on) weights.prefetch_later(column, count, block + i);
    }
};

/// Unpacks the blocks `first..end` of `count` columns, two of either group in turns.
template <class Weights>
void unpack_panel(const Weights & weights, int column, int count, int first, int end, PanelBlock * to) {
    typedef typename Weights::Lanes Lanes;
    for (int b = first; b < end; b += Lanes::BLOCKS) {
        Lanes lanes(weights, column, count, b / Lanes::BLOCKS);
        for (int i = 0; i < Lanes::BLOCKS; i++, to++) {
            if (i % Lanes::CHUNK == 0) lanes.load(i);
            Integers bytes[2][QUARTERS];
            lanes.unpack(i, bytes);
#pragma GCC unroll 8
            for (int p = 0; p < 2 * QUARTERS; p++) {
                to->parts[p] = panel_bytes<Weights>(lanes_of(bytes[0][p / 2], bytes[1][p / 2], p % 2));
            }
            to->scales = lanes.scales(i);
            if constexpr (Lanes::HAS_HALVES) to->second_scales = lanes.second_scales(i);
            if constexpr (Lanes::HAS_MINS) to->mins = lanes.mins(i);
        }
    }
}

} // namespace

#endif
