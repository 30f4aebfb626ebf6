// Activations, quantized to 8 bits in blocks of 32: as ggml's Q8_0, with a scale that is not rounded
// to half precision, and with the sums of both halves of each block.
//
// Row by row, or packed: for tiles sixteen rows together, for matrix products of ARM two.
#pragma once

#if defined(__ARM_NEON)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace {

/// Elements of a block.
constexpr int BLOCK = 32;

#if defined(__ARM_NEON)
struct BlockBytes {
    int8x16_t halves[2];
};
#else
typedef __m256i BlockBytes;
#endif

/// Sums of the first and of the second half of a block.
struct HalfSums {
    int32_t first, second;

    int32_t both() const { return first + second; }
};

/// What unsigned weights have more than those that they stand for.
struct Offset {
    int value;
    /// True if the halves of a block have scales of their own.
    bool has_halves;

    /// What the sums of the products of a block begin with: in `first` for a whole block.
    HalfSums start(const HalfSums & sums) const {
        if (has_halves) return {-value * sums.first, -value * sums.second};
        return {-value * sums.both(), 0};
    }
};

/// The largest of a block's numbers, without their signs. What is no number is left out.
inline float largest_size(const float * x) {
#if defined(__ARM_NEON)
    float32x4_t peaks = vdupq_n_f32(0.0f);
    for (int i = 0; i < BLOCK; i += WIDTH) peaks = vmaxnmq_f32(peaks, vabsq_f32(vld1q_f32(x + i)));
    return vmaxvq_f32(peaks);
#else
    Vec peaks = Vec{};
    for (int i = 0; i < BLOCK; i += WIDTH) {
        const Vec v = at(x + i);
        const Vec size = v < 0.0f ? -v : v;
        peaks = size > peaks ? size : peaks;
    }
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512) peaks);
#else
    const __m256 all = (__m256) peaks;
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#endif
#endif
}

/// A block's numbers times `factor`, rounded to bytes, which they fit into.
inline BlockBytes rounded_bytes(const float * x, float factor) {
#if defined(__AVX512F__)
    const auto half = [&](const float * from) {
        return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512) (at(from) * factor)));
    };
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half(x)), half(x + WIDTH), 1);
#elif defined(__ARM_NEON)
    const auto four = [&](int i) { return vqmovn_s32(vcvtnq_s32_f32((float32x4_t) (at(x + i * WIDTH) * factor))); };
    const auto eight = [&](int i) { return vqmovn_s16(vcombine_s16(four(i), four(i + 1))); };
    return {{vcombine_s8(eight(0), eight(2)), vcombine_s8(eight(4), eight(6))}};
#else
    const auto eight = [&](int i) { return _mm256_cvtps_epi32((__m256) (at(x + i * WIDTH) * factor)); };
    const __m256i first = _mm256_packs_epi32(eight(0), eight(1)), second = _mm256_packs_epi32(eight(2), eight(3));
    // Packing works in both halves of a vector apart.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
#endif
}

/// The sums of both halves of 32 bytes.
inline HalfSums sums_of(BlockBytes bytes) {
#if defined(__ARM_NEON)
    return {vaddlvq_s8(bytes.halves[0]), vaddlvq_s8(bytes.halves[1])};
#else
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256i eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32(fours, 0x4E));
    const __m256i halves = _mm256_add_epi32(eights, _mm256_shuffle_epi32(eights, 0xB1));
    return {_mm256_extract_epi32(halves, 0), _mm256_extract_epi32(halves, 4)};
#endif
}

/// Rows that are packed together.
constexpr int PACKED = 16;

/// Where the bytes of rows are.
enum class Packing {
    /// Row by row.
    None,
    /// Block by block, and in a block row by row: tiles multiply them by weights.
    Rows,
    /// Block by block, and in a block four bytes of each row at a time: tiles multiply weights by them.
    Fours,
    /// Two rows together, eight bytes of each at a time: instructions that multiply matrices of 2 x 8 read them.
    Pairs,
};

/// How rows are packed that are not packed for tiles.
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr Packing BY_ROW = Packing::Pairs;
#else
constexpr Packing BY_ROW = Packing::None;
#endif
/// Bytes from one block of such a row to the next, and how many of them follow each other.
constexpr int BLOCK_STEP = BY_ROW == Packing::Pairs ? 2 * BLOCK : BLOCK;
constexpr int PAIR_BYTES = 8;

/// How many rows are packed together.
constexpr int together(Packing packing) {
    return packing == Packing::None ? 1 : packing == Packing::Pairs ? 2 : PACKED;
}

/// Sixteen packed rows, from some block on.
struct PackedRows {
    const int8_t * bytes;
    const float * scales;
    const float * scaled_sums;
    const HalfSums * starts;

    /// The same rows, a block later.
    PackedRows next() const { return {bytes + PACKED * BLOCK, scales + PACKED, scaled_sums + PACKED, starts + PACKED}; }

    /// Those of them from `row` on.
    PackedRows from(int row) const { return {bytes + row * BLOCK, scales + row, scaled_sums + row, starts + row}; }
};

/// All rows of a product, in memory of the caller's.
class Activations {
public:
    /// `offset`: of the weights that they are multiplied with.
    Activations(void * memory, int rows, int depth, Offset offset, Packing packing = BY_ROW)
        : depth(depth), blocks(depth / BLOCK), packing(packing), offset(offset), values(aligned(memory)),
          scales((float *) (values + (ptrdiff_t) space(rows, packing) * depth)),
          starts((HalfSums *) (scales + (ptrdiff_t) space(rows, packing) * blocks)),
          scaled_sums((float *) (starts + (ptrdiff_t) space(rows, packing) * blocks)) {}

    /// Bytes of memory that they take.
    static size_t bytes(int rows, int depth, Packing packing = BY_ROW) {
        const size_t of_block = BLOCK + 2 * sizeof(float) + sizeof(HalfSums);
        return LINE + (size_t) space(rows, packing) * (depth / BLOCK) * of_block;
    }

    /// Elements, and blocks, of a row.
    const int depth, blocks;
    const Packing packing;
    const Offset offset;

    // Of rows that are not packed for tiles.
    const int8_t * row(int row) const { return values + start(row); }
    const float * row_scales(int row) const { return scales + (ptrdiff_t) row * blocks; }
    const HalfSums * row_starts(int row) const { return starts + (ptrdiff_t) row * blocks; }
    /// The sum of each block times its scale.
    const float * row_scaled_sums(int row) const { return scaled_sums + (ptrdiff_t) row * blocks; }

    /// Packed rows from `row` on, a multiple of 16.
    PackedRows packed_rows(int row, int block) const {
        const ptrdiff_t at = place(row, block);
        return {values + at * BLOCK, scales + at, scaled_sums + at, starts + at};
    }

    /// Copies a row of others, which are not packed, to a place of these.
    void copy(const Activations & from, int row, int to) {
        for (int b = 0; b < blocks; b++) {
            const ptrdiff_t source = from.place(row, b), at = place(to, b);
            BlockBytes bytes;
            memcpy(&bytes, from.values + source * BLOCK, sizeof(bytes));
            write(bytes, to, b);
            scales[at] = from.scales[source];
            starts[at] = from.starts[source];
            scaled_sums[at] = from.scaled_sums[source];
        }
    }

    /// Clears blocks of a row that is not there: no result depends on it, but numbers close to 0 are slow.
    void clear(int row, int begin, int end) {
        for (int b = begin; b < end; b++) scales[place(row, b)] = scaled_sums[place(row, b)] = 0.0f;
    }

    /// Clears what is beyond `rows` packed rows.
    void clear_after(int rows) {
        for (int row = rows; row < space(rows, packing); row++) clear(row, 0, blocks);
    }

    void quantize(const float * x, int row, int block) {
        const float scale = largest_size(x) / 127.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        const ptrdiff_t at_place = place(row, block);
        const BlockBytes bytes = rounded_bytes(x, inverse);
        write(bytes, row, block);
        const HalfSums both = sums_of(bytes);
        scales[at_place] = scale;
        starts[at_place] = offset.start(both);
        scaled_sums[at_place] = scale * both.both();
    }

private:
    int8_t * values;
    float * scales;
    HalfSums * starts;
    float * scaled_sums;

    /// Bytes of a line of a cache.
    static constexpr size_t LINE = 64;

    static int8_t * aligned(void * memory) {
        return (int8_t *) (((uintptr_t) memory + LINE - 1) / LINE * LINE);
    }

    /// Where the bytes of a row begin that is not packed for tiles.
    ptrdiff_t start(int row) const {
        return BY_ROW == Packing::Pairs ? (ptrdiff_t) (row & ~1) * depth + (row & 1) * PAIR_BYTES : (ptrdiff_t) row * depth;
    }

    bool is_for_tiles() const { return together(packing) == PACKED; }

    /// Rows that there is memory for.
    static int space(int rows, Packing packing) {
        const int step = together(packing);
        return (rows + step - 1) / step * step;
    }

    void write(BlockBytes bytes, int row, int block) {
        if (packing == Packing::Fours) {
            return scatter<4>(bytes, values + place(row - row % PACKED, block) * BLOCK + row % PACKED * 4, PACKED);
        }
        if (packing == Packing::Pairs) {
            return scatter<PAIR_BYTES>(bytes, values + start(row) + (ptrdiff_t) block * BLOCK_STEP, 2);
        }
        memcpy(values + place(row, block) * BLOCK, &bytes, sizeof(bytes));
    }

    /// Writes SIZE bytes at a time, with room for those of other rows.
    template <int SIZE>
    static void scatter(const BlockBytes & bytes, int8_t * to, int rows) {
        for (int i = 0; i < BLOCK; i += SIZE, to += SIZE * rows) memcpy(to, (const char *) &bytes + i, SIZE);
    }

    ptrdiff_t place(int row, int block) const {
        if (!is_for_tiles()) return (ptrdiff_t) row * blocks + block;
        return ((ptrdiff_t) (row / PACKED) * blocks + block) * PACKED + row % PACKED;
    }
};

} // namespace
