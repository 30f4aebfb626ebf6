// How AVX-512 reads weights: a block of two groups of columns at a time, in two lanes for each column. Lanes are
// added as whole numbers, so that two vectors of sums become one: two columns of either group in turns.
#pragma once

#include "transposed.h"
#include "wide_vectors.h"

#if defined(__AVX512VNNI__)

namespace {

/// The column at each place of this order.
constexpr int IN_TURNS[WIDE_COLUMNS] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};

/// One lane of each column of two groups, in this order.
inline Integers lanes_of(Integers a, Integers b, int lane) {
    const __m512 x = (__m512) a, y = (__m512) b;
    return (Integers) (lane == 0 ? _mm512_shuffle_ps(x, y, 0x88) : _mm512_shuffle_ps(x, y, 0xDD));
}

/// Numbers of two groups in this order.
inline Vec in_turns(EightNumbers a, EightNumbers b) {
    const __m512i places = _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    return (Vec) _mm512_permutexvar_ps(places, _mm512_insertf32x8(_mm512_castps256_ps512(a), b, 1));
}

/// The same in half precision.
inline Vec in_turns(__m128i a, __m128i b) {
    const __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi32(a, b));
    return (Vec) _mm512_cvtph_ps(_mm256_inserti128_si256(low, _mm_unpackhi_epi32(a, b), 1));
}

/// One group after the other again.
inline __m512 in_order(__m512 x) {
    const __m512i places = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    return _mm512_permutexvar_ps(places, x);
}

// Each type has a class `Lanes` that reads BLOCKS blocks of two groups of columns, or of one group twice. `load(part)`
// reads what CHUNK of them share, `unpack(part, to)` the unsigned bytes of one, in two lanes for each column;
// `scales`, `second_scales` and `mins` are those of one, in turns.

/// What a type is like, for those who use its lanes.
template <class Weights>
struct LaneTraits {
    static constexpr int BLOCKS = Weights::BLOCKS, CHUNK = Weights::CHUNK, OFFSET = Weights::OFFSET;
    static constexpr bool HAS_HALVES = Weights::HAS_HALVES, HAS_MINS = Weights::HAS_MINS;
};

/// Blocks of a type that have nothing in common.
template <class Weights>
class SimpleLanes {
public:
    static constexpr int BLOCKS = 1, CHUNK = 1, OFFSET = Weights::OFFSET;
    static constexpr bool HAS_HALVES = false, HAS_MINS = Weights::HAS_MINS;

    SimpleLanes(const Weights & weights, int column, int count, int block)
        : groups{weights.unpack(column, block), weights.unpack(column + (count > GROUP ? GROUP : 0), block)} {}

    void load(int) {}
    void unpack(int, Integers (&to)[2][QUARTERS]) const {
        for (int q = 0; q < QUARTERS; q++) {
            to[0][q] = groups[0].quarters[q];
            to[1][q] = groups[1].quarters[q];
        }
    }
    Vec scales(int) const { return in_turns(groups[0].scales, groups[1].scales); }
    Vec mins(int) const { return in_turns(groups[0].mins, groups[1].mins); }

private:
    const Unpacked groups[2];
};

/// A matrix as it is in the file, of a type with blocks of 32. `Type::pair_of` returns the unsigned bytes of a block of
/// two columns.
template <class Type, class Block>
class SmallColumns {
public:
    static constexpr bool HAS_HALVES = false;

    /// `stride`: bytes from one column to the next.
    SmallColumns(const void * data, size_t stride) : columns(data, stride) {}

    /// A block of a group's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const Block * from[GROUP];
        columns.find(column, block, from);
        Pairs pairs;
        for (int i = 0; i < 4; i++) pairs.columns[i] = Type::pair_of(*from[PAIRED[i][0]], *from[PAIRED[i][1]]);
        Unpacked unpacked;
        pairs.transpose(unpacked.quarters);
        unpacked.scales = scales_of(from, &Block::scale);
        if constexpr (Type::HAS_MINS) unpacked.mins = -scales_of(from, &Block::least);
        return unpacked;
    }

    void prefetch_later(int column, int count, int block) const {
        columns.prefetch_later(column, count, block, sizeof(Block));
    }

protected:
    const Columns<Block> columns;
};

/// A block of each column of two groups that are apart in memory, as they are in a file. If there is only one group, it
/// stands for the other one, too.
template <class Block>
class LaneColumns {
public:
    LaneColumns(const char * data, size_t stride, int column, int count, int block) {
        for (int c = 0; c < WIDE_COLUMNS; c++) {
            const int at = column + (c < count ? c : c - GROUP);
            blocks[c] = (const Block *) (data + (size_t) at * stride) + block;
        }
    }

    const Block & operator[](int column) const { return *blocks[column]; }

    /// 32 bytes of each column: `bytes` returns where they are in a block.
    template <class Bytes>
    ALWAYS_INLINE void transpose(Integers (&to)[2][QUARTERS], Bytes bytes) const {
#pragma GCC unroll 2
        for (int g = 0; g < 2; g++) {
            const Block * const * group = blocks + g * GROUP;
            Pairs pairs;
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) pairs.columns[i] = pair(bytes(*group[PAIRED[i][0]]), bytes(*group[PAIRED[i][1]]));
            pairs.transpose(to[g]);
        }
    }

    /// Four bytes of each column, in turns.
    template <class Bytes>
    Integers words(Bytes bytes) const {
        const auto at = [&](int i) {
            int32_t word;
            memcpy(&word, bytes(*blocks[IN_TURNS[i]]), sizeof(word));
            return _mm_cvtsi32_si128(word);
        };
        const auto four = [&](int i) {
            return _mm_unpacklo_epi64(_mm_unpacklo_epi32(at(i), at(i + 1)), _mm_unpacklo_epi32(at(i + 2), at(i + 3)));
        };
        const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(four(0)), four(4), 1);
        const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(four(8)), four(12), 1);
        return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }

    /// A number in half precision of each column, in turns.
    Vec scales(uint16_t Block::* scale) const {
        alignas(32) uint16_t halves[WIDE_COLUMNS];
        for (int i = 0; i < WIDE_COLUMNS; i++) halves[i] = blocks[IN_TURNS[i]]->*scale;
        return (Vec) _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) halves));
    }

    /// The same, if it is not the last of its block.
    Vec leading_scales(uint16_t Block::* scale) const {
        return in_turns(halves_of(blocks, scale), halves_of(blocks + GROUP, scale));
    }

private:
    const Block * blocks[WIDE_COLUMNS];
};

} // namespace

#endif
