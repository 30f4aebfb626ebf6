// Q4_K weights in ggml's interleaved layout: a weight is a scale times n, 0 to 15, less a minimum. Scales
// and minimums of eight blocks are numbers of six bits times a scale of their own.
#pragma once

#include "tile.h"

namespace {

/// Blocks that share two scales.
constexpr int SUPER_BLOCKS = 8;

/// Eight blocks of each of eight columns: ggml's block_q4_Kx8.
struct InterleavedQ4K {
    uint16_t scales[GROUP];
    uint16_t mins[GROUP];
    /// Of each block, for the eight columns: the scales of the first four, and their minimums, in the
    /// low six bits of four bytes each; then the low four bits of those of the last four, whose high bits
    /// are above the others.
    uint8_t packed[SUPER_BLOCKS][12];
    /// For each two blocks, eight bytes of each column, and so on. The low four bits belong to the first
    /// of the two.
    uint8_t weights[SUPER_BLOCKS / 2][QUARTERS][8 * GROUP];
};
static_assert(sizeof(InterleavedQ4K) == 1152, "the layout is ggml's");

/// A matrix of them.
class WeightsQ4K {
public:
    static constexpr int OFFSET = 0;
    static constexpr bool HAS_HALVES = false;
    static constexpr bool HAS_MINS = true;

    WeightsQ4K(const void * data, int blocks)
        : data((const InterleavedQ4K *) data), super_blocks(blocks / SUPER_BLOCKS) {}

    /// A vector's columns, from `column` on.
    Unpacked unpack(int column, int block) const {
        const InterleavedQ4K & from = data[(ptrdiff_t) column / GROUP * super_blocks + block / SUPER_BLOCKS];
        const int place = column % GROUP, part = block % SUPER_BLOCKS;
        Unpacked unpacked;
        for (int q = 0; q < QUARTERS; q++) {
            Integers both;
            memcpy(&both, from.weights[part / 2][q] + place * 8, sizeof(both));
            unpacked.quarters[q] = part % 2 == 0 ? low_bits(both) : high_bits(both);
        }
        uint32_t words[3];
        memcpy(words, from.packed[part], sizeof(words));
        const uint64_t scales = join(words[0], words[2]), mins = join(words[1], words[2] >> 4);
        unpacked.scales = numbers_of(scales >> (place * 8)) * scales_of(from.scales + place);
        unpacked.mins = numbers_of(mins >> (place * 8)) * scales_of(from.mins + place) * 0.5f;
        return unpacked;
    }

    /// Prefetches a part of what is read two blocks of 256 later for `count` columns.
    void prefetch_later(int column, int count, int block) const {
        constexpr size_t PART = sizeof(InterleavedQ4K) / SUPER_BLOCKS;
        for (int c = 0; c < count; c += GROUP) {
            const ptrdiff_t super = (ptrdiff_t) (column + c) / GROUP * super_blocks + block / SUPER_BLOCKS;
            prefetch<NEAREST>((const char *) (data + super + 2) + block % SUPER_BLOCKS * PART, PART);
        }
    }

private:
    const InterleavedQ4K * data;
    const int super_blocks;

    /// Eight numbers of six bits: `low` has four of them, and the high bits of the others.
    static uint64_t join(uint32_t low, uint32_t other) {
        const uint32_t high = (other & 0x0f0f0f0f) | (low >> 2 & 0x30303030);
        return (uint64_t) high << 32 | (low & 0x3f3f3f3f);
    }
};

} // namespace
