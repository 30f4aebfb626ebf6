// What all products of quantized weights have in common, which are unsigned once they are unpacked.
//
// With an offset that makes weights unsigned, such as 8 for Q4_0, and activations a, a block is
// sum((n - 8) a) = sum(n a) - 8 sum(a). The first sum is unsigned times signed bytes, for which x86
// has instructions.
#pragma once

#include <cstring>

#include "activations.h"

namespace {

/// Columns of a group.
constexpr int GROUP = 8;
/// Quarters of a block: each holds eight elements of every column.
constexpr int QUARTERS = 4;
/// Rows that share unpacked weights.
constexpr int TILE_ROWS = 8;
/// Rows that are computed for all columns of a piece before the next ones: their activations stay in the nearest
/// caches.
constexpr int PANEL_ROWS = 64;

/// Rows of a tile: which activations they have, and where their results begin.
struct TileRows {
    int rows[TILE_ROWS];
    float * out[TILE_ROWS];
};

#if defined(__AVX512VNNI__)

typedef __m512i Integers;

inline Integers eight_bytes(int64_t x) { return _mm512_set1_epi64(x); }
inline Integers low_bits(Integers x) { return x & eight_bytes(0x0f0f0f0f0f0f0f0f); }
inline Integers high_bits(Integers x) { return low_bits(_mm512_srli_epi16(x, 4)); }

/// Numbers of the columns of a group.
typedef __m256 EightNumbers;

inline EightNumbers scales_of(__m128i halves) { return _mm256_cvtph_ps(halves); }
inline EightNumbers scales_of(const uint16_t * p) { return scales_of(_mm_loadu_si128((const __m128i *) p)); }

/// Sums of products, from a start on.
struct Sum {
    Integers lanes;

    Sum() = default;
    explicit Sum(int32_t start) : lanes(_mm512_set1_epi32(start)) {}
    void add(Integers weights, Integers bytes) { lanes = _mm512_dpbusd_epi32(lanes, weights, bytes); }
};

#elif defined(__ARM_NEON)

typedef int64x2_t Integers;

inline Integers eight_bytes(int64_t x) { return vdupq_n_s64(x); }
inline Integers low_bits(Integers x) { return x & eight_bytes(0x0f0f0f0f0f0f0f0f); }
inline Integers high_bits(Integers x) { return (Integers) vshrq_n_u8((uint8x16_t) x, 4); }

#else

typedef __m256i Integers;

inline Integers eight_bytes(int64_t x) { return _mm256_set1_epi64x(x); }
inline Integers low_bits(Integers x) { return x & eight_bytes(0x0f0f0f0f0f0f0f0f); }
inline Integers high_bits(Integers x) { return low_bits(_mm256_srli_epi16(x, 4)); }

#endif

/// Sixteen bytes.
#if defined(__ARM_NEON)
typedef Integers Sixteen;
#else
typedef __m128i Sixteen;
#endif
typedef int8_t Bytes __attribute__((vector_size(16)));

inline Sixteen load_sixteen(const void * p) {
    Sixteen x;
    memcpy(&x, p, sizeof(x));
    return x;
}

/// Columns that are handed out together: whole groups.
constexpr int UNIT = 16;

/// Fetches `bytes` from `p` on to the second cache, as two tiles may be more than the nearest one holds.
/// Weights are fetched a tile ahead, in the order of memory: a tile reads several columns or groups side by
/// side, and such streams, which end soon, are not what the prefetchers of a CPU follow.
inline void prefetch(const void * p, size_t bytes) {
    constexpr int SECOND = 2;
    // Otherwise GCC takes this for a function without effects, and drops some calls.
    asm volatile("");
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const char *) p + i, 0, SECOND);
}

/// The same for interleaved groups: a part, for the block `block`, of what follows the tile of `count`
/// columns from `column` on, or the group that it is in. A column has `blocks` blocks of `bytes`.
inline void prefetch_groups(const void * data, int blocks, size_t bytes, int column, int count, int block) {
    const int ahead = count < GROUP ? GROUP : count;
    const size_t skipped = (size_t) (column + ahead) * blocks + (size_t) block * count;
    prefetch((const char *) data + skipped * bytes, count * bytes);
}

#if defined(__AVX512VNNI__)

/// Unpacked weights of one block of a group's columns.
struct Unpacked {
    /// Unsigned. Eight elements of each column, in two lanes.
    Integers quarters[QUARTERS];
    EightNumbers scales;
    /// What is subtracted from each element, for types that have this.
    EightNumbers mins;
};

#endif

} // namespace
