// IQ4_XS weights as they are in the file: a weight is a scale times one of the sixteen numbers of IQ4_NL.
// Unpacked and transposed in registers, which all rows of a tile share.
#pragma once

#include "iq4_nl.h"
#include "wide_columns.h"

namespace {

/// Eight blocks of one column: ggml's block_iq4_xs.
struct SuperBlockIQ4 {
    uint16_t scale;
    /// The high two bits of the scale of each block, and the low four.
    uint16_t high_scales;
    uint8_t low_scales[SUPER_BLOCKS / 2];
    /// For each two blocks, sixteen bytes of each. The low four bits belong to the first half of a block.
    uint8_t places[SUPER_BLOCKS / 2][BLOCK];
};
static_assert(sizeof(SuperBlockIQ4) == 136, "the layout is ggml's");

/// The scales of some columns.
class IQ4Scales {
public:
    template <class Columns>
    explicit IQ4Scales(const Columns & from) : of_all(from.leading_scales(&SuperBlockIQ4::scale)) {
        low = from.words([](const SuperBlockIQ4 & block) { return block.low_scales; });
        // Of the four bytes, the last two are these.
        high = from.words([](const SuperBlockIQ4 & block) { return &block.scale; });
    }

    /// Those of the block b: numbers of six bits, less 32.
    Vec scale(int b) const {
        const Integers four_bits = bits_at(low, 4 * b, 15), two_bits = bits_at(high, 16 + 2 * b, 3);
        return numbers_of(six_bits_less_32(four_bits, two_bits)) * of_all;
    }

private:
    const Vec of_all;
    Integers low, high;
};

/// A matrix of them.
class WeightsIQ4XS : public WideWeights<SuperBlockIQ4> {
public:
    using WideWeights::WideWeights;
    static constexpr int OFFSET = IQ4_OFFSET;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;
    /// Blocks that are unpacked together.
    static constexpr int CHUNK = 2;

#if defined(__AVX512VNNI__)

    /// Eight blocks of two groups.
    class Lanes : public LaneTraits<WeightsIQ4XS> {
    public:
        Lanes(const WeightsIQ4XS & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), numbers(from) {}

        /// Reads the two blocks from `part` on.
        void load(int part) {
            from.transpose(places, [&](const SuperBlockIQ4 & block) { return block.places[part / CHUNK]; });
        }

        void unpack(int part, Integers (&to)[2][QUARTERS]) const {
            const int first = part % CHUNK * 2;
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                const int g = k / 2, q = k % 2;
                const Integers both = places[g][first + q];
                to[g][q] = chosen(iq4_numbers(), low_bits(both));
                to[g][q + 2] = chosen(iq4_numbers(), high_bits(both));
            }
        }

        Vec scales(int part) const { return numbers.scale(part); }

    private:
        const LaneColumns<SuperBlockIQ4> from;
        const IQ4Scales numbers;
        Integers places[2][QUARTERS];
    };

#else

    typedef WideSignedSum Sums;

    /// Eight blocks of some columns.
    class Super {
    public:
        Super(const WeightsIQ4XS & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), scales(from) {}

        /// Unpacks two of them: those from `part` on.
        void unpack(int part, WideBlock (&blocks)[CHUNK]) const {
            Integers places[2 * QUARTERS];
            from.transpose(places, [&](const SuperBlockIQ4 & block) { return block.places[part / 2]; });
            for (int i = 0; i < CHUNK; i++) {
                for (int q = 0; q < QUARTERS; q++) {
                    const Integers both = places[i * QUARTERS + q];
                    blocks[i].parts[q] = chosen(iq4_numbers(), low_bits(both));
                    blocks[i].parts[q + QUARTERS] = chosen(iq4_numbers(), high_bits(both));
                }
                blocks[i].scales = scales.scale(part + i);
            }
        }

    private:
        const WideColumns<SuperBlockIQ4> from;
        const IQ4Scales scales;
    };

#endif
};

} // namespace
