// Q4_0 weights in ggml's interleaved layout: a weight is a scale times (n - 8), and n is 0 to 15.
#pragma once

#include "lanes.h"
#include "super_tile.h"

namespace {

/// One block of each of eight columns: ggml's block_q4_0x8. `weights` holds the first eight bytes
/// of each column, then the second eight. The low four bits of byte i belong to the element i of
/// a block, the high ones to the element i + 16; both are n ^ 8.
struct InterleavedQ4 {
    uint16_t scales[GROUP];
    uint8_t weights[16 * GROUP];
};
static_assert(sizeof(InterleavedQ4) == 144, "the layout is ggml's");

#if defined(__AVX512VNNI__)

/// A matrix of them.
class WeightsQ4 {
public:
    typedef SimpleLanes<WeightsQ4> Lanes;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = false;

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const InterleavedQ4 & from = group(column, block);
        const Integers first = load_integers(from.weights) ^ flipped();
        const Integers second = load_integers(from.weights + 8 * GROUP) ^ flipped();
        Unpacked unpacked = {low_bits(first), low_bits(second), high_bits(first), high_bits(second)};
        unpacked.scales = scales_of(from.scales);
        return unpacked;
    }
#else

class WeightsQ4 : public SmallBlocks {
public:
    typedef WideSum<15> Sums;

    /// A block of some columns.
    class Super {
    public:
        Super(const WeightsQ4 & weights, int column, int, int block) : from(weights.group(column, block)), column(column) {}

        void unpack(int, WideBlock (&blocks)[CHUNK]) const {
            const Vec scales = wide_scales_of(from.scales + place_in_group(column));
#if defined(__ARM_NEON)
            // n ^ 8 in the high bits is a number with a sign, sixteen times what it stands for.
            unpack_interleaved(from.weights, column, blocks[0].parts, low_signed, high_signed);
            blocks[0].scales = scales * (1.0f / 16);
#else
            unpack_interleaved(from.weights, column, blocks[0].parts, low_bits, high_bits);
            for (Integers & part : blocks[0].parts) part = part ^ eight_bytes(0x0808080808080808);
            blocks[0].scales = scales;
#endif
        }

    private:
        const InterleavedQ4 & from;
        const int column;
    };
#endif

#if defined(__ARM_NEON)
    static constexpr int OFFSET = 0;
#else
    static constexpr int OFFSET = 8;
#endif

    WeightsQ4(const void * data, int blocks) : data((const InterleavedQ4 *) data), blocks(blocks) {}

    /// Prefetches a part of the columns after `count` columns.
    void prefetch_later(int column, int count, int block) const {
        prefetch_groups(data, blocks, sizeof(InterleavedQ4) / GROUP, column, count, block);
    }

    /// A block of the group that a column is in.
    const InterleavedQ4 & group(int column, int block) const { return data[(ptrdiff_t) (column / GROUP) * blocks + block]; }

private:
    const InterleavedQ4 * data;
    const int blocks;

    static Integers flipped() { return eight_bytes((int64_t) 0x8888888888888888); }
};

} // namespace
