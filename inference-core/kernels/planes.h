// Products of several matrices, each with the rows of a plane of its own, as those of the heads of latent
// attention are (DeepSeek-V3).
#pragma once

#include "matrix.h"

namespace {

/// Products, and how they are cut into pieces.
class PlanesProduct {
public:
    explicit PlanesProduct(const ggml_tensor * op)
        : op(op), weights(op->src[0]), input(op->src[1]), planes((int) weights->ne[2]), rows((int) input->ne[1]),
          columns((int) weights->ne[1]), depth((int) weights->ne[0]) {}

    /// True if they are ours.
    static bool fits(const ggml_tensor * op) {
        return op->op == GGML_OP_MUL_MAT && has_planes(op->src[0], op->src[1]) && has_rows(op->src[1], op)
            && has_kernel(op->src[0]);
    }

    /// Bytes that the quantized activations need, and rows that the threads pack.
    size_t work_size(int threads) const { return Activations::bytes(planes * rows, depth) + threads * scratch_bytes(); }

    /// Returns false if there is too little scratch.
    bool compute(const ggml_compute_params * params) const {
        if (work_size(params->nth) > params->wsize) return false;
        Activations activations(params->wdata, planes * rows, depth, offset_of(weights));
        quantize_share(params, input, activations);
        const int ith = params->ith, nth = params->nth;
        char * const scratch = (char *) params->wdata + Activations::bytes(planes * rows, depth) + ith * scratch_bytes();
        if (ith == 0) ggml_threadpool_chunk_set(params->threadpool, nth);
        ggml_barrier(params->threadpool);
        const int units = (columns + UNIT - 1) / UNIT;
        const int parts = std::min(units, (PIECES * nth + planes - 1) / planes);
        for (int piece = ith; piece < planes * parts; piece = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int part = piece % parts;
            const int first = units * part / parts * UNIT, end = units * (part + 1) / parts * UNIT;
            multiply(activations, piece / parts, first, std::min(columns, end), scratch);
        }
        return true;
    }

private:
    const ggml_tensor * op, * weights, * input;
    const int planes, rows, columns, depth;

    size_t scratch_bytes() const { return packing_bytes(rows, depth); }

    void multiply(const Activations & activations, int plane, int first, int end, void * scratch) const {
        const auto row_at = [&](int row, TileRows & tile, int place) {
            tile.rows[place] = plane * rows + row;
            tile.out[place] = (float *) ((char *) op->data + plane * op->nb[2] + row * op->nb[1]);
        };
        with_weights(weights, (const char *) weights->data + plane * weights->nb[2], [&](const auto & from) {
            multiply_rectangle(from, activations, rows, first, end, row_at, scratch);
        });
    }
};

} // namespace
