// Columns that are apart in memory, as they are in a file, brought together in registers.
#pragma once

#include "tile.h"

namespace {

/// Columns of blocks, one after the other.
template <class Block>
class Columns {
public:
    Columns(const void * data, size_t stride) : data((const char *) data), stride(stride) {}

    /// Sets `blocks` to the blocks of a vector's columns, from `column` on.
    void find(int column, int block, const Block * (&blocks)[GROUP]) const {
        for (int c = 0; c < GROUP; c++) {
            blocks[c] = find(column + c, block);
        }
    }

    /// The block `block` of a column.
    const Block * find(int column, int block) const {
        return (const Block *) (data + (size_t) column * stride) + block;
    }

    /// Prefetches a part of the columns after `count` columns, of `bytes` for each block of 32.
    void prefetch_later(int column, int count, int block, size_t bytes) const {
        const size_t part = count * bytes;
        prefetch(data + (size_t) (column + count) * stride + block * part, part);
    }

    const char * const data;
    /// Bytes from one column to the next.
    const size_t stride;
};

#if !defined(__ARM_NEON)

/// A number in half precision of each of eight columns, which is not the last of its block. Stored one by one
/// and loaded together, they would have to reach memory in between.
template <class Block>
inline __m128i halves_of(const Block * const * blocks, uint16_t Block::* scale) {
    // With the two bytes behind it: such loads need no instruction that moves a register to a vector.
    const auto at = [&](int c) {
        int32_t bytes;
        memcpy(&bytes, &(blocks[c]->*scale), sizeof(bytes));
        return _mm_cvtsi32_si128(bytes);
    };
    const __m128i ab = _mm_unpacklo_epi16(at(0), at(1)), cd = _mm_unpacklo_epi16(at(2), at(3));
    const __m128i ef = _mm_unpacklo_epi16(at(4), at(5)), gh = _mm_unpacklo_epi16(at(6), at(7));
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(ab, cd), _mm_unpacklo_epi32(ef, gh));
}

#endif

#if defined(__AVX512VNNI__)

/// Weights of eight columns, one byte each: an element's bytes of two columns in the halves of a vector.
struct Pairs {
    /// Columns 0 and 2, 1 and 3, 4 and 6, 5 and 7.
    Integers columns[4];

    /// Transposes eight bytes at a time.
    void transpose(Integers (&quarters)[QUARTERS]) const {
        const Integers low_even = _mm512_unpacklo_epi64(columns[0], columns[1]);
        const Integers low_odd = _mm512_unpackhi_epi64(columns[0], columns[1]);
        const Integers high_even = _mm512_unpacklo_epi64(columns[2], columns[3]);
        const Integers high_odd = _mm512_unpackhi_epi64(columns[2], columns[3]);
        quarters[0] = _mm512_shuffle_i64x2(low_even, high_even, 0x88);
        quarters[1] = _mm512_shuffle_i64x2(low_odd, high_odd, 0x88);
        quarters[2] = _mm512_shuffle_i64x2(low_even, high_even, 0xDD);
        quarters[3] = _mm512_shuffle_i64x2(low_odd, high_odd, 0xDD);
    }
};

/// 32 bytes of each of two columns.
inline Integers pair(const void * low, const void * high) {
    const Integers whole = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) low));
    return _mm512_inserti64x4(whole, _mm256_loadu_si256((const __m256i *) high), 1);
}

/// 16 bytes of each of two columns: the low four bits of each byte, then the high ones.
inline Integers pair_of_nibbles(const void * low, const void * high) {
    const __m256i a = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) low));
    const __m256i b = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) high));
    const Integers both = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
    return low_bits(_mm512_mask_srli_epi16(both, 0xFF00FF00, both, 4));
}

/// The columns of Pairs.
constexpr int PAIRED[4][2] = {{0, 2}, {1, 3}, {4, 6}, {5, 7}};

/// The same in single precision.
template <class Block>
inline EightNumbers scales_of(const Block * const (&blocks)[GROUP], uint16_t Block::* scale) {
    return scales_of(halves_of(blocks, scale));
}

#endif

} // namespace
