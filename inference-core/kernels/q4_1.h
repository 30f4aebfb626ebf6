// Q4_1 weights as they are in the file: a weight is the least one of its block and a scale times n, 0 to 15.
// Files in Q4_0 whose quantization was guided by an importance matrix have some.
#pragma once

#include "wide_columns.h"

namespace {

/// One block of one column: ggml's block_q4_1. The low four bits of the byte i of `low` belong to the
/// element i, the high ones to the element i + 16.
struct BlockQ41 {
    uint16_t scale;
    uint16_t least;
    uint8_t low[16];
};
static_assert(sizeof(BlockQ41) == 20, "the layout is ggml's");

#if defined(__AVX512VNNI__)

/// A matrix of them.
class WeightsQ41 : public SmallColumns<WeightsQ41, BlockQ41> {
public:
    using SmallColumns::SmallColumns;
    typedef SimpleLanes<WeightsQ41> Lanes;
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_MINS = true;

    static Integers pair_of(const BlockQ41 & a, const BlockQ41 & b) { return pair_of_nibbles(a.low, b.low); }
};

#else

/// A matrix of them.
class WeightsQ41 : public WideWeights<BlockQ41, 1> {
public:
    using WideWeights::WideWeights;
    typedef WideSum<15> Sums;
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = true;
    static constexpr int CHUNK = 1;

    /// A block of some columns.
    class Super {
    public:
        Super(const WeightsQ41 & weights, int column, int count, int block) : from(weights.at(column, count, block)) {}

        void unpack(int, WideBlock (&blocks)[CHUNK]) const {
            Integers low[QUARTERS];
            from.transpose_half(low, [](const BlockQ41 & block) { return block.low; });
            for (int q = 0; q < QUARTERS; q++) {
                blocks[0].parts[q] = low_bits(low[q]);
                blocks[0].parts[QUARTERS + q] = high_bits(low[q]);
            }
            blocks[0].scales = from.leading_scales(&BlockQ41::scale);
            blocks[0].mins = -from.leading_scales(&BlockQ41::least);
        }

    private:
        const WideColumns<BlockQ41> from;
    };
};

#endif

} // namespace
