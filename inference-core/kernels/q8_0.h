// Q8_0 weights as they are in the file: a weight is a scale times a signed byte. Transposed in
// registers, which all rows of a tile share, so that they need no second place in memory.
#pragma once

#include "transposed.h"

#if defined(__AVX512VNNI__)

namespace {

/// One block of one column: ggml's block_q8_0.
struct BlockQ8 {
    uint16_t scale;
    int8_t weights[BLOCK];
};
static_assert(sizeof(BlockQ8) == 34, "the layout is ggml's");

/// A matrix of them.
class WeightsQ8 {
public:
    static constexpr bool IS_WIDE = false;
    static constexpr int OFFSET = 128;
    static constexpr bool HAS_MINS = false;

    WeightsQ8(const void * data, size_t stride) : columns(data, stride) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const BlockQ8 * from[GROUP];
        columns.find(column, block, from);
        Pairs pairs;
        for (int i = 0; i < 4; i++) {
            const Integers both = pair(from[PAIRED[i][0]]->weights, from[PAIRED[i][1]]->weights);
            pairs.columns[i] = both ^ eight_bytes((int64_t) 0x8080808080808080);
        }
        Unpacked unpacked;
        pairs.transpose(unpacked.quarters);
        unpacked.scales = scales_of(from, &BlockQ8::scale);
        return unpacked;
    }

    void prefetch_later(int column, int count, int block) const {
        columns.prefetch_later(column, count, block, sizeof(BlockQ8));
    }

private:
    const Columns<BlockQ8> columns;
};

} // namespace

#endif
