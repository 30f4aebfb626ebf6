// Q6_K weights as they are in the file: a weight is a scale times (n - 32), and n is 0 to 63. Unpacked and
// transposed in registers, which all rows of a tile share.
#pragma once

#include "transposed.h"

#if defined(__AVX512VNNI__)

namespace {

/// Eight blocks of one column: ggml's block_q6_K. Each half of it has four blocks: the low four bits of
/// the first two are the low halves of the bytes `low`, those of the last two are the high halves. Each
/// byte of `high` has two more bits for one element of each of the four.
struct SuperBlockQ6 {
    uint8_t low[2][2][BLOCK];
    uint8_t high[2][BLOCK];
    /// Of each half of a block.
    int8_t scales[8][2];
    uint16_t scale;
};
static_assert(sizeof(SuperBlockQ6) == 210, "the layout is ggml's");

/// A matrix of them.
class WeightsQ6K {
public:
    static constexpr int OFFSET = 32;
    static constexpr bool HAS_HALVES = true;
    static constexpr bool HAS_MINS = false;

    WeightsQ6K(const void * data, size_t stride) : columns(data, stride) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const int part = block % 8, half = part / 4, place = part % 4;
        const SuperBlockQ6 * from[GROUP];
        columns.find(column, block / 8, from);
        uint64_t first = 0, second = 0;
        for (int c = 0; c < GROUP; c++) {
            first |= (uint64_t) (uint8_t) from[c]->scales[part][0] << (c * 8);
            second |= (uint64_t) (uint8_t) from[c]->scales[part][1] << (c * 8);
        }
        Pairs pairs;
        for (int i = 0; i < 4; i++) {
            const SuperBlockQ6 & a = *from[PAIRED[i][0]], & b = *from[PAIRED[i][1]];
            const Integers both = pair(a.low[half][place % 2], b.low[half][place % 2]);
            const Integers low = place < 2 ? low_bits(both) : high_bits(both);
            const Integers high = _mm512_srl_epi16(pair(a.high[half], b.high[half]), _mm_cvtsi32_si128(2 * place));
            const Integers two_bits = high & eight_bytes(0x0303030303030303);
            pairs.columns[i] = low | _mm512_slli_epi16(two_bits, 4);
        }
        Unpacked unpacked;
        pairs.transpose(unpacked.quarters);
        const Vec of_all = scales_of(from, &SuperBlockQ6::scale);
        unpacked.scales = signed_numbers_of(first) * of_all;
        unpacked.second_scales = signed_numbers_of(second) * of_all;
        return unpacked;
    }

    void prefetch_later(int column, int count, int block) const {
        columns.prefetch_later(column, count, block, sizeof(SuperBlockQ6) / 8);
    }

private:
    const Columns<SuperBlockQ6> columns;

    /// A vector's signed bytes as numbers, two lanes each.
    static Vec signed_numbers_of(uint64_t bytes) {
        const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        const __m128i all = _mm_shuffle_epi8(_mm_cvtsi64_si128((int64_t) bytes), twice);
        return (Vec) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(all));
    }
};

} // namespace

#endif
