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
inline Sixteen iq4_numbers() {
    const Bytes numbers = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return (Sixteen) (numbers + (int8_t) IQ4_OFFSET);
}

#if defined(__AVX512VNNI__)

/// A matrix of them. Blocks are those of Q4_0, but that n is not flipped.
class WeightsIQ4 {
public:
    typedef SimpleLanes<WeightsIQ4> Lanes;
    static constexpr bool HAS_HALVES = false;
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

    /// A block of some columns.
    class Super {
    public:
        Super(const WeightsIQ4 & weights, int column, int, int block)
            : from(weights.places.group(column, block)), column(column) {}

        void unpack(int, WideBlock (&blocks)[CHUNK]) const {
            unpack_interleaved(from.weights, column, blocks[0].parts, low_bits, high_bits);
            for (Integers & part : blocks[0].parts) part = chosen(iq4_numbers(), part);
            blocks[0].scales = wide_scales_of(from.scales + place_in_group(column));
        }

    private:
        const InterleavedQ4 & from;
        const int column;
    };
#endif

    static constexpr int OFFSET = IQ4_OFFSET;

    WeightsIQ4(const void * data, int blocks) : places(data, blocks) {}

    void prefetch_later(int column, int count, int block) const { places.prefetch_later(column, count, block); }

private:
    const WeightsQ4 places;

#if defined(__AVX512VNNI__)
    /// In the order of n ^ 8, as places are flipped.
    static Sixteen numbers() { return _mm_shuffle_epi32(iq4_numbers(), 0x4E); }
#endif
};

} // namespace
