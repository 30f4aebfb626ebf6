// Q8_0 weights as they are in the file: a weight is a scale times a signed byte. Transposed in
// registers, which all rows of a tile share, so that they need no second place in memory.
#pragma once

#include "wide_columns.h"

namespace {

/// One block of one column: ggml's block_q8_0.
struct BlockQ8 {
    uint16_t scale;
    int8_t weights[BLOCK];
};
static_assert(sizeof(BlockQ8) == 34, "the layout is ggml's");

#if defined(__AVX512VNNI__)

/// A matrix of them.
class WeightsQ8 : public SmallColumns<WeightsQ8, BlockQ8> {
public:
    using SmallColumns::SmallColumns;
    typedef SimpleLanes<WeightsQ8> Lanes;
    static constexpr int OFFSET = 128;
    static constexpr bool HAS_MINS = false;

    static Integers pair_of(const BlockQ8 & a, const BlockQ8 & b) {
        return pair(a.weights, b.weights) ^ eight_bytes((int64_t) 0x8080808080808080);
    }

    // For tiles, which read bytes as they are.
    static constexpr int BLOCK_BYTES = sizeof(BlockQ8);
    const int8_t * bytes_of(int column, int block) const { return columns.find(column, block)->weights; }
    ptrdiff_t stride() const { return (ptrdiff_t) columns.stride; }

    /// The scales of `count` columns, at most sixteen, from `column` on; of the last one also for those beyond.
    Vec scales_of_columns(int column, int count, int block) const {
        const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        const __m512i places = _mm512_min_epi32(numbers, _mm512_set1_epi32(count - 1));
        const __m512i offsets = _mm512_mullo_epi32(places, _mm512_set1_epi32((int) columns.stride));
        // With the two bytes behind each.
        const __m512i found = _mm512_i32gather_epi32(offsets, &columns.find(column, block)->scale, 1);
        return (Vec) _mm512_cvtph_ps(_mm512_cvtepi32_epi16(found));
    }
};

#else

class WeightsQ8 : public WideWeights<BlockQ8, 1> {
public:
    using WideWeights::WideWeights;
    typedef WideSignedSum Sums;
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;
    static constexpr int CHUNK = 1;

    /// A block of eight columns.
    class Super {
    public:
        Super(const WeightsQ8 & weights, int column, int count, int block) : from(weights.at(column, count, block)) {}

        void unpack(int, WideBlock (&blocks)[CHUNK]) const {
            from.transpose(blocks[0].parts, [](const BlockQ8 & block) { return block.weights; });
            blocks[0].scales = from.leading_scales(&BlockQ8::scale);
        }

    private:
        const WideColumns<BlockQ8> from;
    };
};

#endif

} // namespace
