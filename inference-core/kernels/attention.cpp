// Attention of many sequences over one pool of cells: takes the place of ggml's
// flash attention, which computes one query row of one head at a time below 64 rows.
//
// What is different here:
// - The query heads that share a key head are computed together, and so are the rows of
//   one sequence. Each (row, head) is a lane of a vector; where they are few, each cell is.
// - Only the cells that a row may see are read. They are gathered into tiles, so sequences
//   whose cells lie interleaved in the pool cost no more than sequences that lie apart.
// - They are read in the order of their positions, so that a row's sums are the same to the last
//   bit wherever the pool had room for its sequence.
// - Keys and values are turned into 32-bit floats once for all lanes.
// - What a row gets does not depend on the rows beside it, so that a seed means the same response
//   on a busy node.
//
// The softmax over tiles is the online one (Milakov and Gimelshein, 2018; Dao et al.,
// FlashAttention, 2022). What it does not do (rows of several pools at once) goes to ggml.

#include <cstdlib>
#include <cstring>

#include "cell_lanes.h"
#include "row_lanes.h"

extern "C" {
// What ggml calls, and ggml's own, renamed by kernel-variants.cmake.
void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);
void flotilla_ggml_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);
}

namespace {

/// False to leave everything to ggml: for comparison (`flotilla-agent bench`), and should ours ever be wrong on
/// some machine.
bool is_on() {
    static const char * const wanted = getenv("FLOTILLA_ATTENTION");
    static const bool leave = wanted && strcmp(wanted, "llama.cpp") == 0;
    return !leave;
}

void compute_group(const Attention & op, float * scratch, int key_head, int first, int end) {
    // Memory for them is kept from one group to the next.
    static thread_local Cells cells;
    cells.find(op, first, end);
    if (CellLanes::fits(op, end - first)) {
        CellLanes(op, scratch, key_head, first, end).compute(cells);
    } else {
        RowLanes(op, scratch, key_head, first, end).compute(cells);
    }
}

} // namespace

void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) {
    Attention op(dst);
    const int nth = params->nth;
    if (!is_on() || !op.fits(params)) {
        flotilla_ggml_flash_attn_ext(params, dst);
        return;
    }
    // Pieces of consecutive rows, four for each thread, their lanes in whole vectors.
    const int share = (op.rows * op.key_heads + 4 * nth - 1) / (4 * nth);
    const int lanes = (share * op.shared + WIDTH - 1) / WIDTH * WIDTH;
    const int piece = std::max(1, std::min(lanes, op.lanes_max) / op.shared);
    const int pieces = (op.rows + piece - 1) / piece;
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, nth);
    }
    ggml_barrier(params->threadpool);
    float * const scratch = Attention::scratch(params);
    for (int i = params->ith; i < pieces * op.key_heads; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int first = i % pieces * piece, end = std::min(op.rows, first + piece);
        for (int row = first, next; row < end; row = next) {
            next = op.group_end(row, end);
            compute_group(op, scratch, i / pieces, row, next);
        }
    }
}
