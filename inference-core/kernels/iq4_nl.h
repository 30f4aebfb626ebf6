// IQ4_NL weights in ggml's interleaved layout: a weight is a scale times one of sixteen numbers.
#pragma once

#include "q4_0.h"

#if defined(__AVX512VNNI__)

namespace {

/// ggml's kvalues_iq4nl, 128 more.
inline Integers iq4_numbers() {
    constexpr int N = 128;
    return _mm512_broadcast_i32x4(_mm_setr_epi8(
        N - 127, N - 104, N - 83, N - 65, N - 49, N - 35, N - 22, N - 10, (char) (N + 1), (char) (N + 13),
        (char) (N + 25), (char) (N + 38), (char) (N + 53), (char) (N + 69), (char) (N + 89), (char) (N + 113)));
}

/// A matrix of them. Blocks are those of Q4_0, but that n is not flipped.
class WeightsIQ4 {
public:
    static constexpr bool IS_WIDE = false;
    static constexpr int OFFSET = 128;
    static constexpr bool HAS_MINS = false;

    WeightsIQ4(const void * data, int blocks) : places(data, blocks) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        Unpacked unpacked = places.unpack(column, block);
        for (Integers & quarter : unpacked.quarters) quarter = _mm512_shuffle_epi8(numbers(), quarter);
        return unpacked;
    }

    void prefetch_later(int column, int count, int block) const { places.prefetch_later(column, count, block); }

private:
    const WeightsQ4 places;

    /// In the order of n ^ 8, as places are flipped.
    static Integers numbers() { return _mm512_shuffle_epi32(iq4_numbers(), _MM_PERM_BADC); }
};

} // namespace

#endif
