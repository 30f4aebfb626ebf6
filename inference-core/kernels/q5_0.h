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

/// Numbers of five bits of two columns.
template <class Block>
inline Integers pair_of_five_bits(const Block & a, const Block & b) {
    uint32_t first, second;
    memcpy(&first, a.high, sizeof(first));
    memcpy(&second, b.high, sizeof(second));
    const __mmask64 fifth = first | (uint64_t) second << 32;
    const Integers low = pair_of_nibbles(a.low, b.low);
    return _mm512_mask_add_epi8(low, fifth, low, _mm512_set1_epi8(16));
}

/// A matrix of them.
class WeightsQ5 : public SmallColumns<WeightsQ5, BlockQ5> {
public:
    using SmallColumns::SmallColumns;
    typedef SimpleLanes<WeightsQ5> Lanes;
    static constexpr int OFFSET = 16;
    static constexpr bool HAS_MINS = false;

    static Integers pair_of(const BlockQ5 & a, const BlockQ5 & b) { return pair_of_five_bits(a, b); }
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
