// Q4_K weights in ggml's interleaved layout: a weight is a scale times n, 0 to 15, less a minimum. Scales
// and minimums of eight blocks are numbers of six bits times a scale of their own.
#pragma once

#include "lanes.h"
#include "super_tile.h"

namespace {

/// Eight blocks of each of eight columns: ggml's block_q4_Kx8.
struct InterleavedQ4K {
    uint16_t scales[GROUP];
    uint16_t mins[GROUP];
    /// Of each block, for the eight columns: the scales of the first four, and their minimums, in the
    /// low six bits of four bytes each; then the low four bits of those of the last four, whose high bits
    /// are above the others.
    uint8_t packed[8][12];
    /// For each two blocks, eight bytes of each column, and so on. The low four bits belong to the first
    /// of the two.
    uint8_t weights[4][QUARTERS][8 * GROUP];
};
static_assert(sizeof(InterleavedQ4K) == 1152, "the layout is ggml's");

/// A matrix of them.
class WeightsQ4K {
public:
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_MINS = true;

    WeightsQ4K(const void * data, int blocks)
        : data((const InterleavedQ4K *) data), super_blocks(blocks / 8) {}

    /// Prefetches a part of the columns after `count` columns.
    void prefetch_later(int column, int count, int block) const {
        prefetch_groups(data, 8 * super_blocks, sizeof(InterleavedQ4K) / (8 * GROUP), column, count, block);
    }

    static constexpr int BLOCKS = SUPER_BLOCKS;
    static constexpr bool HAS_HALVES = false;
    /// Blocks that share bytes.
    static constexpr int CHUNK = 2;

#if defined(__AVX512VNNI__)

    /// Eight blocks of two groups, or of one twice.
    class Lanes : public LaneTraits<WeightsQ4K> {
    public:
        Lanes(const WeightsQ4K & weights, int column, int count, int super)
            : a(weights.group(column)[super]), b(weights.group(column + (count > GROUP ? GROUP : 0))[super]),
              of_scales(in_turns(load_sixteen(a.scales), load_sixteen(b.scales))),
              of_mins(in_turns(load_sixteen(a.mins), load_sixteen(b.mins))) {
            store(scale_numbers, six_bits(a.packed[0], 0), six_bits(b.packed[0], 0));
            store(min_numbers, six_bits(a.packed[0], 1), six_bits(b.packed[0], 1));
        }

        void load(int) {}

        void unpack(int part, Integers (&to)[2][QUARTERS]) const {
#pragma GCC unroll 4
            for (int q = 0; q < QUARTERS; q++) {
                const Integers first = load_integers(a.weights[part / 2][q]), second = load_integers(b.weights[part / 2][q]);
                to[0][q] = part % 2 == 0 ? low_bits(first) : high_bits(first);
                to[1][q] = part % 2 == 0 ? low_bits(second) : high_bits(second);
            }
        }

        Vec scales(int part) const { return numbers_of(scale_numbers[part]) * of_scales; }
        Vec mins(int part) const { return numbers_of(min_numbers[part]) * of_mins; }

    private:
        const InterleavedQ4K & a, & b;
        const Vec of_scales, of_mins;
        /// Numbers of six bits, by block and column.
        alignas(16) int8_t scale_numbers[SUPER_BLOCKS][WIDE_COLUMNS], min_numbers[SUPER_BLOCKS][WIDE_COLUMNS];

        /// The eight numbers of each block: scales, or with `word` 1 minimums.
        static Integers six_bits(const uint8_t * packed, int word) {
            const Integers first = _mm512_loadu_si512(packed);
            const Integers rest = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) (packed + 64)));
            const Integers twice = _mm512_setr_epi32(0, 0, 3, 3, 6, 6, 9, 9, 12, 12, 15, 15, 18, 18, 21, 21);
            const auto words = [&](int place) {
                return _mm512_permutex2var_epi32(first, _mm512_add_epi32(twice, _mm512_set1_epi32(place)), rest);
            };
            const Integers own = words(word), third = words(2);
            const Integers four_bits = word == 0 ? low_bits(third) : high_bits(third);
            const Integers two_bits = _mm512_srli_epi16(own, 2) & eight_bytes(0x3030303030303030);
            return _mm512_mask_blend_epi32(0xAAAA, own & eight_bytes(0x3f3f3f3f3f3f3f3f), four_bits | two_bits);
        }

        /// Brings the numbers of both groups together, two of either in turns.
        static void store(int8_t (&to)[SUPER_BLOCKS][WIDE_COLUMNS], Integers a, Integers b) {
            const Integers even = _mm512_unpacklo_epi16(a, b), odd = _mm512_unpackhi_epi16(a, b);
            // Blocks 0, 2, 4 and 6, and those between them.
            for (int i = 0; i < 4; i++) {
                memcpy(to[2 * i], (const char *) &even + i * WIDE_COLUMNS, WIDE_COLUMNS);
                memcpy(to[2 * i + 1], (const char *) &odd + i * WIDE_COLUMNS, WIDE_COLUMNS);
            }
        }
    };

#else

    typedef WideSum<15> Sums;

    /// Eight blocks of the columns of a group; on ARM, of half of one.
    class Super {
    public:
        Super(const WeightsQ4K & weights, int column, int, int super)
            : a(weights.group(column)[super]), at(place_in_group(column)), of_scales(wide_scales_of(a.scales + at)),
              of_mins(wide_scales_of(a.mins + at)) {
            unpack_numbers();
        }

        /// Unpacks two of them: those from `part` on.
        void unpack(int part, WideBlock (&blocks)[CHUNK]) const {
            for (int q = 0; q < QUARTERS; q++) {
                const uint8_t * first = a.weights[part / 2][q] + 8 * at;
                const Integers low = load_integers(first), high = load_integers(first + sizeof(Integers));
                for (int lane = 0; lane < 2; lane++) {
                    const Integers both = lanes_of(low, high, lane);
                    blocks[0].parts[2 * q + lane] = low_bits(both);
                    blocks[1].parts[2 * q + lane] = high_bits(both);
                }
            }
            for (int i = 0; i < CHUNK; i++) {
                blocks[i].scales = numbers_of(scale_numbers[part + i]) * of_scales;
                blocks[i].mins = numbers_of(min_numbers[part + i]) * of_mins;
            }
        }

    private:
        const InterleavedQ4K & a;
        /// The place of the first column in its group.
        const int at;
        const Vec of_scales, of_mins;
        /// Numbers of six bits, by block and column.
        alignas(16) int8_t scale_numbers[SUPER_BLOCKS][WIDE_COLUMNS], min_numbers[SUPER_BLOCKS][WIDE_COLUMNS];

#if defined(__ARM_NEON)

        /// Four blocks at a time.
        void unpack_numbers() {
            for (int block = 0; block < SUPER_BLOCKS; block += 4) {
                const uint32x4x3_t words = vld3q_u32((const uint32_t *) a.packed[block]);
                const uint8x16_t third = vreinterpretq_u8_u32(words.val[2]);
                store(scale_numbers[block], words.val[0], vandq_u8(third, vdupq_n_u8(0x0f)));
                store(min_numbers[block], words.val[1], vshrq_n_u8(third, 4));
            }
        }

        /// The numbers of each of four blocks. `own` has those of the first four columns, and high bits of the others.
        void store(int8_t * to, uint32x4_t words, uint8x16_t others) const {
            const uint8x16_t own = vreinterpretq_u8_u32(words), high = vandq_u8(vshrq_n_u8(own, 2), vdupq_n_u8(0x30));
            const uint8x16_t numbers = at == 0 ? vandq_u8(own, vdupq_n_u8(0x3f)) : vorrq_u8(others, high);
            vst1q_u8((uint8_t *) to, numbers);
        }

#else

        /// Four blocks at a time.
        void unpack_numbers() {
            for (int block = 0; block < SUPER_BLOCKS; block += 4) {
                __m128i words[4];
                // With the four bytes behind them, which are of the next block or of the weights.
                for (int i = 0; i < 4; i++) words[i] = _mm_loadu_si128((const __m128i *) a.packed[block + i]);
                const __m128i low = _mm_unpacklo_epi32(words[0], words[1]), next = _mm_unpacklo_epi32(words[2], words[3]);
                const __m128i third = _mm_unpacklo_epi64(_mm_unpackhi_epi32(words[0], words[1]),
                                                         _mm_unpackhi_epi32(words[2], words[3]));
                store(scale_numbers[block], _mm_unpacklo_epi64(low, next), third);
                store(min_numbers[block], _mm_unpackhi_epi64(low, next), _mm_srli_epi16(third, 4));
            }
        }

        /// The eight numbers of each of four blocks. `own` has the first four, and high bits of the others.
        static void store(int8_t * to, __m128i own, __m128i third) {
            const __m128i first = own & _mm_set1_epi8(0x3f);
            const __m128i others = (third & _mm_set1_epi8(0x0f)) | (_mm_srli_epi16(own, 2) & _mm_set1_epi8(0x30));
            _mm_storeu_si128((__m128i *) to, _mm_unpacklo_epi32(first, others));
            _mm_storeu_si128((__m128i *) (to + 2 * GROUP), _mm_unpackhi_epi32(first, others));
        }

#endif
    };

#endif

private:
    const InterleavedQ4K * data;
    const int super_blocks;

    /// The blocks of a column's group.
    const InterleavedQ4K * group(int column) const { return data + (ptrdiff_t) (column / GROUP) * super_blocks; }
};

} // namespace
