// Products of weights that are floats (F32, F16, BF16) and some rows, which stay as they are: ggml rounds rows
// to the type of the weights.
//
// A line of vectors runs along the depth. A result is the sum of its lanes, in an order that depends neither on the
// rows and columns beside it, for which ggml has one kernel for a single row and others for more, nor on the width of
// vectors.
#pragma once

#include "weights.h"

namespace {

/// Rows and columns of a tile: as many sums as the registers hold beside a column's weights.
#if defined(__AVX512F__)
constexpr int FLOAT_ROWS = 6, FLOAT_COLUMNS = 4;
#else
constexpr int FLOAT_ROWS = 2, FLOAT_COLUMNS = 3;
#endif

/// How WIDTH weights of each type become floats.
struct Floats32 {
    typedef float Element;
    static Vec load(const float * p) { return at(p); }
};

struct Floats16 {
    typedef ggml_fp16_t Element;
    static Vec load(const ggml_fp16_t * p) {
#if defined(__AVX512F__)
        return (Vec) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p));
#elif defined(__ARM_NEON)
        return (Vec) vcvt_f32_f16((float16x4_t) vld1_u16((const uint16_t *) p));
#else
        return (Vec) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p));
#endif
    }
};

struct BrainFloats16 {
    typedef ggml_bf16_t Element;
    static Vec load(const ggml_bf16_t * p) {
#if defined(__AVX512F__)
        return (Vec) _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)), 16);
#elif defined(__ARM_NEON)
        return (Vec) vshll_n_u16(vld1_u16((const uint16_t *) p), 16);
#else
        return (Vec) _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)), 16);
#endif
    }
};

/// A matrix of weights that are floats.
struct FloatMatrix {
    const char * data;
    /// Bytes from one column to the next, and the elements of a column.
    size_t stride;
    int depth;
};

/// A row, and where its results are stored: that of the column 0.
struct FloatRow {
    const float * x;
    float * out;
};

/// Adds a line of the depth.
template <class Type, int COUNT>
void add_float_line(Vec (&sums)[COUNT][FLOAT_COLUMNS][PARTS], const float * const (&x)[COUNT],
                    const typename Type::Element * const (&w)[FLOAT_COLUMNS], int d) {
    for (int part = 0; part < PARTS; part++, d += WIDTH) {
        Vec of_columns[FLOAT_COLUMNS];
        for (int c = 0; c < FLOAT_COLUMNS; c++) of_columns[c] = Type::load(w[c] + d);
        for (int r = 0; r < COUNT; r++) {
            const Vec of_row = at(x[r] + d);
            for (int c = 0; c < FLOAT_COLUMNS; c++) sums[r][c][part] += of_row * of_columns[c];
        }
    }
}

/// What is left of the depth, less than a line.
template <class Type, int COUNT>
void add_float_tail(Vec (&sums)[COUNT][FLOAT_COLUMNS][PARTS], const float * (&x)[COUNT],
                    const typename Type::Element * (&w)[FLOAT_COLUMNS], int d, int depth) {
    typedef typename Type::Element Element;
    float of_rows[COUNT][LINE] = {};
    Element of_columns[FLOAT_COLUMNS][LINE] = {};
    for (int r = 0; r < COUNT; r++) {
        memcpy(of_rows[r], x[r] + d, sizeof(float) * (depth - d));
        x[r] = of_rows[r];
    }
    for (int c = 0; c < FLOAT_COLUMNS; c++) {
        memcpy(of_columns[c], w[c] + d, sizeof(Element) * (depth - d));
        w[c] = of_columns[c];
    }
    add_float_line<Type>(sums, x, w, 0);
}

/// A tile of COUNT rows and of the columns `column..end`, at most FLOAT_COLUMNS.
template <class Type, int COUNT>
void multiply_float_tile(const FloatMatrix & matrix, const FloatRow * rows, int column, int end) {
    typedef typename Type::Element Element;
    const float * x[COUNT];
    const Element * w[FLOAT_COLUMNS];
    for (int r = 0; r < COUNT; r++) x[r] = rows[r].x;
    // The last one again for those that are missing, and not stored.
    for (int c = 0; c < FLOAT_COLUMNS; c++) {
        w[c] = (const Element *) (matrix.data + std::min(column + c, end - 1) * matrix.stride);
    }
    Vec sums[COUNT][FLOAT_COLUMNS][PARTS] = {};
    int d = 0;
    for (; d + LINE <= matrix.depth; d += LINE) add_float_line<Type>(sums, x, w, d);
    if (d < matrix.depth) add_float_tail<Type>(sums, x, w, d, matrix.depth);
    for (int r = 0; r < COUNT; r++) {
        for (int c = 0; c < FLOAT_COLUMNS && column + c < end; c++) rows[r].out[column + c] = sum_of(sums[r][c]);
    }
}

template <class Type, int COUNT = FLOAT_ROWS>
void multiply_float_rows(const FloatMatrix & matrix, const FloatRow * rows, int count, int column, int end) {
    if constexpr (COUNT > 1) {
        if (count < COUNT) return multiply_float_rows<Type, COUNT - 1>(matrix, rows, count, column, end);
    }
    multiply_float_tile<Type, COUNT>(matrix, rows, column, end);
}

/// The rows `row..row_end` times the columns `first..end`, in tiles whose numbers of rows differ by one at most.
/// `row_at(i)` is the row i.
template <class Type, class RowAt>
void multiply_float_rectangle(const FloatMatrix & matrix, int row, int row_end, int first, int end, RowAt row_at) {
    for (int tiles = (row_end - row + FLOAT_ROWS - 1) / FLOAT_ROWS; tiles > 0; tiles--) {
        const int count = (row_end - row) / tiles;
        FloatRow rows[FLOAT_ROWS];
        for (int r = 0; r < count; r++) rows[r] = row_at(row + r);
        for (int column = first; column < end; column += FLOAT_COLUMNS) {
            multiply_float_rows<Type>(matrix, rows, count, column, end);
        }
        row += count;
    }
}

/// True for weights that are floats and can be read.
inline bool are_floats(const ggml_tensor * weights) {
    const ggml_type type = weights->type;
    return (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16)
        && weights->nb[0] == ggml_type_size(type) && (!weights->buffer || ggml_backend_buffer_is_host(weights->buffer));
}

/// Calls `use` with the kind of floats.
template <class Use>
void with_floats(ggml_type type, Use use) {
    switch (type) {
        case GGML_TYPE_F16: return use(Floats16());
        case GGML_TYPE_BF16: return use(BrainFloats16());
        default: return use(Floats32());
    }
}

/// A product, and how it is cut into pieces. Rows are those of a plane of weights, which may be in several planes of
/// the input if there is only one.
class FloatProduct {
public:
    explicit FloatProduct(const ggml_tensor * op)
        : op(op), weights(op->src[0]), input(op->src[1]), planes((int) weights->ne[2]),
          rows((int) (input->ne[1] * input->ne[2]) / planes), columns((int) weights->ne[1]) {}

    /// True if it is ours.
    static bool fits(const ggml_tensor * op) {
        if (op->op != GGML_OP_MUL_MAT) return false;
        const ggml_tensor * weights = op->src[0], * input = op->src[1];
        const bool is_matrix = weights->ne[2] == 1 && weights->ne[3] == 1;
        return (is_matrix || has_planes(weights, input)) && are_floats(weights) && has_rows(input, op);
    }

    bool compute(const ggml_compute_params * params) const {
        const int ith = params->ith, nth = params->nth;
        if (ith == 0) ggml_threadpool_chunk_set(params->threadpool, nth);
        ggml_barrier(params->threadpool);
        const int across = (columns + COLUMNS - 1) / COLUMNS, pieces = across * ((rows + ROWS - 1) / ROWS);
        for (int piece = ith; piece < planes * pieces; piece = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            multiply(piece / pieces, piece % pieces / across * ROWS, piece % across * COLUMNS);
        }
        return true;
    }

private:
    const ggml_tensor * op, * weights, * input;
    const int planes, rows, columns;

    /// Columns and rows that are handed out together. Columns stay in the second cache for all these rows.
    static constexpr int COLUMNS = 4 * FLOAT_COLUMNS, ROWS = 96;

    FloatRow row_at(int row) const {
        const int64_t in_plane = input->ne[1];
        const char * const plane = (const char *) input->data + row / in_plane * input->nb[2];
        return {(const float *) (plane + row % in_plane * input->nb[1]), (float *) ((char *) op->data + row * op->nb[1])};
    }

    void multiply(int plane, int row, int first) const {
        const FloatMatrix matrix = {(const char *) weights->data + plane * weights->nb[2], weights->nb[1],
                                    (int) weights->ne[0]};
        const int end = std::min(columns, first + COLUMNS), begin = plane * rows;
        with_floats(weights->type, [&](auto kind) {
            multiply_float_rectangle<decltype(kind)>(matrix, begin + row, begin + std::min(rows, row + ROWS), first, end,
                                                     [&](int i) { return row_at(i); });
        });
    }
};

} // namespace
