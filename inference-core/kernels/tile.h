// Products of a few rows and a few columns, in registers, for weights that are unsigned once they are
// unpacked.
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
/// Columns of a vector: each has two lanes, of four elements each.
constexpr int LANE_COLUMNS = 8;
/// Vectors of columns that are computed together: as many as the registers hold.
constexpr int TILE_VECS = 2;

inline Integers eight_bytes(int64_t x) { return _mm512_set1_epi64(x); }
inline Integers low_bits(Integers x) { return x & eight_bytes(0x0f0f0f0f0f0f0f0f); }
inline Integers high_bits(Integers x) { return low_bits(_mm512_srli_epi16(x, 4)); }

/// The scales of a vector's columns, two lanes each.
inline Vec scales_of(__m128i halves) {
    const __m256i twice = _mm256_setr_epi16(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return (Vec) _mm512_cvtph_ps(_mm256_permutexvar_epi16(twice, _mm256_castsi128_si256(halves)));
}

inline Vec scales_of(const uint16_t * p) { return scales_of(_mm_loadu_si128((const __m128i *) p)); }

/// The bytes of a vector's columns as whole numbers, two lanes each.
inline Integers twice(const uint8_t * p) {
    const __m128i order = _mm_setr_epi8(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_cvtepu8_epi32(_mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *) p), order));
}

/// Sums of products, from a start on.
struct Sum {
    Integers lanes;

    Sum() = default;
    explicit Sum(int32_t start) : lanes(_mm512_set1_epi32(start)) {}
    void add(Integers weights, Integers bytes) { lanes = _mm512_dpbusd_epi32(lanes, weights, bytes); }
    Vec get() const { return (Vec) _mm512_cvtepi32_ps(lanes); }
};

/// Adds the two lanes of each column.
inline void store_columns(Vec x, float * out) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512 sums = _mm512_add_ps((__m512) x, _mm512_permute_ps((__m512) x, 0xB1));
    _mm256_storeu_ps(out, _mm512_castps512_ps256(_mm512_permutexvar_ps(even, sums)));
}

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

/// Up to this many rows, reading the weights takes longer than computing: they are read as one stream.
constexpr int FEW_ROWS = 2;

/// Fetches `bytes` from `p` on to the second cache, as two tiles may be more than the nearest one holds.
/// Weights are fetched a tile ahead, in the order of memory: a tile reads several columns or groups side by
/// side, and such streams, which end soon, are not what the prefetchers of a CPU follow.
inline void prefetch(const void * p, size_t bytes) {
    constexpr int SECOND = 2;
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

/// Unpacked weights of one block of a vector's columns.
struct Unpacked {
    /// Unsigned. Eight elements of each column.
    Integers quarters[QUARTERS];
    /// Two lanes for each column.
    Vec scales;
};

/// Sums of the products of a block. `of_bytes` is the sum of its activations.
template <int OFFSET, int VECS>
inline void add_quarters(Sum (&sums)[VECS], const Unpacked (&unpacked)[VECS], const int8_t * bytes, int32_t of_bytes) {
    // Half of the correction in each of a column's two lanes.
    const Sum start(-OFFSET / 2 * of_bytes);
    for (Sum & sum : sums) sum = start;
    for (int q = 0; q < QUARTERS; q++) {
        int64_t eight;
        memcpy(&eight, bytes + q * 8, sizeof(eight));
        for (int v = 0; v < VECS; v++) sums[v].add(unpacked[v].quarters[q], eight_bytes(eight));
    }
}

/// ROWS rows times VECS vectors of columns, from `column` on. `is_first`: the weights come from memory.
template <int ROWS, int VECS, class Weights>
void multiply_tile(const Weights & weights, int column, const Activations & activations, const TileRows & tile,
                   bool is_first) {
    static_assert(!Weights::HAS_MINS, "types with mins have one lane for each column");
    Vec totals[ROWS][VECS];
    for (auto & total : totals) {
        for (Vec & vec : total) vec = Vec{};
    }
    for (int b = 0; b < activations.blocks; b++) {
        Unpacked unpacked[VECS];
        for (int v = 0; v < VECS; v++) unpacked[v] = weights.unpack(column + v * LANE_COLUMNS, b);
        if (is_first) weights.prefetch_later(column, VECS * LANE_COLUMNS, b);
        for (int r = 0; r < ROWS; r++) {
            const int row = tile.rows[r];
            const int8_t * bytes = activations.row(row) + b * BLOCK;
            const float scale = activations.row_scales(row)[b];
            Sum sums[VECS];
            add_quarters<Weights::OFFSET>(sums, unpacked, bytes, activations.row_sums(row)[b].both());
            for (int v = 0; v < VECS; v++) totals[r][v] += sums[v].get() * (unpacked[v].scales * scale);
        }
    }
    for (int r = 0; r < ROWS; r++) {
        for (int v = 0; v < VECS; v++) store_columns(totals[r][v], tile.out[r] + column + v * LANE_COLUMNS);
    }
}

/// ROWS rows times the columns `first..end`, whole groups.
template <int ROWS, class Weights>
void multiply_columns(const Weights & weights, int first, int end, const Activations & activations,
                      const TileRows & tile, bool is_first) {
    constexpr int VECS = ROWS <= FEW_ROWS ? 1 : TILE_VECS;
    int column = first;
    for (; column + VECS * LANE_COLUMNS <= end; column += VECS * LANE_COLUMNS) {
        multiply_tile<ROWS, VECS>(weights, column, activations, tile, is_first);
    }
    for (; column < end; column += LANE_COLUMNS) {
        multiply_tile<ROWS, 1>(weights, column, activations, tile, is_first);
    }
}

#endif

} // namespace
