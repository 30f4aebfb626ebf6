// Q8_0 weights as they are in the file: a weight is a scale times a signed byte. Transposed in
// registers, which all rows of a tile share, so that they need no second place in memory.
#pragma once

#include "tile.h"

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
    static constexpr bool HAS_MINS = false;

    /// `stride`: bytes from one column to the next.
    WeightsQ8(const void * data, size_t stride) : data((const char *) data), stride(stride) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const BlockQ8 * from[GROUP];
        uint16_t scales[GROUP];
        for (int c = 0; c < GROUP; c++) {
            from[c] = (const BlockQ8 *) (data + (size_t) (column + c) * stride) + block;
            scales[c] = from[c]->scale;
        }
        // Rows of a 4x4 transposition of eight bytes each, in both halves.
        const __m512i a = pair(from[0], from[2]), b = pair(from[1], from[3]);
        const __m512i c = pair(from[4], from[6]), d = pair(from[5], from[7]);
        const __m512i ab_even = _mm512_unpacklo_epi64(a, b), ab_odd = _mm512_unpackhi_epi64(a, b);
        const __m512i cd_even = _mm512_unpacklo_epi64(c, d), cd_odd = _mm512_unpackhi_epi64(c, d);
        return {{to_unsigned(_mm512_shuffle_i64x2(ab_even, cd_even, 0x88)),
                 to_unsigned(_mm512_shuffle_i64x2(ab_odd, cd_odd, 0x88)),
                 to_unsigned(_mm512_shuffle_i64x2(ab_even, cd_even, 0xDD)),
                 to_unsigned(_mm512_shuffle_i64x2(ab_odd, cd_odd, 0xDD))},
                scales_of(scales), Vec{}};
    }

    /// Prefetches what is read for the columns after a vector's.
    void prefetch_later(int column, int block) const {
        for (int c = 0; c < GROUP; c++) {
            __builtin_prefetch(data + (size_t) (column + GROUP + c) * stride + block * sizeof(BlockQ8));
        }
    }

private:
    const char * data;
    const size_t stride;

    static __m512i pair(const BlockQ8 * low, const BlockQ8 * high) {
        const __m256i half = _mm256_loadu_si256((const __m256i *) high->weights);
        const __m512i whole = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) low->weights));
        return _mm512_inserti64x4(whole, half, 1);
    }

    static __m512i to_unsigned(__m512i x) { return _mm512_xor_si512(x, _mm512_set1_epi8((char) 0x80)); }
};

} // namespace

#endif
