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

/// The scales and minimums of some columns.
class Q5Numbers {
public:
    template <class Columns>
    explicit Q5Numbers(const Columns & from)
        : of_scales(from.leading_scales(&SuperBlockQ5::scale)), of_mins(from.leading_scales(&SuperBlockQ5::min)) {
        for (int i = 0; i < 3; i++) packed[i] = from.words([&](const SuperBlockQ5 & block) { return block.packed[i]; });
    }

    /// Those of the block b.
    Vec scale(int b) const { return six_bits(packed[0], packed[2], b) * of_scales; }
    Vec min(int b) const { return six_bits(packed[1], bits_down(packed[2], 4), b) * of_mins; }

private:
    const Vec of_scales, of_mins;
    Integers packed[3];

    /// `first` has those of the first four blocks, and the high bits of the others.
    static Vec six_bits(Integers first, Integers others, int b) {
        const int byte = b % 4 * 8;
        if (b < 4) return numbers_of(bits_at(first, byte, 63));
        return numbers_of(bits_at(others, byte, 15) | bits_at(first, byte + 2, 0x30));
    }
};

/// A matrix of them.
class WeightsQ5K : public WideWeights<SuperBlockQ5> {
public:
    using WideWeights::WideWeights;
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = true;
    /// Blocks that share bytes.
    static constexpr int CHUNK = 2;

#if defined(__AVX512VNNI__)

    /// Eight blocks of two groups.
    class Lanes : public LaneTraits<WeightsQ5K> {
    public:
        Lanes(const WeightsQ5K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), numbers(from) {
            from.transpose(high, [](const SuperBlockQ5 & block) { return block.high; });
        }

        /// Reads what the two blocks from `part` on share.
        void load(int part) {
            from.transpose(low, [&](const SuperBlockQ5 & block) { return block.low[part / CHUNK]; });
        }

        void unpack(int part, Integers (&to)[2][QUARTERS]) const {
#pragma GCC unroll 8
            for (int k = 0; k < 2 * QUARTERS; k++) {
                const int g = k / QUARTERS, q = k % QUARTERS;
                const Integers four_bits = part % CHUNK == 0 ? low_bits(low[g][q]) : high_bits(low[g][q]);
                to[g][q] = four_bits | (bit_moved(high[g][q], part, 4) & eight_bytes(0x1010101010101010));
            }
        }

        Vec scales(int part) const { return numbers.scale(part); }
        Vec mins(int part) const { return numbers.min(part); }

    private:
        const LaneColumns<SuperBlockQ5> from;
        const Q5Numbers numbers;
        Integers low[2][QUARTERS], high[2][QUARTERS];
    };

#else

    typedef WideSum<31> Sums;

    /// Eight blocks of some columns.
    class Super {
    public:
        Super(const WeightsQ5K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), numbers(from) {
            from.transpose(high, [](const SuperBlockQ5 & block) { return block.high; });
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
                blocks[i].scales = numbers.scale(b);
                blocks[i].mins = numbers.min(b);
            }
        }

    private:
        const WideColumns<SuperBlockQ5> from;
        const Q5Numbers numbers;
        Integers high[2 * QUARTERS];
    };

#endif
};

} // namespace
