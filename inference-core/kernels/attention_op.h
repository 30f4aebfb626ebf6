// An operation of attention: its inputs, and how its rows are grouped.
#pragma once

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "positions.h"
#include "vectors.h"

namespace {

/// Cells of a tile.
constexpr int TILE = 64;
/// Most lanes of a group. Beyond this the scratch leaves the nearest caches.
constexpr int LANES_MAX = 96;
/// Floats of a line of a cache, at which scratch begins: a vector in two lines takes twice as long to read.
constexpr size_t LINE_FLOATS = 16;
/// Half-precision minus infinity.
constexpr uint16_t HIDDEN = 0xFC00;

/// The operation, and how it is cut into pieces.
struct Attention {
    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;
    const ggml_tensor * mask;
    /// A score for each head that has no value; null if there are none.
    const ggml_tensor * sinks;
    ggml_tensor * dst;
    /// Of the tokens in the cells; null if nobody has said.
    const int32_t * positions;
    /// Of queries. Scores are powers of two: log2(e) is in it, unless they are capped.
    float scale;
    /// A score s becomes cap * tanh(s / cap), and scores are divided already; 0: it does not. log2(e) is in it.
    float cap;
    /// How steeply scores fall with the distance (ALiBi); 0: they do not.
    float slope_max;
    int dk, dv, rows, heads, key_heads, cells;
    /// Query heads of a key head.
    int shared;
    /// Lanes that the scratch has room for, in whole vectors.
    int lanes_max;

    explicit Attention(ggml_tensor * dst)
        : q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), mask(dst->src[3]), sinks(dst->src[4]), dst(dst),
          positions(mask ? flotilla::CellPositions::of(mask) : nullptr),
          cap(ggml_get_op_params_f32(dst, 2) * LOG2_E), slope_max(ggml_get_op_params_f32(dst, 1)),
          dk((int) k->ne[0]), dv((int) v->ne[0]), rows((int) q->ne[1]), heads((int) q->ne[2]),
          key_heads((int) k->ne[2]), cells((int) k->ne[1]), shared(heads / key_heads), lanes_max(0) {
        const float given = ggml_get_op_params_f32(dst, 0);
        scale = cap == 0.0f ? given * LOG2_E : given * LOG2_E / cap;
    }

    /// What the mask is multiplied with for a head. Press et al., "Train Short, Test Long", 2022, for
    /// any number of heads.
    float slope(int head) const {
        if (slope_max <= 0.0f) return LOG2_E;
        const int whole = 1 << (int) std::floor(std::log2((float) heads));
        const float of_first = std::exp2(-slope_max / whole), of_rest = std::exp2(-slope_max / 2 / whole);
        const float slope = head < whole ? std::pow(of_first, (float) (head + 1))
                                         : std::pow(of_rest, (float) (2 * (head - whole) + 1));
        return slope * LOG2_E;
    }

    const uint16_t * mask_row(int row) const {
        return (const uint16_t *) ((const char *) mask->data + row * mask->nb[1]);
    }

    bool fits(const ggml_compute_params * params) {
        const bool shapes = q->type == GGML_TYPE_F32 && q->ne[3] == 1 && k->ne[3] == 1
            && v->ne[2] == k->ne[2] && dv % 8 == 0 && heads % key_heads == 0;
        const bool masked = !mask || (mask->type == GGML_TYPE_F16 && mask->ne[2] == 1 && mask->ne[3] == 1);
        const size_t room = scratch_floats(params), fixed = (size_t) TILE * (dk + dv) + LINE_FLOATS;
        if (params->use_ref || !shapes || !masked || !readable(k) || !readable(v) || room <= fixed) {
            return false;
        }
        const size_t lanes = (room - fixed) / (dk + TILE + dv + 3);
        lanes_max = (int) std::min<size_t>(lanes, LANES_MAX) / WIDTH * WIDTH;
        return shared <= lanes_max;
    }

    /// Floats of scratch of a thread, and where they begin.
    static size_t scratch_floats(const ggml_compute_params * params) {
        return params->wsize / sizeof(float) / params->nth;
    }

    static float * scratch(const ggml_compute_params * params) {
        float * const begin = (float *) params->wdata + scratch_floats(params) * params->ith;
        const size_t line = LINE_FLOATS * sizeof(float);
        return (float *) (((uintptr_t) begin + line - 1) / line * line);
    }

    static bool readable(const ggml_tensor * t) {
        return t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float;
    }

    /// Whether two rows see nearly the same cells, as neighbors in a sequence do.
    bool alike(int row, int next) const {
        if (!mask) return true;
        const uint16_t * a = mask_row(row);
        const uint16_t * b = mask_row(next);
        uint32_t different = 0, seen = 0;
        for (int from = 0; from < cells; from += 4096) {
            // 16-bit sums fill vectors twice as well.
            uint16_t d = 0, s = 0;
            for (int i = from; i < std::min(cells, from + 4096); i++) {
                d += (a[i] == HIDDEN) != (b[i] == HIDDEN);
                s += b[i] != HIDDEN;
            }
            different += d;
            seen += s;
        }
        return different <= 16 + seen / 8;
    }

    int group_end(int row, int end) const {
        const int most = std::min(end, row + lanes_max / shared);
        int next = row + 1;
        while (next < most && alike(next - 1, next)) next++;
        return next;
    }
};

} // namespace
