// IQ4_NL weights in ggml's interleaved layout: a weight is a scale times one of sixteen numbers.
#pragma once

#include "q4_0.h"

namespace {

#if defined(__AVX512VNNI__)
constexpr int IQ4_OFFSET = 128;
#else
constexpr int IQ4_OFFSET = 0;
#endif

/// ggml's kvalues_iq4nl with the offset.
inline __m128i iq4_numbers() {
    constexpr int N = IQ4_OFFSET;
    return _mm_setr_epi8(N - 127, N - 104, N - 83, N - 65, N - 49, N - 35, N - 22, N - 10, (char) (N + 1),
                         (char) (N + 13), (char) (N + 25), (char) (N + 38), (char) (N + 53), (char) (N + 69),
                         (char) (N + 89), (char) (N + 113));
}

#if defined(__AVX512VNNI__)

/// A matrix of them. Blocks are those of Q4_0, but that n is not flipped.
class WeightsIQ4 {
public:
    static constexpr bool IS_WIDE = false;
    static constexpr bool HAS_MINS = false;

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        Unpacked unpacked = places.unpack(column, block);
        for (Integers & quarter : unpacked.quarters) quarter = chosen(numbers(), quarter);
        return unpacked;
    }
#else

class WeightsIQ4 : public SmallBlocks {
public:
    typedef WideSignedSum Sums;

    /// A block of eight columns.
    class Super {
    public:
        Super(const WeightsIQ4 & weights, int column, int count, int block)
            : places(weights.places, column, count, block) {}

        void unpack(int, WideBlock (&blocks)[CHUNK]) const {
            places.unpack(0, blocks);
            for (Integers & part : blocks[0].parts) part = chosen(numbers(), part);
        }

    private:
        const WeightsQ4::Super places;
    };
#endif

    static constexpr int OFFSET = IQ4_OFFSET;

    WeightsIQ4(const void * data, int blocks) : places(data, blocks) {}

    void prefetch_later(int column, int count, int block) const { places.prefetch_later(column, count, block); }

private:
    const WeightsQ4 places;

    /// In the order of n ^ 8, as places are flipped.
    static __m128i numbers() { return _mm_shuffle_epi32(iq4_numbers(), 0x4E); }
};

} // namespace
