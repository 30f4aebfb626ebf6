// Q5_K weights as they are in the file: a weight is a scale times n, 0 to 31, less a minimum. Unpacked and
// transposed in registers, which all rows of a tile share.
#pragma once

#include "transposed.h"

#if defined(__AVX512VNNI__)

namespace {

/// Eight blocks of one column: ggml's block_q5_K.
struct SuperBlockQ5 {
    uint16_t scale;
    uint16_t min;
    /// The scales of the first four blocks, and their minimums, in the low six bits of four bytes each; then
    /// the low four bits of those of the last four, whose high bits are above the others.
    uint8_t packed[12];
    /// Bit b of the byte i is the fifth one of the element i of the block b.
    uint8_t high[BLOCK];
    /// For each two blocks. The low four bits belong to the first of the two.
    uint8_t low[4][BLOCK];
};
static_assert(sizeof(SuperBlockQ5) == 176, "the layout is ggml's");

/// A matrix of them.
class WeightsQ5K {
public:
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = true;

    WeightsQ5K(const void * data, size_t stride) : columns(data, stride) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const int part = block % 8;
        const SuperBlockQ5 * from[GROUP];
        columns.find(column, block / 8, from);
        uint64_t six_bits = 0, six_bits_of_min = 0;
        for (int c = 0; c < GROUP; c++) {
            six_bits |= (uint64_t) six_bits_of(from[c]->packed, part, 0) << (c * 8);
            six_bits_of_min |= (uint64_t) six_bits_of(from[c]->packed, part, 4) << (c * 8);
        }
        Pairs pairs;
        for (int i = 0; i < 4; i++) {
            const SuperBlockQ5 & a = *from[PAIRED[i][0]], & b = *from[PAIRED[i][1]];
            const Integers both = pair(a.low[part / 2], b.low[part / 2]);
            const Integers low = part % 2 == 0 ? low_bits(both) : high_bits(both);
            const __mmask64 high = _mm512_test_epi8_mask(pair(a.high, b.high), _mm512_set1_epi8((char) (1 << part)));
            pairs.columns[i] = _mm512_mask_add_epi8(low, high, low, _mm512_set1_epi8(16));
        }
        Unpacked unpacked;
        pairs.transpose(unpacked.quarters);
        unpacked.scales = numbers_of(six_bits) * scales_of(from, &SuperBlockQ5::scale);
        unpacked.mins = numbers_of(six_bits_of_min) * scales_of(from, &SuperBlockQ5::min) * 0.5f;
        return unpacked;
    }

    void prefetch_later(int column, int count, int block) const {
        columns.prefetch_later(column, count, block, sizeof(SuperBlockQ5) / 8);
    }

private:
    const Columns<SuperBlockQ5> columns;

    /// The scale of a block, or its minimum: those of the first four start at `from`.
    static uint8_t six_bits_of(const uint8_t * packed, int part, int from) {
        if (part < 4) return packed[from + part] & 63;
        const uint8_t low = from == 0 ? packed[4 + part] & 15 : packed[4 + part] >> 4;
        return low | packed[from + part - 4] >> 6 << 4;
    }
};

} // namespace

#endif
