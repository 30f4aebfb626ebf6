// Q5_1 weights as they are in the file: a weight is the least one of its block and a scale times n, 0 to 31.
// Models whose rows are no multiple of 256 have it where others have Q5_K.
#pragma once

#include "q5_0.h"

namespace {

/// One block of one column: ggml's block_q5_1. The low four bits of the byte i of `low` belong to the
/// element i, the high ones to the element i + 16. Bit i of `high` is the fifth one of the element i.
struct BlockQ51 {
    uint16_t scale;
    uint16_t least;
    uint16_t high[2];
    uint8_t low[16];
};
static_assert(sizeof(BlockQ51) == 24, "the layout is ggml's");

#if defined(__AVX512VNNI__)

/// A matrix of them.
class WeightsQ51 : public SmallColumns<WeightsQ51, BlockQ51> {
public:
    using SmallColumns::SmallColumns;
    typedef SimpleLanes<WeightsQ51> Lanes;
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_MINS = true;

    static Integers pair_of(const BlockQ51 & a, const BlockQ51 & b) { return pair_of_five_bits(a, b); }
};

#else

/// A matrix of them.
class WeightsQ51 : public WideWeights<BlockQ51, 1> {
public:
    using WideWeights::WideWeights;
    typedef WideSum<31> Sums;
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = true;
    static constexpr int CHUNK = 1;

    /// A block of some columns.
    class Super {
    public:
        Super(const WeightsQ51 & weights, int column, int count, int block) : from(weights.at(column, count, block)) {}

        void unpack(int, WideBlock (&blocks)[CHUNK]) const {
            Integers low[QUARTERS];
            from.transpose_half(low, [](const BlockQ51 & block) { return block.low; });
            const Integers high = from.words([](const BlockQ51 & block) { return block.high; });
            for (int q = 0; q < QUARTERS; q++) {
                blocks[0].parts[q] = low_bits(low[q]) | fifth_bits(high, q);
                blocks[0].parts[QUARTERS + q] = high_bits(low[q]) | fifth_bits(high, QUARTERS + q);
            }
            blocks[0].scales = from.leading_scales(&BlockQ51::scale);
            blocks[0].mins = -from.leading_scales(&BlockQ51::least);
        }

    private:
        const WideColumns<BlockQ51> from;
    };
};

#endif

} // namespace
