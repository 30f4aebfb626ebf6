// Q5_K weights as they are in the file: a weight is a scale times n, 0 to 31, less a minimum. Unpacked and
// transposed in registers, which all rows of a tile share.
#pragma once

#include "wide_columns.h"

namespace {

/// Eight blocks of one column: ggml's block_q5_K.
struct SuperBlockQ5 {
    uint16_t scale;
    uint16_t min;
    /// The scales of the first four blocks, and their minimums, in the low six bits of four bytes each; then
    /// the low four bits of those of the last four, whose high bits are above the others.
    uint8_t packed[3][4];
    /// Bit b of the byte i is the fifth one of the element i of the block b.
    uint8_t high[BLOCK];
    /// For each two blocks. The low four bits belong to the first of the two.
    uint8_t low[4][BLOCK];
};
static_assert(sizeof(SuperBlockQ5) == 176, "the layout is ggml's");

/// A matrix of them.
class WeightsQ5K : public WideWeights<SuperBlockQ5> {
public:
    using WideWeights::WideWeights;
    typedef WideSum<31> Sums;
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = true;
    /// Blocks that share bytes.
    static constexpr int CHUNK = 2;

    /// Eight blocks of sixteen columns.
    class Super {
    public:
        Super(const WeightsQ5K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), scales(from.scales(&SuperBlockQ5::scale)),
              mins(from.scales(&SuperBlockQ5::min)) {
            from.transpose(high, [](const SuperBlockQ5 & block) { return block.high; });
            for (int i = 0; i < 3; i++) packed[i] = from.words([&](const SuperBlockQ5 & block) { return block.packed[i]; });
        }

        /// Unpacks two of them: those from `part` on.
        void unpack(int part, WideBlock (&blocks)[CHUNK]) const {
            Integers low[2 * QUARTERS];
            from.transpose(low, [&](const SuperBlockQ5 & block) { return block.low[part / 2]; });
            for (int i = 0; i < CHUNK; i++) {
                const int b = part + i;
                for (int p = 0; p < 2 * QUARTERS; p++) {
                    const Integers four_bits = i == 0 ? low_bits(low[p]) : high_bits(low[p]);
                    blocks[i].parts[p] = four_bits | (bit_moved(high[p], b, 4) & eight_bytes(0x1010101010101010));
                }
                blocks[i].scales = six_bits(packed[0], packed[2], b) * scales;
                blocks[i].mins = six_bits(packed[1], bits_down(packed[2], 4), b) * mins;
            }
        }

    private:
        const WideColumns<SuperBlockQ5> from;
        const Vec scales, mins;
        Integers high[2 * QUARTERS], packed[3];

        /// Numbers of the block b: `first` has those of the first four blocks, and the high bits of the others.
        static Vec six_bits(Integers first, Integers others, int b) {
            const int byte = b % 4 * 8;
            if (b < 4) return numbers_of(bits_at(first, byte, 63));
            return numbers_of(bits_at(others, byte, 15) | bits_at(first, byte + 2, 0x30));
        }
    };
};

} // namespace
