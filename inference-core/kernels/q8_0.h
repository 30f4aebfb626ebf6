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
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;

    /// `stride`: bytes from one column to the next.
    WeightsQ8(const void * data, size_t stride) : data((const char *) data), stride(stride) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const BlockQ8 * from[GROUP];
        for (int c = 0; c < GROUP; c++) {
            from[c] = (const BlockQ8 *) (data + (size_t) (column + c) * stride) + block;
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
                scales_of(all_scales(from)), Vec{}, Vec{}};
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

    /// The scales of eight blocks, next to each other. Stored one by one and loaded together, they would
    /// have to reach memory in between.
    static __m128i all_scales(const BlockQ8 * const (&from)[GROUP]) {
        const auto first = [&](int c) {
            int32_t bytes;
            memcpy(&bytes, from[c], sizeof(bytes));
            return _mm_cvtsi32_si128(bytes);
        };
        const __m128i ab = _mm_unpacklo_epi16(first(0), first(1)), cd = _mm_unpacklo_epi16(first(2), first(3));
        const __m128i ef = _mm_unpacklo_epi16(first(4), first(5)), gh = _mm_unpacklo_epi16(first(6), first(7));
        return _mm_unpacklo_epi64(_mm_unpacklo_epi32(ab, cd), _mm_unpacklo_epi32(ef, gh));
    }

    static __m512i pair(const BlockQ8 * low, const BlockQ8 * high) {
        const __m256i half = _mm256_loadu_si256((const __m256i *) high->weights);
        const __m512i whole = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) low->weights));
        return _mm512_inserti64x4(whole, half, 1);
    }

    static __m512i to_unsigned(__m512i x) { return _mm512_xor_si512(x, _mm512_set1_epi8((char) 0x80)); }
};

} // namespace

#endif
