// The first rows of a model's output matrix, for contexts that draft: tokens that texts rarely use come last in most
// vocabularies, and the matrix is a large part of a small model. The logits of all others are zero.
#pragma once

#include <cstdint>
#include <cstring>

#include "ggml-backend.h"
#include "ggml.h"

namespace flotilla {

/// Rows that batches of this thread compute; 0 is all. A context plans its memory for what this was when it reserved it.
inline thread_local int64_t output_rows = 0;

inline bool is_output(const char * name) {
    const char * const of_head = strstr(name, ".nextn.shared_head_head.weight");
    return of_head || strcmp(name, "output.weight") == 0 || strcmp(name, "token_embd.weight") == 0;
}

/// The rows of a matrix that are multiplied.
inline ggml_tensor * used_rows(ggml_context * context, ggml_tensor * matrix) {
    if (output_rows == 0 || output_rows >= matrix->ne[1] || !is_output(matrix->name)) return matrix;
    ggml_tensor * const rows = ggml_view_2d(context, matrix, matrix->ne[0], output_rows, matrix->nb[1], 0);
    // Kernels that have repacked the matrix recognize it by its buffer.
    if (matrix->buffer) ggml_backend_view_init(rows);
    return rows;
}

/// A product with used_rows(matrix), as wide as with all of them.
inline ggml_tensor * with_all_rows(ggml_context * context, ggml_tensor * product, const ggml_tensor * matrix) {
    const int64_t missing = matrix->ne[1] - product->ne[0];
    return missing > 0 ? ggml_pad(context, product, (int) missing, 0, 0, 0) : product;
}

} // namespace flotilla
