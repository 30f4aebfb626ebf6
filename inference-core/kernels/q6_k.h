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

/// Makes a matrix of bytes, sixteen of each column, its transpose.
inline void transpose_bytes(Sixteen (&rows)[WIDE_COLUMNS]) {
    // As many steps as there are bits in the number of a column.
    for (int columns = WIDE_COLUMNS; columns > 1; columns /= 2) {
        Sixteen all[WIDE_COLUMNS];
        for (int i = 0; i < WIDE_COLUMNS / 2; i++) {
            all[2 * i] = low_bytes(rows[i], rows[i + WIDE_COLUMNS / 2]);
            all[2 * i + 1] = high_bytes(rows[i], rows[i + WIDE_COLUMNS / 2]);
        }
        memcpy(rows, all, sizeof(all));
    }
}

/// A matrix of them.
class WeightsQ6K : public WideWeights<SuperBlockQ6> {
public:
    using WideWeights::WideWeights;
    static constexpr int OFFSET = 32;
    static constexpr bool HAS_HALVES = true;
    static constexpr bool HAS_MINS = false;
    /// Blocks that share bytes.
    static constexpr int CHUNK = 4;

#if defined(__AVX512VNNI__)

    /// Eight blocks of two groups.
    class Lanes : public LaneTraits<WeightsQ6K> {
    public:
        Lanes(const WeightsQ6K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), of_all(from.scales(&SuperBlockQ6::scale)) {
            Sixteen rows[WIDE_COLUMNS];
            for (int i = 0; i < WIDE_COLUMNS; i++) rows[i] = load_sixteen(from[IN_TURNS[i]].scales);
            transpose_bytes(rows);
            memcpy(numbers, rows, sizeof(numbers));
        }

        /// Reads what the four blocks from `part` on share.
        void load(int part) {
            const int half = part / CHUNK;
            for (int i = 0; i < 2; i++) {
                from.transpose(low[i], [&](const SuperBlockQ6 & block) { return block.low[half][i]; });
            }
            from.transpose(high, [&](const SuperBlockQ6 & block) { return block.high[half]; });
        }

        void unpack(int part, Integers (&to)[2][QUARTERS]) const {
            const int i = part % CHUNK;
            if (i == 0) return unpack<0>(to);
            if (i == 1) return unpack<1>(to);
            if (i == 2) return unpack<2>(to);
            unpack<3>(to);
        }

        Vec scales(int part) const { return numbers_of(numbers[2 * part]) * of_all; }
        Vec second_scales(int part) const { return numbers_of(numbers[2 * part + 1]) * of_all; }

    private:
        const LaneColumns<SuperBlockQ6> from;
        const Vec of_all;
        Integers low[2][2][QUARTERS], high[2][QUARTERS];
        alignas(16) int8_t numbers[2 * SUPER_BLOCKS][WIDE_COLUMNS];

        template <int I>
        ALWAYS_INLINE void unpack(Integers (&to)[2][QUARTERS]) const {
#pragma GCC unroll 8
            for (int k = 0; k < 2 * QUARTERS; k++) {
                const int g = k / QUARTERS, q = k % QUARTERS;
                const Integers four = low[I % 2][g][q], two = bit_moved(high[g][q], 2 * I, 4);
                to[g][q] = (I < 2 ? low_bits(four) : high_bits(four)) | (two & eight_bytes(0x3030303030303030));
            }
        }
    };

#else

    typedef WideSum<63> Sums;

    /// Eight blocks of some columns.
    class Super {
    public:
        Super(const WeightsQ6K & weights, int column, int count, int super)
            : from(weights.at(column, count, super)), of_all(from.scales(&SuperBlockQ6::scale)) {
            Sixteen rows[WIDE_COLUMNS];
            for (int c = 0; c < WIDE_COLUMNS; c++) rows[c] = load_sixteen(from[c].scales);
            transpose_bytes(rows);
            memcpy(scales, rows, sizeof(scales));
        }

        /// Unpacks half of them: those from `part` on. Not among the products, which need all
        /// registers.
        NOINLINE void unpack(int part, WideBlock (&blocks)[CHUNK]) const {
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
    };

#endif
};

} // namespace
