// Q3_K weights as they are in the file: a weight is a scale times (n - 4), and n is 0 to 7. Unpacked and
// transposed in registers, which all rows of a tile share.
#pragma once

#include "wide_columns.h"

namespace {

/// Eight blocks of one column: ggml's block_q3_K.
struct SuperBlockQ3 {
    /// Bit b of the byte i is the third one of the element i of the block b.
    uint8_t high[BLOCK];
    /// Two bits for one element of each of four blocks.
    uint8_t low[2][BLOCK];
    /// The scales of each half of a block: their low four bits, those of the last eight above those of the
    /// first eight; then two more bits for one of each of the four bytes that they make.
    uint8_t scales[3][4];
    uint16_t scale;
};
static_assert(sizeof(SuperBlockQ3) == 110, "the layout is ggml's");

/// A matrix of them.
class WeightsQ3K : public WideWeights<SuperBlockQ3> {
public:
    using WideWeights::WideWeights;
    typedef WideSum<7> Sums;
    static constexpr int OFFSET = 4;
    static constexpr bool HAS_HALVES = true;
    static constexpr bool HAS_MINS = false;
    /// Blocks that share bytes.
    static constexpr int CHUNK = 4;

    /// Eight blocks of sixteen columns.
    class Super {
    public:
        Super(const WeightsQ3K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), of_all(from.scales(&SuperBlockQ3::scale)) {
            from.transpose(high, [](const SuperBlockQ3 & block) { return block.high; });
            for (int i = 0; i < 3; i++) scales[i] = from.words([&](const SuperBlockQ3 & block) { return block.scales[i]; });
        }

        /// Unpacks half of them: those from `part` on.
        void unpack(int part, WideBlock (&blocks)[CHUNK]) const {
            Integers low[2 * QUARTERS];
            from.transpose(low, [&](const SuperBlockQ3 & block) { return block.low[part / CHUNK]; });
            for (int i = 0; i < CHUNK; i++) {
                for (int p = 0; p < 2 * QUARTERS; p++) {
                    const Integers two_bits = bits_down(low[p], 2 * i);
                    const Integers third = bit_moved(high[p], part + i, 2);
                    blocks[i].parts[p] = (two_bits & eight_bytes(0x0303030303030303))
                        | (third & eight_bytes(0x0404040404040404));
                }
                blocks[i].scales = scale(2 * (part + i));
                blocks[i].second_scales = scale(2 * (part + i) + 1);
            }
        }

    private:
        const WideColumns<SuperBlockQ3> from;
        const Vec of_all;
        Integers high[2 * QUARTERS], scales[3];

        /// The scales of the half i: numbers of six bits, less 32.
        Vec scale(int i) const {
            const int word = i / 4, byte = 8 * (i % 4);
            const Integers low = bits_at(scales[word % 2], byte + word / 2 * 4, 15);
            const Integers two_bits = bits_at(scales[2], byte + 2 * word, 3);
            return numbers_of(six_bits_less_32(low, two_bits)) * of_all;
        }
    };
};

} // namespace
