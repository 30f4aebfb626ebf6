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

/// A matrix of them.
class WeightsIQ4XS : public WideWeights<SuperBlockIQ4> {
public:
    using WideWeights::WideWeights;
    typedef WideSignedSum Sums;
    static constexpr int OFFSET = IQ4_OFFSET;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;
    /// Blocks that are unpacked together.
    static constexpr int CHUNK = 2;

    /// Eight blocks of sixteen columns.
    class Super {
    public:
        Super(const WeightsIQ4XS & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), of_all(from.scales(&SuperBlockIQ4::scale)) {
            low_scales = from.words([](const SuperBlockIQ4 & block) { return block.low_scales; });
            // Of the four bytes, the last two are these.
            high_scales = from.words([](const SuperBlockIQ4 & block) { return &block.scale; });
        }

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
                blocks[i].scales = scale(part + i);
            }
        }

    private:
        const WideColumns<SuperBlockIQ4> from;
        const Vec of_all;
        Integers low_scales, high_scales;

        /// The scales of the block b: numbers of six bits, less 32.
        Vec scale(int b) const {
            const Integers low = bits_at(low_scales, 4 * b, 15), high = bits_at(high_scales, 16 + 2 * b, 3);
            return numbers_of(six_bits_less_32(low, high)) * of_all;
        }
    };
};

} // namespace
