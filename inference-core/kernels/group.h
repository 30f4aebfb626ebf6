// What both ways to compute the attention of a group of rows have in common.
#pragma once

#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "cells.h"
#include "ggml-cpu.h"

namespace {

/// Stands for a score of minus infinity: whole, and exact beside any real score's parts.
constexpr float UNSEEN = -1048576.0f;

/// A thread's work on one group: the rows `first..end` and the heads of one key head.
class Group {
protected:
    Group(const Attention & op, int key_head, int first, int end)
        : op(op), head(key_head), first(first), end(end), used((end - first) * op.shared) {
        for (int h = 0; h < op.shared; h++) slopes[h] = op.slope(head * op.shared + h);
    }

    const Attention & op;
    const int head, first, end;
    /// Pairs of a row and a head, row by row.
    const int used;

    int row_of(int pair) const { return first + pair / op.shared; }
    int head_of(int pair) const { return head * op.shared + pair % op.shared; }

    const float * query(int pair) const {
        return (const float *) ((const char *) op.q->data + row_of(pair) * op.q->nb[1] + head_of(pair) * op.q->nb[2]);
    }

    float * output(int pair) const {
        return (float *) ((char *) op.dst->data + ((size_t) row_of(pair) * op.heads + head_of(pair)) * op.dst->nb[1]);
    }

    /// The score of its head that has no value.
    float sink(int pair) const {
        return op.sinks ? std::max(((const float *) op.sinks->data)[head_of(pair)] * LOG2_E, UNSEEN) : UNSEEN;
    }

    /// Reads keys `[cell][dk]` and values `[cell][dv]` of the first `count` of `left` cells. True if some row does
    /// not see some cell as it is.
    bool read(const Cell * cell, int count, int left, float * keys, float * values) const {
        bool is_masked = false;
        for (int c = 0; c < count; c++) {
            if (c + AHEAD < left) {
                fetch(op.k, cell[c + AHEAD].at, key_bytes);
                fetch(op.v, cell[c + AHEAD].at, value_bytes);
            }
            read(op.k, cell[c].at, keys + c * op.dk);
            read(op.v, cell[c].at, values + c * op.dv);
            is_masked |= cell[c].is_masked;
        }
        return is_masked;
    }

    /// Adds the mask to the scores: `score(pair, c)`.
    template <class Score>
    void hide(const Cell * cell, int count, Score score) const {
        for (int row = first; row < end; row++) {
            const uint16_t * mask = op.mask_row(row);
            for (int c = 0; c < count; c++) {
                const uint16_t m = mask[cell[c].at];
                if (m == 0) continue;
                const float distance = ggml_fp16_to_fp32(m);
                for (int h = 0; h < op.shared; h++) score((row - first) * op.shared + h, c) += distance * slopes[h];
            }
        }
    }

private:
    /// How many cells ahead memory is told which one is read. Where the cells of sequences lie interleaved, each of
    /// one sequence's is on another page, so that no processor guesses the next.
    static constexpr int AHEAD = 16;

    /// What the mask is multiplied with for each head.
    float slopes[LANES_MAX];
    /// Bytes of a cell's key and value.
    const size_t key_bytes = ggml_row_size(op.k->type, op.dk), value_bytes = ggml_row_size(op.v->type, op.dv);

    void fetch(const ggml_tensor * t, int cell, size_t bytes) const {
        const char * x = (const char *) t->data + cell * t->nb[1] + head * t->nb[2];
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(x + i);
    }

    static void read_halves(const ggml_fp16_t * x, float * out, int64_t n) {
        int64_t i = 0;
#if defined(__AVX512F__)
        for (; i + WIDTH <= n; i += WIDTH) at(out + i) = (Vec) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (x + i)));
#elif defined(__F16C__)
        for (; i + WIDTH <= n; i += WIDTH) at(out + i) = (Vec) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (x + i)));
#endif
        if (i < n) ggml_cpu_fp16_to_fp32(x + i, out + i, n - i);
    }

    void read(const ggml_tensor * t, int cell, float * out) const {
        const char * x = (const char *) t->data + cell * t->nb[1] + head * t->nb[2];
        const int64_t n = t->ne[0];
        switch (t->type) {
            case GGML_TYPE_F32: memcpy(out, x, sizeof(float) * n); break;
            case GGML_TYPE_F16: read_halves((const ggml_fp16_t *) x, out, n); break;
            default: ggml_get_type_traits(t->type)->to_float(x, out, n);
        }
    }
};

} // namespace
