// The product of a matrix of weights and some rows.
#pragma once

#include "weights.h"

namespace {

/// A product, and how it is cut into pieces. Rows may be in several planes, as those of the sequences of
/// recurrent models are.
class MatrixProduct {
public:
    explicit MatrixProduct(const ggml_tensor * op)
        : op(op), weights(op->src[0]), input(op->src[1]), rows((int) (input->ne[1] * input->ne[2])),
          columns((int) weights->ne[1]), depth((int) weights->ne[0]) {}

    /// True if it is ours.
    static bool fits(const ggml_tensor * op) {
        if (op->op != GGML_OP_MUL_MAT) return false;
        const ggml_tensor * weights = op->src[0], * input = op->src[1];
        const bool is_matrix = weights->ne[2] == 1 && weights->ne[3] == 1;
        return is_matrix && has_rows(input, op) && has_kernel(weights);
    }

    /// Bytes that the quantized activations need.
    size_t work_size() const { return Activations::bytes(rows, depth, packing_for(weights, rows)); }

    /// Returns false if there is too little scratch.
    bool compute(const ggml_compute_params * params) const {
        if (work_size() > params->wsize) return false;
        Activations activations(params->wdata, rows, depth, offset_of(weights), packing_for(weights, rows));
        quantize_share(params, input, activations);
        const int ith = params->ith, nth = params->nth;
        if (ith == 0) ggml_threadpool_chunk_set(params->threadpool, nth);
        ggml_barrier(params->threadpool);
        const int units = (columns + UNIT - 1) / UNIT;
        const int share = std::max(1, units / (PIECES * nth)) * UNIT;
        for (int piece = ith; piece * share < columns; piece = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            multiply(activations, piece * share, std::min(columns, (piece + 1) * share));
        }
        return true;
    }

private:
    const ggml_tensor * op, * weights, * input;
    const int rows, columns, depth;

    void multiply(const Activations & activations, int first, int end) const {
        const auto row_at = [&](int row, TileRows & tile, int place) {
            tile.rows[place] = row;
            tile.out[place] = (float *) ((char *) op->data + row * op->nb[1]);
        };
        with_weights(weights, weights->data, [&](const auto & from) {
            multiply_rectangle(from, activations, rows, first, end, row_at, nullptr);
        });
    }
};

} // namespace
