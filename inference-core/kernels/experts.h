// Products of mixtures of experts: each row is multiplied by the matrices of the experts that were chosen
// for it.
#pragma once

#include "floats.h"
#include "matrix.h"

namespace {

/// A product, and how it is cut into pieces. A pair is a row and one of its experts.
class ExpertProduct {
public:
    explicit ExpertProduct(const ggml_tensor * op)
        : op(op), weights(op->src[0]), input(op->src[1]), ids(op->src[2]),
          rows((int) (input->ne[1] * input->ne[2])), pairs((int) (ids->ne[0] * ids->ne[1])),
          experts((int) weights->ne[2]), columns((int) weights->ne[1]), depth((int) weights->ne[0]) {}

    /// True if it is ours.
    static bool fits(const ggml_tensor * op) {
        if (op->op != GGML_OP_MUL_MAT_ID) return false;
        const ggml_tensor * weights = op->src[0], * input = op->src[1], * ids = op->src[2];
        return weights->ne[3] == 1 && ids->type == GGML_TYPE_I32 && ids->ne[2] == 1 && ids->ne[3] == 1
            && has_rows(input, op) && (has_kernel(weights) || are_floats(weights));
    }

    /// Bytes that the quantized activations need, the plan, and rows that the threads pack. Floats stay as they are.
    size_t work_size(int threads) const { return plan_end() + threads * scratch_bytes(); }

    /// Returns false if there is too little scratch.
    bool compute(const ggml_compute_params * params) const {
        if (work_size(params->nth) > params->wsize) return false;
        Activations activations(params->wdata, rows, depth, offset_of(weights));
        const Plan plan((int *) ((char *) params->wdata + activation_bytes()), experts);
        if (!are_floats(weights)) quantize_share(params, input, activations);
        const int ith = params->ith, nth = params->nth;
        char * const scratch = (char *) params->wdata + plan_end() + ith * scratch_bytes();
        if (ith == 0) {
            make(plan);
            ggml_threadpool_chunk_set(params->threadpool, nth);
        }
        ggml_barrier(params->threadpool);
        const int busy = *plan.busy_count, units = (columns + UNIT - 1) / UNIT;
        const int parts = std::min(units, (PIECES * nth + busy - 1) / busy);
        for (int piece = ith; piece < busy * parts; piece = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int part = piece % parts;
            const int first = units * part / parts * UNIT, end = units * (part + 1) / parts * UNIT;
            multiply(plan, activations, plan.busy[piece / parts], first, std::min(columns, end), scratch);
        }
        return true;
    }

private:
    const ggml_tensor * op, * weights, * input, * ids;
    const int rows, pairs, experts, columns, depth;

    /// Which pairs each expert computes.
    struct Plan {
        /// Experts that have any, and their number.
        int * busy, * busy_count;
        /// The pairs of the expert e are `order[starts[e]..starts[e + 1]]`.
        int * starts, * order;

        Plan(int * memory, int experts)
            : busy(memory), busy_count(memory + experts), starts(busy_count + 1), order(starts + experts + 1) {}
    };

    int expert_of(int pair) const {
        const int64_t place = pair % ids->ne[0], row = pair / ids->ne[0];
        const int expert = *(const int32_t *) ((const char *) ids->data + row * ids->nb[1] + place * ids->nb[0]);
        GGML_ASSERT(expert >= 0 && expert < experts);
        return expert;
    }

    /// Sorts the pairs by expert.
    void make(const Plan & plan) const {
        std::fill(plan.starts, plan.starts + experts + 1, 0);
        for (int pair = 0; pair < pairs; pair++) plan.starts[expert_of(pair)]++;
        int sum = 0;
        *plan.busy_count = 0;
        for (int e = 0; e <= experts; e++) {
            if (e < experts && plan.starts[e] > 0) plan.busy[(*plan.busy_count)++] = e;
            sum += plan.starts[e];
            plan.starts[e] = sum;
        }
        // From the ends of their places to the beginnings.
        for (int pair = pairs - 1; pair >= 0; pair--) plan.order[--plan.starts[expert_of(pair)]] = pair;
    }

    size_t activation_bytes() const { return are_floats(weights) ? 0 : Activations::bytes(rows, depth); }
    size_t scratch_bytes() const { return are_floats(weights) ? 0 : packing_bytes(pairs, depth); }

    /// Bytes of the quantized activations and the plan: whole lines of a cache.
    size_t plan_end() const {
        const size_t bytes = activation_bytes() + sizeof(int) * (2 * (size_t) experts + 2 + pairs);
        return (bytes + 63) / 64 * 64;
    }

    /// A row of the input, and its result.
    FloatRow row_at(int pair) const {
        const int64_t used = pair % ids->ne[0], row = pair / ids->ne[0];
        const char * const x = (const char *) input->data + row * input->nb[2] + used % input->ne[1] * input->nb[1];
        return {(const float *) x, (float *) ((char *) op->data + used * op->nb[1] + row * op->nb[2])};
    }

    void multiply(const Plan & plan, const Activations & activations, int expert, int first, int end,
                  void * scratch) const {
        const int * order = plan.order + plan.starts[expert];
        const int count = plan.starts[expert + 1] - plan.starts[expert];
        const char * const matrix = (const char *) weights->data + expert * weights->nb[2];
        if (are_floats(weights)) {
            return with_floats(weights->type, [&](auto kind) {
                multiply_float_rectangle<decltype(kind)>({matrix, weights->nb[1], depth}, 0, count, first, end,
                                                         [&](int i) { return row_at(order[i]); });
            });
        }
        const auto place_row = [&](int i, TileRows & tile, int place) {
            const int64_t used = order[i] % ids->ne[0], row = order[i] / ids->ne[0], in_row = input->ne[1];
            tile.rows[place] = (int) (row * in_row + used % in_row);
            tile.out[place] = row_at(order[i]).out;
        };
        with_weights(weights, matrix, [&](const auto & from) {
            multiply_rectangle(from, activations, count, first, end, place_row, scratch);
        });
    }
};

} // namespace
