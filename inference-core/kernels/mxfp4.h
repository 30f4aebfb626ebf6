// MXFP4 weights in ggml's interleaved layout, which the experts of gpt-oss have: a weight is a power of two
// times one of sixteen numbers.
#pragma once

#include "tile.h"

#if defined(__AVX512VNNI__)

namespace {

/// One block of each of eight columns: ggml's block_mxfp4x8. `weights` is ordered as in InterleavedQ4.
struct InterleavedMxfp4 {
    uint8_t exponents[GROUP];
    uint8_t weights[16 * GROUP];
};
static_assert(sizeof(InterleavedMxfp4) == 136, "the layout is ggml's");

/// A matrix of them.
class WeightsMxfp4 {
public:
    static constexpr bool IS_WIDE = false;
    static constexpr int OFFSET = 12;
    static constexpr bool HAS_MINS = false;

    WeightsMxfp4(const void * data, int blocks) : data((const InterleavedMxfp4 *) data), blocks(blocks) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const InterleavedMxfp4 & from = data[(ptrdiff_t) column / GROUP * blocks + block];
        const Integers first = _mm512_loadu_si512(from.weights), second = _mm512_loadu_si512(from.weights + 8 * GROUP);
        Unpacked unpacked = {{low_bits(first), low_bits(second), high_bits(first), high_bits(second)}, Vec{}, Vec{}};
        for (Integers & quarter : unpacked.quarters) quarter = _mm512_shuffle_epi8(numbers(), quarter);
        unpacked.scales = powers(_mm_loadl_epi64((const __m128i *) from.exponents));
        return unpacked;
    }

    /// Prefetches a part of the columns after `count` columns.
    void prefetch_later(int column, int count, int block) const {
        prefetch_groups(data, blocks, sizeof(InterleavedMxfp4) / GROUP, column, count, block);
    }

private:
    const InterleavedMxfp4 * data;
    const int blocks;

    /// ggml's kvalues_fp4, twice the numbers of the format, with the offset.
    static Integers numbers() {
        constexpr int N = OFFSET;
        return _mm512_broadcast_i32x4(_mm_setr_epi8(N, N + 1, N + 2, N + 3, N + 4, N + 6, N + 8, N + 12, N, N - 1, N - 2,
                                                    N - 3, N - 4, N - 6, N - 8, N - 12));
    }

    /// Half of 2^(exponent - 127) of each column, two lanes each. The first two are below the normal numbers.
    static Vec powers(__m128i exponents) {
        const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
        const Integers all = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(exponents, twice));
        const Integers normal = _mm512_slli_epi32(_mm512_sub_epi32(all, _mm512_set1_epi32(1)), 23);
        const __mmask16 small = _mm512_cmplt_epu32_mask(all, _mm512_set1_epi32(2));
        return (Vec) _mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x00200000), all);
    }
};

} // namespace

#endif
