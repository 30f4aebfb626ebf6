// IQ4_XS weights as they are in the file: a weight is a scale times one of the sixteen numbers of IQ4_NL.
// Unpacked and transposed in registers, which all rows of a tile share.
#pragma once

#include "iq4_nl.h"
#include "wide_columns.h"

#if defined(__AVX512VNNI__)

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
    static constexpr int OFFSET = 128;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;
    /// Blocks that are unpacked together.
    static constexpr int CHUNK = 2;

    /// Eight blocks of sixteen columns.
    class Super {
    public:
        Super(const WeightsIQ4XS & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), of_all(from.scales(&SuperBlockIQ4::scale)) {
            alignas(64) uint32_t low[WIDE_COLUMNS], high[WIDE_COLUMNS];
            for (int c = 0; c < WIDE_COLUMNS; c++) {
                memcpy(&low[c], from[c].low_scales, sizeof(low[c]));
                high[c] = from[c].high_scales;
            }
            low_scales = _mm512_load_si512(low);
            high_scales = _mm512_load_si512(high);
        }

        /// Unpacks two of them: those from `part` on.
        void unpack(int part, WideBlock (&blocks)[CHUNK]) const {
            Integers places[2 * QUARTERS];
            from.transpose(places, [&](const SuperBlockIQ4 & block) { return block.places[part / 2]; });
            const Integers numbers = iq4_numbers();
            for (int i = 0; i < CHUNK; i++) {
                for (int q = 0; q < QUARTERS; q++) {
                    const Integers both = places[i * QUARTERS + q];
                    blocks[i].parts[q] = _mm512_shuffle_epi8(numbers, low_bits(both));
                    blocks[i].parts[q + QUARTERS] = _mm512_shuffle_epi8(numbers, high_bits(both));
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
            const Integers low = bits_at(low_scales, 4 * b, 15), high = bits_at(high_scales, 2 * b, 3);
            return numbers_of(_mm512_sub_epi32(low | _mm512_slli_epi32(high, 4), _mm512_set1_epi32(32))) * of_all;
        }
    };
};

} // namespace

#endif
