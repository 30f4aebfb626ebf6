// Q5_0 weights as they are in the file: a weight is a scale times (n - 16), and n is 0 to 31. Unpacked and
// transposed in registers, which all rows of a tile share. Models whose rows are no multiple of 256 have it
// where others have Q4_K.
#pragma once

#include "wide_columns.h"

namespace {

/// One block of one column: ggml's block_q5_0. The low four bits of the byte i of `low` belong to the
/// element i, the high ones to the element i + 16. Bit i of `high` is the fifth one of the element i.
struct BlockQ5 {
    uint16_t scale;
    uint16_t high[2];
    uint8_t low[16];
};
static_assert(sizeof(BlockQ5) == 22, "the layout is ggml's");

#if defined(__AVX512VNNI__)

/// The fifth bits of two columns.
inline __mmask64 fifth_bits_of(const uint16_t (&a)[2], const uint16_t (&b)[2]) {
    uint32_t low, high;
    memcpy(&low, a, sizeof(low));
    memcpy(&high, b, sizeof(high));
    return low | (uint64_t) high << 32;
}

/// Numbers of five bits of the columns of a group.
template <class Block>
inline void unpack_five_bits(const Block * const (&from)[GROUP], Integers (&quarters)[QUARTERS]) {
    Pairs pairs;
    for (int i = 0; i < 4; i++) {
        const Block & a = *from[PAIRED[i][0]], & b = *from[PAIRED[i][1]];
        const Integers low = pair_of_nibbles(a.low, b.low);
        pairs.columns[i] = _mm512_mask_add_epi8(low, fifth_bits_of(a.high, b.high), low, _mm512_set1_epi8(16));
    }
    pairs.transpose(quarters);
}

/// A matrix of them.
class WeightsQ5 {
public:
    typedef SimpleLanes<WeightsQ5> Lanes;
    static constexpr int OFFSET = 16;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;

    WeightsQ5(const void * data, size_t stride) : columns(data, stride) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const BlockQ5 * from[GROUP];
        columns.find(column, block, from);
        Unpacked unpacked;
        unpack_five_bits(from, unpacked.quarters);
        unpacked.scales = scales_of(from, &BlockQ5::scale);
        return unpacked;
    }

    void prefetch_later(int column, int count, int block) const {
        columns.prefetch_later(column, count, block, sizeof(BlockQ5));
    }

private:
    const Columns<BlockQ5> columns;
};

#else

class WeightsQ5 : public WideWeights<BlockQ5, 1> {
public:
    using WideWeights::WideWeights;
    typedef WideSum<31> Sums;
    static constexpr int OFFSET = 16;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;
    static constexpr int CHUNK = 1;

    /// A block of eight columns.
    class Super {
    public:
        Super(const WeightsQ5 & weights, int column, int count, int block) : from(weights.at(column, count, block)) {}

        void unpack(int, WideBlock (&blocks)[CHUNK]) const {
            Integers low[QUARTERS];
            from.transpose_half(low, [](const BlockQ5 & block) { return block.low; });
            const Integers high = from.words([](const BlockQ5 & block) { return block.high; });
            for (int q = 0; q < QUARTERS; q++) {
                blocks[0].parts[q] = low_bits(low[q]) | fifth_bits(high, q);
                blocks[0].parts[QUARTERS + q] = high_bits(low[q]) | fifth_bits(high, QUARTERS + q);
            }
            blocks[0].scales = from.leading_scales(&BlockQ5::scale);
        }

    private:
        const WideColumns<BlockQ5> from;
    };
};

#endif

} // namespace
