// Products of quantized weights and activations: takes the place of ggml's for the types below, in
// the layouts that ggml's weights already have in memory.
//
// What is different here:
// - Activations are quantized once, with what all columns need of them: the scale of each block and
//   its sum.
// - Weights stay unsigned, so that a block is a chain of multiply-add instructions without the work
//   that signs would need; the sum of the activations corrects for that.
// - Weights are unpacked once for up to eight rows, also for two or three, for which ggml reads all
//   weights again.
// - Weights are prefetched in the order of memory, which is not the order in which they are read.
// - What a row of Q4_0 and Q8_0 gets does not depend on the rows beside it, as with ggml's kernels, so that
//   a seed means the same response on a busy node. (But see has_kernel.)
//
// Everything else goes to ggml: other types and layouts, experts, batches of matrices.

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "repack.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "vectors.h"

extern "C" {
// What ggml calls, and ggml's own, renamed by kernel-variants.cmake.
bool ggml_cpu_extra_compute_forward(ggml_compute_params * params, ggml_tensor * op);
bool ggml_cpu_extra_work_size(int threads, const ggml_tensor * op, size_t * size);
bool flotilla_ggml_extra_compute_forward(ggml_compute_params * params, ggml_tensor * op);
bool flotilla_ggml_extra_work_size(int threads, const ggml_tensor * op, size_t * size);
}

#if defined(__AVX2__)

#include "q4_0.h"
#include "q4_k.h"
#include "q6_k.h"
#include "q8_0.h"

namespace {

/// Rows that are computed for all columns of a piece before the next ones: their activations stay
/// in the nearest caches.
constexpr int PANEL_ROWS = 64;
/// Most rows of types whose weights take long to unpack: of more rows, ggml's kernels are as fast.
#if defined(__AVX512VNNI__)
constexpr int SLOW_ROWS_MAX = INT_MAX;
#else
constexpr int SLOW_ROWS_MAX = 32;
#endif
/// Pieces of columns for each thread, so that none waits long for another.
constexpr int PIECES = 4;

/// A product, and how it is cut into pieces.
class Product {
public:
    explicit Product(const ggml_tensor * op)
        : op(op), weights(op->src[0]), input(op->src[1]), rows((int) input->ne[1]),
          columns((int) weights->ne[1]), depth((int) weights->ne[0]), blocks(depth / BLOCK) {}

    /// True if it is ours.
    static bool fits(const ggml_tensor * op) {
        // For comparison (`flotilla-agent bench`), and should ours ever be wrong on some machine.
        static const char * const wanted = getenv("FLOTILLA_MATMUL");
        static const bool leave = wanted && strcmp(wanted, "llama.cpp") == 0;
        if (leave || op->op != GGML_OP_MUL_MAT) return false;
        const ggml_tensor * weights = op->src[0], * input = op->src[1];
        const bool are_matrices =
            weights->ne[2] == 1 && weights->ne[3] == 1 && input->ne[2] == 1 && input->ne[3] == 1;
        return are_matrices && has_kernel(weights, input->ne[1]) && weights->ne[1] % GROUP == 0
            && input->type == GGML_TYPE_F32 && input->nb[0] == sizeof(float) && op->nb[0] == sizeof(float);
    }

    /// Bytes that the quantized activations need.
    size_t work_size() const { return Activations::bytes(rows, depth); }

    void compute(const ggml_compute_params * params) {
        Activations activations(params->wdata, rows, depth);
        const int64_t all = (int64_t) rows * blocks, ith = params->ith, nth = params->nth;
        for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
            const int row = (int) (i / blocks), block = (int) (i % blocks);
            const char * from = (const char *) input->data + row * input->nb[1];
            activations.quantize((const float *) from + block * BLOCK, row, block);
        }
        if (ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, (int) nth);
        }
        ggml_barrier(params->threadpool);
        const int units = (columns + UNIT - 1) / UNIT;
        const int share = std::max(1, units / (int) (PIECES * nth));
        for (int piece = (int) ith; piece * share < units;
             piece = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            multiply_piece(activations, piece * share * UNIT, std::min(columns, (piece + 1) * share * UNIT));
        }
    }

private:
    /// True for types in layouts that the kernels read. Q4_K and Q6_K go to ggml where its kernels are as
    /// fast; there, a row's result depends on the number of rows in any case.
    static bool has_kernel(const ggml_tensor * weights, int64_t rows) {
        if (!weights->buffer) return false;
        const bool is_interleaved = weights->buffer->buft == ggml_backend_cpu_repack_buffer_type();
        const bool are_some = rows > 1 && rows <= SLOW_ROWS_MAX;
        switch (weights->type) {
            case GGML_TYPE_Q4_0: return is_interleaved;
            case GGML_TYPE_Q4_K: return is_interleaved && are_some;
#if defined(__AVX512VNNI__)
            case GGML_TYPE_Q6_K: return ggml_backend_buffer_is_host(weights->buffer) && are_some;
            case GGML_TYPE_Q8_0: return ggml_backend_buffer_is_host(weights->buffer);
#endif
            default: return false;
        }
    }

    const ggml_tensor * op;
    const ggml_tensor * weights;
    const ggml_tensor * input;
    const int rows, columns, depth, blocks;

    void multiply_piece(const Activations & activations, int first, int end) const {
#if defined(__AVX512VNNI__)
        if (weights->type == GGML_TYPE_Q8_0) {
            return multiply(WeightsQ8(weights->data, weights->nb[1]), activations, first, end);
        }
        if (weights->type == GGML_TYPE_Q6_K) {
            return multiply(WeightsQ6K(weights->data, weights->nb[1]), activations, first, end);
        }
#endif
        if (weights->type == GGML_TYPE_Q4_K) {
            return multiply(WeightsQ4K(weights->data, blocks), activations, first, end);
        }
        multiply(WeightsQ4(weights->data, blocks), activations, first, end);
    }

    template <class Weights>
    void multiply(const Weights & from, const Activations & activations, int first, int end) const {
        const ptrdiff_t step = op->nb[1] / sizeof(float);
        for (int panel = 0; panel < rows; panel += PANEL_ROWS) {
            const int panel_end = std::min(rows, panel + PANEL_ROWS);
            for (int column = first; column < end; column += UNIT) {
                const int column_end = std::min(end, column + UNIT);
                for (int row = panel; row < panel_end; row += TILE_ROWS) {
                    float * out = (float *) op->data + row * step;
                    const int count = std::min(TILE_ROWS, panel_end - row);
                    multiply_rows(from, column, column_end, activations, row, count, row == panel, out, step);
                }
            }
        }
    }
};

} // namespace

bool ggml_cpu_extra_compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    if (Product::fits(op) && Product(op).work_size() <= params->wsize) {
        Product(op).compute(params);
        return true;
    }
    return flotilla_ggml_extra_compute_forward(params, op);
}

bool ggml_cpu_extra_work_size(int threads, const ggml_tensor * op, size_t * size) {
    const bool is_known = flotilla_ggml_extra_work_size(threads, op, size);
    if (!Product::fits(op)) return is_known;
    *size = std::max(is_known ? *size : 0, Product(op).work_size());
    return true;
}

#else

bool ggml_cpu_extra_compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    return flotilla_ggml_extra_compute_forward(params, op);
}

bool ggml_cpu_extra_work_size(int threads, const ggml_tensor * op, size_t * size) {
    return flotilla_ggml_extra_work_size(threads, op, size);
}

#endif
