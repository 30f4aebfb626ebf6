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

/// The scales of some columns.
class Q3Scales {
public:
    template <class Columns>
    Q3Scales(const Columns & from, Vec of_all) : of_all(of_all) {
        for (int i = 0; i < 3; i++) words[i] = from.words([&](const SuperBlockQ3 & block) { return block.scales[i]; });
    }

    /// Those of the half i of a block: numbers of six bits, less 32.
    Vec scale(int i) const {
        const int word = i / 4, byte = 8 * (i % 4);
        const Integers low = bits_at(words[word % 2], byte + word / 2 * 4, 15);
        const Integers two_bits = bits_at(words[2], byte + 2 * word, 3);
        return numbers_of(six_bits_less_32(low, two_bits)) * of_all;
    }

private:
    const Vec of_all;
    Integers words[3];
};

/// A matrix of them.
class WeightsQ3K : public WideWeights<SuperBlockQ3> {
public:
    using WideWeights::WideWeights;
    static constexpr int OFFSET = 4;
    static constexpr bool HAS_HALVES = true;
    static constexpr bool HAS_MINS = false;
    /// Blocks that share bytes.
    static constexpr int CHUNK = 4;

#if defined(__AVX512VNNI__)

    /// Eight blocks of two groups.
    class Lanes : public LaneTraits<WeightsQ3K> {
    public:
        Lanes(const WeightsQ3K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), numbers(from, from.scales(&SuperBlockQ3::scale)) {
            from.transpose(high, [](const SuperBlockQ3 & block) { return block.high; });
        }

        /// Reads what the four blocks from `part` on share.
        void load(int part) {
            from.transpose(low, [&](const SuperBlockQ3 & block) { return block.low[part / CHUNK]; });
        }

        void unpack(int part, Integers (&to)[2][QUARTERS]) const {
#pragma GCC unroll 8
            for (int k = 0; k < 2 * QUARTERS; k++) {
                const int g = k / QUARTERS, q = k % QUARTERS;
                const Integers two_bits = bits_down(low[g][q], 2 * (part % CHUNK)), third = bit_moved(high[g][q], part, 2);
                to[g][q] = (two_bits & eight_bytes(0x0303030303030303)) | (third & eight_bytes(0x0404040404040404));
            }
        }

        Vec scales(int part) const { return numbers.scale(2 * part); }
        Vec second_scales(int part) const { return numbers.scale(2 * part + 1); }

    private:
        const LaneColumns<SuperBlockQ3> from;
        const Q3Scales numbers;
        Integers low[2][QUARTERS], high[2][QUARTERS];
    };

#else

    typedef WideSum<7> Sums;

    /// Eight blocks of some columns.
    class Super {
    public:
        Super(const WeightsQ3K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), scales(from, from.scales(&SuperBlockQ3::scale)) {
            from.transpose(high, [](const SuperBlockQ3 & block) { return block.high; });
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
                blocks[i].scales = scales.scale(2 * (part + i));
                blocks[i].second_scales = scales.scale(2 * (part + i) + 1);
            }
        }

    private:
        const WideColumns<SuperBlockQ3> from;
        const Q3Scales scales;
        Integers high[2 * QUARTERS];
    };

#endif
};

} // namespace
