// An operation of a gated delta net: its inputs, and where its states are.
#pragma once

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "ggml.h"

#include <cstring>
#include <vector>

#include "vectors.h"

namespace {

/// The operation. A state is a matrix for each head whose rows belong to elements of values, and whose columns to
/// elements of keys.
struct DeltaNet {
    const ggml_tensor * q, * k, * v, * g, * b, * s;
    ggml_tensor * dst;
    int size, heads, tokens, seqs;
    /// True if states are read where the model's cache has them, and written to the rows of it that `s` is.
    bool in_cache;
    /// Rows of the cache before those. The row that the state of each sequence is read from, and behind them, of each
    /// other state that was moved out of their way.
    int head_row;
    const int32_t * rows;
    int moved;

    explicit DeltaNet(ggml_tensor * dst)
        : q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), g(dst->src[3]), b(dst->src[4]), s(dst->src[5]), dst(dst),
          size((int) v->ne[0]), heads((int) v->ne[1]), tokens((int) v->ne[2]), seqs((int) v->ne[3]),
          in_cache(dst->src[6] != nullptr), head_row(ggml_get_op_params_i32(dst, 1)),
          rows(in_cache ? (const int32_t *) dst->src[6]->data : nullptr),
          moved(in_cache ? (int) dst->src[6]->ne[0] : 0), is_arranged(is_cyclic()) {}

    /// True if it is ours: one gate for each head, and no snapshots.
    bool fits() const { return g->ne[0] == 1 && ggml_get_op_params_i32(dst, 0) == 1 && size % LINE == 0; }

    /// Elements of a state.
    ptrdiff_t state_size() const { return (ptrdiff_t) heads * size * size; }

    /// True if states must be moved to their rows first: one is read from where another is written.
    bool must_arrange() const { return is_arranged; }

    /// Moves a thread's share of all states to their rows, piece by piece.
    void arrange(int thread, int threads) const {
        constexpr ptrdiff_t PIECE = 256;
        static thread_local std::vector<float> pieces;
        pieces.resize(moved * PIECE);
        const ptrdiff_t end = state_size() * (thread + 1) / threads;
        for (ptrdiff_t at = state_size() * thread / threads; at < end; at += PIECE) {
            const size_t bytes = sizeof(float) * (end - at < PIECE ? end - at : PIECE);
            for (int i = 0; i < moved; i++) memcpy(&pieces[i * PIECE], cached(rows[i]) + at, bytes);
            for (int i = 0; i < moved; i++) {
                if (rows[i] != head_row + i) memcpy(cached(head_row + i) + at, &pieces[i * PIECE], bytes);
            }
        }
    }

    const float * source(int seq, int head) const {
        const bool is_elsewhere = in_cache && !is_arranged;
        const float * const state = is_elsewhere ? cached(rows[seq]) : (const float *) s->data + seq * state_size();
        return state + (ptrdiff_t) head * size * size;
    }
    float * target(int seq, int head) const {
        float * const behind = (float *) dst->data + (ptrdiff_t) size * heads * tokens * seqs;
        float * const all = in_cache ? (float *) s->data : behind;
        return all + seq * state_size() + (ptrdiff_t) head * size * size;
    }

    const float * query(int seq, int head, int token) const { return part(q, seq, head, token); }
    const float * key(int seq, int head, int token) const { return part(k, seq, head, token); }
    const float * value(int seq, int head, int token) const { return part(v, seq, head, token); }
    float gate(int seq, int head, int token) const { return *part(g, seq, head, token); }
    float beta(int seq, int head, int token) const { return *part(b, seq, head, token); }
    float * out(int seq, int head, int token) const {
        return (float *) dst->data + (((ptrdiff_t) seq * tokens + token) * heads + head) * size;
    }

private:
    bool is_arranged;

    float * cached(int row) const { return (float *) s->data + (row - head_row) * state_size(); }

    bool is_cyclic() const {
        for (int i = 0; i < moved; i++) {
            const int place = rows[i] - head_row;
            if (place != i && (i >= seqs || (place >= 0 && place < moved))) return true;
        }
        return false;
    }

    /// What a tensor has for a head and a token. Several heads may have the same keys and queries.
    const float * part(const ggml_tensor * of, int seq, int head, int token) const {
        const int64_t sequence = seq / (v->ne[3] / of->ne[3]);
        return (const float *) ((const char *) of->data + sequence * of->nb[3] + token * of->nb[2] +
                                head % of->ne[1] * of->nb[1]);
    }
};

} // namespace
