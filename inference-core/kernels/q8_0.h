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
    static constexpr int OFFSET = 128;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;

    /// `stride`: bytes from one column to the next.
    WeightsQ8(const void * data, size_t stride) : data((const char *) data), stride(stride) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const BlockQ8 * from[GROUP];
        const uint16_t * scales[GROUP];
        for (int c = 0; c < GROUP; c++) {
            from[c] = (const BlockQ8 *) (data + (size_t) (column + c) * stride) + block;
            scales[c] = &from[c]->scale;
        }
        Pairs pairs;
        for (int i = 0; i < 4; i++) {
            const Integers both = pair(from[PAIRED[i][0]]->weights, from[PAIRED[i][1]]->weights);
            pairs.columns[i] = both ^ eight_bytes((int64_t) 0x8080808080808080);
        }
        Unpacked unpacked;
        pairs.transpose(unpacked.quarters);
        unpacked.scales = scales_of(scales);
        return unpacked;
    }

    /// Prefetches a part of the columns after `count` columns: in the order of memory, as the streams of
    /// several columns are too many for the prefetchers of a CPU.
    void prefetch_later(int column, int count, int block) const {
        const size_t part = count * sizeof(BlockQ8);
        prefetch<SECOND>(data + (size_t) (column + count) * stride + block * part, part);
    }

private:
    const char * data;
    const size_t stride;
};

} // namespace

#endif
