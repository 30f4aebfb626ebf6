// Q6_K weights as they are in the file: a weight is a scale times (n - 32), and n is 0 to 63. Unpacked and
// transposed in registers, which all rows of a tile share.
#pragma once

#include "wide_columns.h"

namespace {

/// Eight blocks of one column: ggml's block_q6_K. Each half of it has four blocks: the low four bits of
/// the first two are the low halves of the bytes `low`, those of the last two are the high halves. Each
/// byte of `high` has two more bits for one element of each of the four.
struct SuperBlockQ6 {
    uint8_t low[2][2][BLOCK];
    uint8_t high[2][BLOCK];
    /// Of each half of a block.
    int8_t scales[2 * SUPER_BLOCKS];
    uint16_t scale;
};
static_assert(sizeof(SuperBlockQ6) == 210, "the layout is ggml's");

/// A matrix of them.
class WeightsQ6K : public WideWeights<SuperBlockQ6> {
public:
    using WideWeights::WideWeights;
    typedef WideSum<63> Sums;
    static constexpr int OFFSET = 32;
    static constexpr bool HAS_HALVES = true;
    static constexpr bool HAS_MINS = false;
    /// Blocks that share bytes.
    static constexpr int CHUNK = 4;

    /// Eight blocks of sixteen columns.
    class Super {
    public:
        Super(const WeightsQ6K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), of_all(from.scales(&SuperBlockQ6::scale)) {
            Sixteen rows[WIDE_COLUMNS];
            for (int c = 0; c < WIDE_COLUMNS; c++) rows[c] = load_sixteen(from[c].scales);
            for (int columns = WIDE_COLUMNS; columns > 1; columns /= 2) interleave(rows);
            memcpy(scales, rows, sizeof(scales));
        }

        /// Unpacks half of them: those from `part` on.
        void unpack(int part, WideBlock (&blocks)[CHUNK]) const {
            const int half = part / CHUNK;
            Integers low[2][2 * QUARTERS], high[2 * QUARTERS];
            for (int i = 0; i < 2; i++) {
                from.transpose(low[i], [&](const SuperBlockQ6 & block) { return block.low[half][i]; });
            }
            from.transpose(high, [&](const SuperBlockQ6 & block) { return block.high[half]; });
            const Integers two_bits = eight_bytes(0x3030303030303030);
            for (int p = 0; p < 2 * QUARTERS; p++) {
                const Integers x = high[p];
                blocks[0].parts[p] = low_bits(low[0][p]) | (bits_up(x, 4) & two_bits);
                blocks[1].parts[p] = low_bits(low[1][p]) | (bits_up(x, 2) & two_bits);
                blocks[2].parts[p] = high_bits(low[0][p]) | (x & two_bits);
                blocks[3].parts[p] = high_bits(low[1][p]) | (bits_down(x, 2) & two_bits);
            }
            for (int i = 0; i < CHUNK; i++) {
                blocks[i].scales = scale(2 * (part + i));
                blocks[i].second_scales = scale(2 * (part + i) + 1);
            }
        }

    private:
        const WideColumns<SuperBlockQ6> from;
        const Vec of_all;
        alignas(16) int8_t scales[2 * SUPER_BLOCKS][WIDE_COLUMNS];

        Vec scale(int i) const { return numbers_of(scales[i]) * of_all; }

        /// As many of these as there are bits in the number of a column make a matrix of bytes its transpose.
        static void interleave(Sixteen (&rows)[WIDE_COLUMNS]) {
            Sixteen all[WIDE_COLUMNS];
            for (int i = 0; i < WIDE_COLUMNS / 2; i++) {
                all[2 * i] = low_bytes(rows[i], rows[i + WIDE_COLUMNS / 2]);
                all[2 * i + 1] = high_bytes(rows[i], rows[i + WIDE_COLUMNS / 2]);
            }
            memcpy(rows, all, sizeof(all));
        }
    };
};

} // namespace
