// Which types and layouts of weights have kernels.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "repack.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "direct.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "joined.h"
#include "mxfp4.h"
#include "panel.h"
#include "q3_k.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q4_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "q6_k.h"
#include "q8_0.h"
#include "wide_panel.h"

namespace {

/// Pieces of columns for each thread, so that none waits long for another.
constexpr int PIECES = 4;

#if defined(__AVX512VNNI__)
/// Rows from which on panels are faster than the kernels for few rows.
constexpr int MANY_ROWS = TILE_ROWS + 1;

/// True if `rows` rows are computed as panels.
inline bool are_panels(int rows) {
#if defined(__AMX_INT8__)
    if (!has_tiles()) return false;
#endif
    return rows >= MANY_ROWS;
}

#else
inline bool are_panels(int) { return false; }
#endif

/// How `rows` rows are packed for a matrix.
inline Packing packing_for([[maybe_unused]] const ggml_tensor * weights, int rows) {
    if (!are_panels(rows)) return BY_ROW;
#if defined(__AMX_INT8__)
    if (weights->type == GGML_TYPE_Q8_0 && rows <= DIRECT_ROWS_MAX) return Packing::Fours;
#endif
    return Packing::Rows;
}

/// How the kernels read a type: groups of columns interleaved, or as it is in the file.
enum class Reads { Nothing, Groups, File };

inline Reads reads(const ggml_tensor * weights) {
    if (weights->ne[1] % GROUP != 0) return Reads::Nothing;
    switch (weights->type) {
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_MXFP4:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_K: return Reads::Groups;
        case GGML_TYPE_IQ4_XS:
        case GGML_TYPE_Q3_K:
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_Q8_0: return Reads::File;
        default: return Reads::Nothing;
    }
}

/// True for types in layouts that the kernels read.
inline bool has_kernel(const ggml_tensor * weights) {
    if (!weights->buffer) return false;
    switch (reads(weights)) {
        case Reads::Groups: return weights->buffer->buft == ggml_backend_cpu_repack_buffer_type();
        case Reads::File: return ggml_backend_buffer_is_host(weights->buffer);
        default: return false;
    }
}

/// True if each plane of weights, which are no result of an operation, has a plane of rows.
inline bool has_planes(const ggml_tensor * weights, const ggml_tensor * input) {
    return weights->op == GGML_OP_NONE && weights->ne[2] > 1 && weights->ne[2] == input->ne[2] && weights->ne[3] == 1;
}

/// True if the kernels read rows of this tensor, in any planes, and write to that one, one after the other.
inline bool has_rows(const ggml_tensor * input, const ggml_tensor * output) {
    return input->type == GGML_TYPE_F32 && input->nb[0] == sizeof(float) && input->ne[3] == 1
        && output->nb[0] == sizeof(float) && output->nb[2] == output->nb[1] * output->ne[1];
}

/// ROWS rows times the columns `first..end`, whole groups.
template <int ROWS, class Weights>
void multiply_some(const Weights & weights, int first, int end, const Activations & activations,
                   const TileRows & tile, bool is_first) {
#if defined(__AVX512VNNI__)
    multiply_joined_columns<ROWS>(weights, first, end, activations, tile, is_first);
#else
    multiply_wide_columns<ROWS>(weights, first, end, activations, tile, is_first);
#endif
}

/// The same for `count` rows, at most TILE_ROWS.
template <class Weights>
void multiply_rows(const Weights & weights, int first, int end, const Activations & activations,
                   const TileRows & tile, int count, bool is_first) {
    static constexpr decltype(&multiply_some<1, Weights>) of_count[TILE_ROWS] = {
        multiply_some<1, Weights>, multiply_some<2, Weights>, multiply_some<3, Weights>, multiply_some<4, Weights>,
        multiply_some<5, Weights>, multiply_some<6, Weights>, multiply_some<7, Weights>, multiply_some<8, Weights>,
    };
    of_count[count - 1](weights, first, end, activations, tile, is_first);
}

/// Calls `use` with the weights of a matrix of `tensor`, which begins at `data`.
template <class Use>
void with_weights(const ggml_tensor * tensor, const void * data, Use use) {
    const int blocks = (int) tensor->ne[0] / BLOCK;
    switch (tensor->type) {
        case GGML_TYPE_Q4_K: return use(WeightsQ4K(data, blocks));
        case GGML_TYPE_IQ4_NL: return use(WeightsIQ4(data, blocks));
        case GGML_TYPE_MXFP4: return use(WeightsMxfp4(data, blocks));
        case GGML_TYPE_IQ4_XS: return use(WeightsIQ4XS(data, tensor->nb[1]));
        case GGML_TYPE_Q3_K: return use(WeightsQ3K(data, tensor->nb[1]));
        case GGML_TYPE_Q5_K: return use(WeightsQ5K(data, tensor->nb[1]));
        case GGML_TYPE_Q6_K: return use(WeightsQ6K(data, tensor->nb[1]));
        case GGML_TYPE_Q4_1: return use(WeightsQ41(data, tensor->nb[1]));
        case GGML_TYPE_Q5_1: return use(WeightsQ51(data, tensor->nb[1]));
        case GGML_TYPE_Q5_0: return use(WeightsQ5(data, tensor->nb[1]));
        case GGML_TYPE_Q8_0: return use(WeightsQ8(data, tensor->nb[1]));
        default: return use(WeightsQ4(data, blocks));
    }
}

/// The offset that the kernels give the weights of a tensor.
inline Offset offset_of(const ggml_tensor * tensor) {
    Offset offset = {};
    with_weights(tensor, nullptr, [&](const auto & weights) {
        typedef std::decay_t<decltype(weights)> Weights;
        offset = {Weights::OFFSET, Weights::HAS_HALVES};
    });
    return offset;
}

/// Quantizes a thread's share of the rows of `input`, which are numbered across its planes: some blocks of all
/// rows that are packed together, because their scales lie side by side, and threads that write to one line of a
/// cache wait for each other.
inline void quantize_share(const ggml_compute_params * params, const ggml_tensor * input, Activations & activations) {
    const int64_t blocks = activations.blocks, in_plane = input->ne[1], rows = in_plane * input->ne[2];
    const int64_t step = together(activations.packing);
    const int64_t all = (rows + step - 1) / step * blocks, ith = params->ith, nth = params->nth;
    const int64_t end = all * (ith + 1) / nth;
    for (int64_t i = all * ith / nth, next; i < end; i = next) {
        next = std::min(end, (i / blocks + 1) * blocks);
        const int64_t first = i / blocks * step, begin = i % blocks, past = begin + next - i;
        for (int64_t row = first; row < first + step; row++) {
            if (row >= rows) {
                activations.clear((int) row, (int) begin, (int) past);
                continue;
            }
            const char * plane = (const char *) input->data + row / in_plane * input->nb[2];
            const float * from = (const float *) (plane + row % in_plane * input->nb[1]);
            for (int64_t block = begin; block < past; block++) {
                activations.quantize(from + block * BLOCK, (int) row, (int) block);
            }
        }
    }
}

#if defined(__AVX512VNNI__)

/// As multiply_rectangle, in panels. `scratch` has room for a panel of rows, or is null if `activations`
/// are packed already, in the order of the rows.
template <class Weights, class RowAt>
void multiply_panels(const Weights & weights, const Activations & activations, int rows, int first, int end,
                    RowAt row_at, void * scratch) {
    const int step = panel_rows(activations.depth);
    for (int panel = 0; panel < rows; panel += step) {
        const int count = std::min(step, rows - panel);
        float * out[PANEL_ROWS_MAX];
        Activations copies(scratch, step, activations.depth, activations.offset, Packing::Rows);
        for (int i = 0; i < count; i++) {
            TileRows tile;
            row_at(panel + i, tile, 0);
            out[i] = tile.out[0];
            if (scratch) copies.copy(activations, tile.rows[0], i);
        }
        if (scratch) copies.clear_after(count);
        multiply_panel(weights, first, end, scratch ? copies : activations, scratch ? 0 : panel, count, out);
    }
}

/// Bytes of scratch that a thread needs to pack rows.
inline size_t packing_bytes(int rows, int depth) {
    return are_panels(rows) ? Activations::bytes(panel_rows(depth), depth, Packing::Rows) : 0;
}

#else

inline size_t packing_bytes(int, int) { return 0; }

#endif

/// Rows from which on unpacking weights once is faster than once for eight rows, without AVX-512. Measured with AVX2;
/// on ARM, instructions were counted.
template <class Weights>
constexpr int many_rows() {
#if defined(__AVX2__)
    if (std::is_same<Weights, WeightsQ3K>::value) return 2;
    if (std::is_same<Weights, WeightsQ5K>::value) return 6;
#endif
    return TILE_ROWS + 1;
}

/// `rows` rows times the columns `first..end`; `row_at(i, tile, place)` puts the row i at a place of a tile.
template <class Weights, class RowAt>
void multiply_rectangle(const Weights & weights, const Activations & activations, int rows, int first, int end,
                        RowAt row_at, void * scratch) {
#if defined(__AMX_INT8__)
    if constexpr (std::is_same<Weights, WeightsQ8>::value) {
        if (activations.packing == Packing::Fours) {
            float * out[DIRECT_ROWS_MAX];
            for (int row = 0; row < rows; row++) {
                TileRows tile;
                row_at(row, tile, 0);
                out[row] = tile.out[0];
            }
            return multiply_direct(weights, first, end, activations, rows, out);
        }
    }
#endif
#if defined(__AVX512VNNI__)
    if (are_panels(rows)) return multiply_panels(weights, activations, rows, first, end, row_at, scratch);
#endif
    for (int panel = 0; panel < rows; panel += PANEL_ROWS) {
        const int panel_end = std::min(rows, panel + PANEL_ROWS);
        TileRows tiles[PANEL_ROWS / TILE_ROWS];
        for (int row = panel; row < panel_end; row++) {
            row_at(row, tiles[(row - panel) / TILE_ROWS], (row - panel) % TILE_ROWS);
        }
        for (int column = first; column < end; column += UNIT) {
            const int column_end = std::min(end, column + UNIT);
#if !defined(__AVX512VNNI__)
            if (panel_end - panel >= many_rows<Weights>()) {
                multiply_unit(weights, column, column_end, activations, tiles, panel_end - panel);
                continue;
            }
#endif
            for (int row = panel; row < panel_end; row += TILE_ROWS) {
                const TileRows & tile = tiles[(row - panel) / TILE_ROWS];
                const int count = std::min(TILE_ROWS, panel_end - row);
                multiply_rows(weights, column, column_end, activations, tile, count, row == panel);
            }
        }
    }
}

} // namespace
