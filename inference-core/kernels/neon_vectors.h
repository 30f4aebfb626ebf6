// Vectors of four columns for ARM, as those of wide_vectors.h.
//
// With instructions that multiply matrices (i8mm), a vector has two columns with eight elements each: a part has
// eight elements of four columns in two vectors. Without, it has four columns with four elements each.
#pragma once

#include "tile.h"

#if defined(__ARM_NEON)

namespace {

constexpr int WIDE_COLUMNS = 4;

/// Weights have signs here, whatever x86 needs, so no sum is in danger of being too large.
template <int LARGEST>
struct WideSum {};
typedef WideSum<INT8_MAX> WideSignedSum;

inline Integers low_words(Integers a, Integers b) { return (Integers) vzip1q_s32((int32x4_t) a, (int32x4_t) b); }
inline Integers high_words(Integers a, Integers b) { return (Integers) vzip2q_s32((int32x4_t) a, (int32x4_t) b); }
inline Integers low_pairs(Integers a, Integers b) { return vzip1q_s64(a, b); }
inline Integers high_pairs(Integers a, Integers b) { return vzip2q_s64(a, b); }
inline Sixteen low_bytes(Sixteen a, Sixteen b) { return (Sixteen) vzip1q_s8((int8x16_t) a, (int8x16_t) b); }
inline Sixteen high_bytes(Sixteen a, Sixteen b) { return (Sixteen) vzip2q_s8((int8x16_t) a, (int8x16_t) b); }

#if defined(__ARM_FEATURE_MATMUL_INT8)

/// Of two columns each: the vector `lane` of eight elements of all four.
inline Integers lanes_of(Integers a, Integers b, int lane) { return lane == 0 ? a : b; }

/// Sixteen bytes of each column as four vectors.
inline void arrange(const Integers (&columns)[4], Integers * parts) {
    parts[0] = low_pairs(columns[0], columns[1]);
    parts[1] = low_pairs(columns[2], columns[3]);
    parts[2] = high_pairs(columns[0], columns[1]);
    parts[3] = high_pairs(columns[2], columns[3]);
}

/// For each element of the vector `part` of a block, which of 16 bytes has its bit if each column has four, and
/// which bit it is.
inline Integers places_of_bits(int part) {
    const Bytes columns = {0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4};
    return (Integers) (columns + (int8_t) (part % 2 * 8 + part / 2));
}
inline Integers bits_of(int) { return eight_bytes((int64_t) 0x8040201008040201); }

#else

inline Integers lanes_of(Integers a, Integers b, int lane) {
    const int32x4_t x = (int32x4_t) a, y = (int32x4_t) b;
    return (Integers) (lane == 0 ? vuzp1q_s32(x, y) : vuzp2q_s32(x, y));
}

/// A vector has the columns of one.
template <class Get>
inline Integers joined(Get get) {
    return get(0);
}

inline Integers places_of_bits(int part) {
    const Bytes columns = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    return (Integers) (columns + (int8_t) (part / 2));
}
inline Integers bits_of(int part) { return eight_bytes(part % 2 == 0 ? 0x0804020108040201 : (int64_t) 0x8040201080402010); }

#endif

inline Integers sixteens(Integers x, Integers bits) {
    return (Integers) vtstq_u8((uint8x16_t) x, (uint8x16_t) bits) & eight_bytes(0x1010101010101010);
}

inline Vec numbers_of(Integers x) { return (Vec) vcvtq_f32_s32((int32x4_t) x); }

inline Vec numbers_of(const int8_t * bytes) {
    int32_t four;
    memcpy(&four, bytes, sizeof(four));
    const int16x8_t words = vmovl_s8((int8x8_t) vdup_n_s32(four));
    return numbers_of((Integers) vmovl_s16(vget_low_s16(words)));
}

/// Numbers of 8 bits without signs, one for each column.
inline Integers whole_numbers(const uint8_t * bytes) {
    uint32_t four;
    memcpy(&four, bytes, sizeof(four));
    const uint16x8_t words = vmovl_u8((uint8x8_t) vdup_n_u32(four));
    return (Integers) vmovl_u16(vget_low_u16(words));
}

inline Vec wide_scales_of(const uint16_t * halves) {
    return (Vec) vcvt_f32_f16((float16x4_t) vld1_u16(halves));
}

inline Integers moved(Integers x, Sixteen places) { return (Integers) vqtbl1q_u8((uint8x16_t) x, (uint8x16_t) places); }
inline Integers chosen(Sixteen from, Integers places) { return moved(from, places); }

/// The same four bits of two vectors as numbers with signs, times 16.
inline Integers low_signed(Integers x) { return (Integers) vshlq_n_u8((uint8x16_t) x, 4); }
inline Integers high_signed(Integers x) { return x & eight_bytes((int64_t) 0xf0f0f0f0f0f0f0f0); }

/// There are always four columns.
inline void store_wide(Vec x, float * out, int) { at(out) = x; }

} // namespace

#endif
