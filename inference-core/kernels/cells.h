// The cells that a group of rows sees.
#pragma once

#include <algorithm>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "attention_op.h"

namespace {

/// A cell that some row of a group sees.
struct Cell {
    uint32_t at : 31;
    /// Whether some row does not see it as it is.
    uint32_t is_masked : 1;
};

/// The cells that a group sees. Memory for them is kept from one group to the next.
class Cells {
public:
    std::vector<Cell> list;

    /// Lists those that the rows `first..end` see, in the order of their positions.
    void find(const Attention & op, int first, int end) {
        list.clear();
        for (int from = 0; from < op.cells; from += TILE) {
            collect(op, first, end, from, std::min(TILE, op.cells - from));
        }
        if (op.positions) sort(op.positions);
    }

private:
    std::vector<size_t> ends;

    /// Sorts them by position. They are a few ascending runs, one for each stretch of the pool, or
    /// one: runs are merged in pairs.
    void sort(const int32_t * positions) {
        const auto before = [=](Cell a, Cell b) { return positions[a.at] < positions[b.at]; };
        ends.clear();
        for (size_t i = 1; i <= list.size(); i++) {
            if (i == list.size() || before(list[i], list[i - 1])) ends.push_back(i);
        }
        while (ends.size() > 1) {
            size_t begin = 0, kept = 0;
            for (size_t run = 0; run < ends.size(); run += 2) {
                const size_t middle = ends[run], end = ends[std::min(run + 1, ends.size() - 1)];
                std::inplace_merge(list.begin() + begin, list.begin() + middle, list.begin() + end, before);
                begin = ends[kept++] = end;
            }
            ends.resize(kept);
        }
    }

    /// Lists the visible ones of up to TILE cells.
    void collect(const Attention & op, int first, int end, int from, int count) {
        uint64_t any = count == 64 ? ~0ull : (1ull << count) - 1, every = any;
        bool biased = false;
        if (op.mask) {
            any = 0;
            for (int row = first; row < end; row++) {
                const uint64_t seen = visible(op.mask_row(row) + from, count, biased);
                any |= seen;
                every &= seen;
            }
        }
        const uint64_t masked = biased ? any : any & ~every;
        for (uint64_t rest = any; rest != 0; rest &= rest - 1) {
            const uint32_t i = __builtin_ctzll(rest);
            list.push_back({from + i, (uint32_t) (masked >> i & 1)});
        }
    }

    /// The cells that a row sees, a bit for each.
    static uint64_t visible(const uint16_t * mask, int count, bool & biased) {
        const uint64_t seen = ~equal(mask, count, HIDDEN) & (count == TILE ? ~0ull : (1ull << count) - 1);
        biased |= (seen & ~equal(mask, count, 0)) != 0;
        return seen;
    }

    /// Which of up to 64 numbers are `wanted`, a bit for each.
    static uint64_t equal(const uint16_t * numbers, int count, uint16_t wanted) {
        uint64_t bits = 0;
        int i = 0;
#if defined(__AVX512BW__)
        for (; i + 32 <= count; i += 32) {
            const __m512i some = _mm512_loadu_si512(numbers + i);
            bits |= (uint64_t) _mm512_cmpeq_epi16_mask(some, _mm512_set1_epi16((short) wanted)) << i;
        }
#elif defined(__AVX2__)
        for (; i + 16 <= count; i += 16) {
            const __m256i some = _mm256_loadu_si256((const __m256i *) (numbers + i));
            const __m256i are = _mm256_cmpeq_epi16(some, _mm256_set1_epi16((short) wanted));
            const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(are), _mm256_extracti128_si256(are, 1));
            bits |= (uint64_t) (uint32_t) _mm_movemask_epi8(bytes) << i;
        }
#endif
        for (; i < count; i++) bits |= (uint64_t) (numbers[i] == wanted) << i;
        return bits;
    }
};

} // namespace
