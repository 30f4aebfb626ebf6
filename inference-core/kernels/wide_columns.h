// Columns that are apart in memory, as they are in a file, brought together in registers: eight with AVX2, four on
// ARM. With AVX-512, it is two groups of eight: lanes.h.
#pragma once

#include "lanes.h"
#include "super_tile.h"
#include "transposed.h"

namespace {

#if !defined(__AVX512VNNI__)

/// A block of each of the columns. If there are fewer columns, the last one stands for the others.
template <class Block>
class WideColumns {
public:
    WideColumns(const char * data, size_t stride, int column, int count, int block) {
        for (int c = 0; c < WIDE_COLUMNS; c++) {
            const int at = column + (WIDE_COLUMNS <= GROUP || c < count ? c : count - 1);
            blocks[c] = (const Block *) (data + (size_t) at * stride) + block;
        }
    }

    const Block & operator[](int column) const { return *blocks[column]; }

    /// 32 bytes of each column, four to a lane: `bytes` tells where they are in a block.
    template <class Bytes>
    void transpose(Integers (&parts)[2 * QUARTERS], Bytes bytes) const {
        for (int half = 0; half < 2; half++) {
            const auto at = [&](const Block & block) { return (const char *) bytes(block) + half * 16; };
            transpose_half(parts + half * QUARTERS, at);
        }
    }

    /// The same with 16 bytes of each.
    template <class Bytes>
    void transpose_half(Integers * parts, Bytes bytes) const {
#if defined(__ARM_FEATURE_MATMUL_INT8)
        Integers columns[WIDE_COLUMNS];
        for (int c = 0; c < WIDE_COLUMNS; c++) columns[c] = load_integers(bytes(*blocks[c]));
        arrange(columns, parts);
#else
        Integers fourths[4];
        // Every fourth column.
        for (int i = 0; i < 4; i++) {
            fourths[i] = joined([&](int n) { return load_sixteen(bytes(*blocks[i + 4 * n])); });
        }
        const Integers a = low_words(fourths[0], fourths[1]), b = high_words(fourths[0], fourths[1]);
        const Integers c = low_words(fourths[2], fourths[3]), d = high_words(fourths[2], fourths[3]);
        parts[0] = low_pairs(a, c);
        parts[1] = high_pairs(a, c);
        parts[2] = low_pairs(b, d);
        parts[3] = high_pairs(b, d);
#endif
    }

#if defined(__ARM_NEON)

    Vec leading_scales(uint16_t Block::* scale) const { return scales(scale); }

    /// Four bytes of each column.
    template <class Bytes>
    Integers words(Bytes bytes) const {
        int32_t words[WIDE_COLUMNS];
        for (int c = 0; c < WIDE_COLUMNS; c++) memcpy(words + c, bytes(*blocks[c]), sizeof(*words));
        int32x4_t all = vdupq_n_s32(words[0]);
        all = vsetq_lane_s32(words[1], all, 1);
        all = vsetq_lane_s32(words[2], all, 2);
        return (Integers) vsetq_lane_s32(words[3], all, 3);
    }

    /// A number in half precision of each column.
    Vec scales(uint16_t Block::* scale) const {
        uint16x4_t halves = vdup_n_u16(blocks[0]->*scale);
        halves = vset_lane_u16(blocks[1]->*scale, halves, 1);
        halves = vset_lane_u16(blocks[2]->*scale, halves, 2);
        halves = vset_lane_u16(blocks[3]->*scale, halves, 3);
        return (Vec) vcvt_f32_f16((float16x4_t) halves);
    }

#else

    /// A number in half precision of each column, which is not the last of its block.
    Vec leading_scales(uint16_t Block::* scale) const {
        return wide_scales_of(halves_of(blocks, scale), halves_of(blocks + WIDE_COLUMNS - GROUP, scale));
    }

    /// Four bytes of each column.
    template <class Bytes>
    Integers words(Bytes bytes) const {
        return joined([&](int n) {
            const auto at = [&](int i) {
                int32_t word;
                memcpy(&word, bytes(*blocks[4 * n + i]), sizeof(word));
                return _mm_cvtsi32_si128(word);
            };
            return _mm_unpacklo_epi64(_mm_unpacklo_epi32(at(0), at(1)), _mm_unpacklo_epi32(at(2), at(3)));
        });
    }

    /// A number in half precision of each column.
    Vec scales(uint16_t Block::* scale) const {
        alignas(32) uint16_t halves[WIDE_COLUMNS];
        for (int c = 0; c < WIDE_COLUMNS; c++) halves[c] = blocks[c]->*scale;
        return wide_scales_of(halves);
    }

#endif

private:
    const Block * blocks[WIDE_COLUMNS];
};

#endif

/// A matrix as it is in the file, of a type with blocks of 256 unless `OF_32` is 1.
template <class Block, int OF_32 = SUPER_BLOCKS>
class WideWeights {
public:
    /// Parts of 32 elements of a block.
    static constexpr int BLOCKS = OF_32;

    /// `stride`: bytes from one column to the next.
    WideWeights(const void * data, size_t stride) : data((const char *) data), stride(stride), columns(data, stride) {}

    /// A block of `count` columns, from `column` on.
#if defined(__AVX512VNNI__)
    LaneColumns<Block> at(int column, int count, int block) const { return {data, stride, column, count, block}; }
#else
    WideColumns<Block> at(int column, int count, int block) const { return {data, stride, column, count, block}; }
#endif

    void prefetch_later(int column, int count, int block) const {
        columns.prefetch_later(column, count, block, sizeof(Block) / BLOCKS);
    }

private:
    const char * data;
    const size_t stride;
    const Columns<Block> columns;
};

} // namespace
