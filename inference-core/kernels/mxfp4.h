// MXFP4 weights in ggml's interleaved layout, which the experts of gpt-oss have: a weight is a power of two
// times one of sixteen numbers.
#pragma once

#include "lanes.h"
#include "super_tile.h"

namespace {

/// One block of each of eight columns: ggml's block_mxfp4x8. `weights` is ordered as in InterleavedQ4.
struct InterleavedMxfp4 {
    uint8_t exponents[GROUP];
    uint8_t weights[16 * GROUP];
};
static_assert(sizeof(InterleavedMxfp4) == 136, "the layout is ggml's");

#if defined(__AVX512VNNI__)

/// A matrix of them.
class WeightsMxfp4 {
public:
    typedef SimpleLanes<WeightsMxfp4> Lanes;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const InterleavedMxfp4 & from = group(column, block);
        const Integers first = load_integers(from.weights), second = load_integers(from.weights + 8 * GROUP);
        Unpacked unpacked = {low_bits(first), low_bits(second), high_bits(first), high_bits(second)};
        unpacked.scales = powers(from.exponents);
        for (Integers & quarter : unpacked.quarters) quarter = chosen(numbers(), quarter);
        return unpacked;
    }
#else

class WeightsMxfp4 : public SmallBlocks {
public:
    typedef WideSum<24> Sums;

    /// A block of some columns.
    class Super {
    public:
        Super(const WeightsMxfp4 & weights, int column, int, int block)
            : from(weights.group(column, block)), column(column) {}

        void unpack(int, WideBlock (&blocks)[CHUNK]) const {
            unpack_interleaved(from.weights, column, blocks[0].parts, low_bits, high_bits);
            for (Integers & part : blocks[0].parts) part = chosen(numbers(), part);
            blocks[0].scales = powers(whole_numbers(from.exponents + place_in_group(column)));
        }

    private:
        const InterleavedMxfp4 & from;
        const int column;
    };
#endif

#if defined(__ARM_NEON)
    static constexpr int OFFSET = 0;
#else
    static constexpr int OFFSET = 12;
#endif

    WeightsMxfp4(const void * data, int blocks) : data((const InterleavedMxfp4 *) data), blocks(blocks) {}

    /// Prefetches a part of the columns after `count` columns.
    void prefetch_later(int column, int count, int block) const {
        prefetch_groups(data, blocks, sizeof(InterleavedMxfp4) / GROUP, column, count, block);
    }

private:
    const InterleavedMxfp4 * data;
    const int blocks;

    /// ggml's kvalues_fp4, twice the numbers of the format, with the offset.
    static Sixteen numbers() {
        const Bytes numbers = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        return (Sixteen) (numbers + (int8_t) OFFSET);
    }

    const InterleavedMxfp4 & group(int column, int block) const { return data[(ptrdiff_t) (column / GROUP) * blocks + block]; }

#if defined(__AVX512VNNI__)
    static EightNumbers powers(const uint8_t * exponents) {
        return _mm512_castps512_ps256((__m512) powers(_mm512_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) exponents))));
    }
#endif

    /// Half of 2^(exponent - 127) for each lane. The first two are below the normal numbers.
    static Vec powers(Integers exponents) {
        const Ints all = (Ints) exponents;
        return (Vec) (all < 2 ? (all + 1) << 21 : (all - 1) << 23);
    }
};

} // namespace
