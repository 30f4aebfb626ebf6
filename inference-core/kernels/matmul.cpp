// Products of weights and activations: takes the place of ggml's for the types below, in
// the layouts that ggml's weights already have in memory.
//
// What is different here:
// - Activations of quantized weights are quantized once, with what all columns need of them: the scale of each block and
//   its sum.
// - Weights stay unsigned, so that a block is a chain of multiply-add instructions without the work
//   that signs would need; the sum of the activations corrects for that.
// - Weights are unpacked once for up to eight rows, also for two or three, for which ggml reads all
//   weights again, and once for many rows.
// - Weights are prefetched in the order of memory, which is not the order in which they are read.
// - What a row gets does not depend on the rows beside it, so that a seed means the same response on a busy
//   node.
// - The rows of an expert are computed together, like those of a matrix; ggml computes interleaved weights
//   of experts row by row.
// - Weights that are floats are multiplied with activations as they are (floats.h).
//
// - Each of several matrices is multiplied with rows of its own in the same way (planes.h).
//
// Everything else goes to ggml: other types and layouts, other batches of matrices.

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ggml-backend.h"
#include "ggml-cpu-impl.h"
#include "ggml.h"

extern "C" {
// What ggml calls, and ggml's own, renamed by kernel-variants.cmake.
bool ggml_cpu_extra_compute_forward(ggml_compute_params * params, ggml_tensor * op);
bool ggml_cpu_extra_work_size(int threads, const ggml_tensor * op, size_t * size);
bool flotilla_ggml_extra_compute_forward(ggml_compute_params * params, ggml_tensor * op);
bool flotilla_ggml_extra_work_size(int threads, const ggml_tensor * op, size_t * size);
// What ggml asks when it chooses layouts: ../memory/layouts.h.
bool flotilla_reads_planes(const ggml_tensor * op);
bool flotilla_reads_groups(const ggml_tensor * weights);
bool flotilla_reads_file(const ggml_tensor * weights);
}

#if defined(__AMX_INT8__)
// In place of ggml's own layout for AMX, which its device would choose first: see docs/decisions/products.md.
ggml_backend_buffer_type_t flotilla_no_amx_buffer_type() { return nullptr; }
#endif

#if defined(__AVX2__) || defined(__ARM_NEON)

#include "experts.h"
#include "floats.h"
#include "planes.h"

namespace {

/// True unless ggml computes everything: for comparison (`flotilla-agent bench`), and should ours ever be
/// wrong on some machine.
bool is_on() {
    static const char * const wanted = getenv("FLOTILLA_MATMUL");
    static const bool leave = wanted && strcmp(wanted, "llama.cpp") == 0;
    return !leave;
}

/// Computes an operation if it is ours. Returns false if not.
bool compute(const ggml_compute_params * params, const ggml_tensor * op) {
    if (MatrixProduct::fits(op)) return MatrixProduct(op).compute(params);
    if (FloatProduct::fits(op)) return FloatProduct(op).compute(params);
    if (PlanesProduct::fits(op)) return PlanesProduct(op).compute(params);
    return ExpertProduct::fits(op) && ExpertProduct(op).compute(params);
}

/// Bytes of scratch that an operation needs if it is ours; 0 if not.
size_t work_size(const ggml_tensor * op, int threads) {
    if (MatrixProduct::fits(op)) return MatrixProduct(op).work_size();
    if (PlanesProduct::fits(op)) return PlanesProduct(op).work_size(threads);
    return ExpertProduct::fits(op) ? ExpertProduct(op).work_size(threads) : 0;
}

} // namespace

bool ggml_cpu_extra_compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    return (is_on() && compute(params, op)) || flotilla_ggml_extra_compute_forward(params, op);
}

bool ggml_cpu_extra_work_size(int threads, const ggml_tensor * op, size_t * size) {
    const bool is_known = flotilla_ggml_extra_work_size(threads, op, size);
    const size_t ours = is_on() ? work_size(op, threads) : 0;
    if (ours == 0) return is_known;
    *size = std::max(is_known ? *size : 0, ours);
    return true;
}

bool flotilla_reads_planes(const ggml_tensor * op) {
    return is_on() && op->op == GGML_OP_MUL_MAT && has_planes(op->src[0], op->src[1]) && reads(op->src[0]) == Reads::Groups;
}
bool flotilla_reads_groups(const ggml_tensor * weights) { return is_on() && reads(weights) == Reads::Groups; }
bool flotilla_reads_file(const ggml_tensor * weights) { return is_on() && reads(weights) == Reads::File; }

#else

bool ggml_cpu_extra_compute_forward(ggml_compute_params * params, ggml_tensor * op) {
    return flotilla_ggml_extra_compute_forward(params, op);
}

bool ggml_cpu_extra_work_size(int threads, const ggml_tensor * op, size_t * size) {
    return flotilla_ggml_extra_work_size(threads, op, size);
}

bool flotilla_reads_planes(const ggml_tensor *) { return false; }

#endif
