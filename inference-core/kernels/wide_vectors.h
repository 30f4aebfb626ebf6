// Vectors of columns with one lane each.
#pragma once

#include "neon_vectors.h"
#include "tile.h"

namespace {

typedef uint32_t Words __attribute__((vector_size(sizeof(Integers))));
typedef uint16_t Shorts __attribute__((vector_size(sizeof(Integers))));

/// Those bits of each lane, from `from` on, that `mask` has.
inline Integers bits_at(Integers x, int from, uint32_t mask) { return (Integers) ((Words) x >> from & mask); }

/// Moves the bit `from` of each byte to `to`. Others are beside it.
inline Integers bit_moved(Integers x, int from, int to) {
    return from < to ? (Integers) ((Shorts) x << (to - from)) : (Integers) ((Shorts) x >> (from - to));
}

/// Bits of each byte, and others beside them, towards the low ones.
inline Integers bits_down(Integers x, int count) { return bit_moved(x, count, 0); }
inline Integers bits_up(Integers x, int count) { return bit_moved(x, 0, count); }

inline Integers load_integers(const void * p) {
    Integers x;
    memcpy(&x, p, sizeof(x));
    return x;
}

/// Numbers of six bits from -32 on: the low four of each, and the high two.
inline Integers six_bits_less_32(Integers low, Integers high) {
    return (Integers) ((Ints) low + ((Ints) high << 4) - 32);
}

#if defined(__AVX512VNNI__)

/// Columns that are computed together.
constexpr int WIDE_COLUMNS = 16;

inline Integers four_bytes(int32_t x) { return _mm512_set1_epi32(x); }

/// Whole numbers of 32 bits.
inline Vec numbers_of(Integers x) { return (Vec) _mm512_cvtepi32_ps(x); }

/// Numbers of 8 bits, one for each column.
inline Vec numbers_of(const int8_t * bytes) {
    return numbers_of(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) bytes)));
}

/// For each byte, one of sixteen.
inline Integers chosen(Sixteen from, Integers places) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(from), places);
}

/// Stores the first `count` columns.
inline void store_wide(Vec x, float * out, int count) {
    _mm512_mask_storeu_ps(out, (__mmask16) ((1u << count) - 1), (__m512) x);
}

#elif defined(__AVX2__)

constexpr int WIDE_COLUMNS = 8;

/// Keeps sums in the order in which they are written. Otherwise GCC first computes all products and then adds
/// them as a tree, which takes more registers than there are: most products were stored and read again.
inline void keep_order(Integers & sum) { asm("" : "+x"(sum)); }

/// Sums of products of unsigned weights of up to LARGEST. Pairs of products are added in 16 bits until they
/// might not fit.
template <int LARGEST>
struct WideSum {
    static constexpr int STEP = LARGEST <= 15 ? 8 : LARGEST <= 31 ? 4 : 2;
    static_assert(STEP * 2 * 127 * LARGEST <= INT16_MAX, "pairs would overflow");

    Integers lanes, pairs;

    WideSum() = default;
    explicit WideSum(int32_t start) : lanes(_mm256_set1_epi32(start)) {}
    /// The first products of a step.
    void begin(Integers weights, Integers bytes) {
        pairs = _mm256_maddubs_epi16(weights, bytes);
        keep_order(pairs);
    }
    void add(Integers weights, Integers bytes) {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(weights, bytes));
        keep_order(pairs);
    }
    void settle() {
        lanes = _mm256_add_epi32(lanes, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    Vec get() const { return (Vec) _mm256_cvtepi32_ps(lanes); }
};

/// The same for weights that have signs: only one pair of products of 8 bits is sure to fit into 16 bits.
struct WideSignedSum {
    static constexpr int STEP = 8;

    Integers lanes;

    WideSignedSum() = default;
    explicit WideSignedSum(int32_t start) : lanes(_mm256_set1_epi32(start)) {}
    void begin(Integers weights, Integers bytes) { add(weights, bytes); }
    void add(Integers weights, Integers bytes) {
        const Integers pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(bytes, weights));
        lanes = _mm256_add_epi32(lanes, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        keep_order(lanes);
    }
    void settle() {}
    Vec get() const { return (Vec) _mm256_cvtepi32_ps(lanes); }
};

inline Integers lanes_of(Integers a, Integers b, int lane) {
    const __m256 x = (__m256) a, y = (__m256) b;
    const Integers mixed = (Integers) (lane == 0 ? _mm256_shuffle_ps(x, y, 0x88) : _mm256_shuffle_ps(x, y, 0xDD));
    return _mm256_permute4x64_epi64(mixed, 0xD8);
}

inline Integers four_bytes(int32_t x) { return _mm256_set1_epi32(x); }

inline Integers low_words(Integers a, Integers b) { return _mm256_unpacklo_epi32(a, b); }
inline Integers high_words(Integers a, Integers b) { return _mm256_unpackhi_epi32(a, b); }
inline Integers low_pairs(Integers a, Integers b) { return _mm256_unpacklo_epi64(a, b); }
inline Integers high_pairs(Integers a, Integers b) { return _mm256_unpackhi_epi64(a, b); }

template <class Get>
inline Integers joined(Get get) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(get(0)), get(1), 1);
}

inline Integers sixteens(Integers x, Integers bits) {
    return _mm256_cmpeq_epi8(x & bits, bits) & eight_bytes(0x1010101010101010);
}

inline Vec numbers_of(Integers x) { return (Vec) _mm256_cvtepi32_ps(x); }

inline Vec numbers_of(const int8_t * bytes) {
    return numbers_of(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) bytes)));
}

inline Vec wide_scales_of(const uint16_t * halves) {
    return (Vec) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) halves));
}

// A vector has the columns of one group.
inline Vec wide_scales_of(__m128i a, __m128i) { return (Vec) _mm256_cvtph_ps(a); }

inline Integers moved(Integers x, Sixteen places) {
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(places));
}

inline Integers chosen(Sixteen from, Integers places) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(from), places);
}

/// Numbers of 8 bits without signs, one for each column.
inline Integers whole_numbers(const uint8_t * bytes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) bytes));
}

/// There are always eight columns.
inline void store_wide(Vec x, float * out, int) { _mm256_storeu_ps(out, (__m256) x); }

#endif

#if defined(__AVX2__)

/// For each element of a part, which of four bytes of its column has its bit, and which bit it is.
inline Sixteen places_of_bits(int part) {
    const Bytes of_lanes = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    return (Sixteen) (of_lanes + (int8_t) (part / 2));
}
inline Integers bits_of(int part) { return four_bytes(part % 2 == 0 ? 0x08040201 : (int32_t) 0x80402010); }

inline Sixteen low_bytes(Sixteen a, Sixteen b) { return _mm_unpacklo_epi8(a, b); }
inline Sixteen high_bytes(Sixteen a, Sixteen b) { return _mm_unpackhi_epi8(a, b); }

#endif

/// The place of the first of a vector's columns in its group.
inline int place_in_group(int column) { return WIDE_COLUMNS < GROUP ? column % GROUP : 0; }

#if !defined(__AVX512VNNI__)

/// 16 for each element of a part whose fifth bit is set: `high` has those of the 32 elements of each column.
inline Integers fifth_bits(Integers high, int part) {
    return sixteens(moved(high, places_of_bits(part)), bits_of(part));
}

/// Two numbers of four bits in each of sixteen bytes of the columns from `column` on, in ggml's interleaved layout.
template <class Low, class High>
inline void unpack_interleaved(const uint8_t * weights, int column, Integers (&parts)[2 * QUARTERS], Low low, High high) {
    for (int half = 0; half < 2; half++) {
        const uint8_t * from = weights + half * 8 * GROUP + place_in_group(column) * 8;
        const Integers a = load_integers(from), b = load_integers(from + sizeof(Integers));
        for (int lane = 0; lane < 2; lane++) {
            const Integers both = lanes_of(a, b, lane);
            parts[2 * half + lane] = low(both);
            parts[QUARTERS + 2 * half + lane] = high(both);
        }
    }
}

#endif

} // namespace
