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

/// A product, and how it is cut into pieces.
class FloatProduct {
public:
    explicit FloatProduct(const ggml_tensor * op)
        : op(op), weights(op->src[0]), input(op->src[1]), rows((int) (input->ne[1] * input->ne[2])), columns((int) weights->ne[1]),
          depth((int) weights->ne[0]) {}

    /// True if it is ours.
    static bool fits(const ggml_tensor * op) {
        if (op->op != GGML_OP_MUL_MAT) return false;
        const ggml_tensor * weights = op->src[0], * input = op->src[1];
        const ggml_type type = weights->type;
        const bool are_floats = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
        const bool is_matrix = weights->ne[2] == 1 && weights->ne[3] == 1 && weights->nb[0] == ggml_type_size(type);
        return are_floats && is_matrix && has_rows(input, op)
            && (!weights->buffer || ggml_backend_buffer_is_host(weights->buffer));
    }

    bool compute(const ggml_compute_params * params) const {
        switch (weights->type) {
            case GGML_TYPE_F16: return compute_as<Floats16>(params);
            case GGML_TYPE_BF16: return compute_as<BrainFloats16>(params);
            default: return compute_as<Floats32>(params);
        }
    }

private:
    const ggml_tensor * op, * weights, * input;
    const int rows, columns, depth;

    /// Columns and rows that are handed out together. Columns stay in the second cache for all these rows.
    static constexpr int COLUMNS = 4 * FLOAT_COLUMNS, ROWS = 96;

    template <class Type>
    bool compute_as(const ggml_compute_params * params) const {
        const int ith = params->ith, nth = params->nth;
        if (ith == 0) ggml_threadpool_chunk_set(params->threadpool, nth);
        ggml_barrier(params->threadpool);
        const int across = (columns + COLUMNS - 1) / COLUMNS, pieces = across * ((rows + ROWS - 1) / ROWS);
        for (int piece = ith; piece < pieces; piece = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int first = piece % across * COLUMNS, row = piece / across * ROWS;
            multiply_piece<Type>(row, std::min(rows, row + ROWS), first, std::min(columns, first + COLUMNS));
        }
        return true;
    }

    /// In tiles whose numbers of rows differ by one at most.
    template <class Type>
    void multiply_piece(int row, int row_end, int first, int end) const {
        for (int tiles = (row_end - row + FLOAT_ROWS - 1) / FLOAT_ROWS; tiles > 0; tiles--) {
            const int count = (row_end - row) / tiles;
            for (int column = first; column < end; column += FLOAT_COLUMNS) multiply_some<Type>(row, count, column, end);
            row += count;
        }
    }

    template <class Type, int COUNT = FLOAT_ROWS>
    void multiply_some(int row, int count, int column, int end) const {
        if constexpr (COUNT > 1) {
            if (count < COUNT) return multiply_some<Type, COUNT - 1>(row, count, column, end);
        }
        multiply<Type, COUNT>(row, column, end);
    }

    const char * weights_of(int column) const { return (const char *) weights->data + column * weights->nb[1]; }
    const char * row_at(int row) const {
        const int64_t in_plane = input->ne[1];
        return (const char *) input->data + row / in_plane * input->nb[2] + row % in_plane * input->nb[1];
    }

    /// A tile of COUNT rows and of the columns before `end`.
    template <class Type, int COUNT>
    void multiply(int row, int column, int end) const {
        typedef typename Type::Element Element;
        const float * x[COUNT];
        const Element * w[FLOAT_COLUMNS];
        for (int r = 0; r < COUNT; r++) x[r] = (const float *) row_at(row + r);
        // The last one again for those that are missing, and not stored.
        for (int c = 0; c < FLOAT_COLUMNS; c++) w[c] = (const Element *) weights_of(std::min(column + c, end - 1));
        Vec sums[COUNT][FLOAT_COLUMNS][PARTS] = {};
        int d = 0;
        for (; d + LINE <= depth; d += LINE) add<Type>(sums, x, w, d);
        if (d < depth) add_tail<Type>(sums, x, w, d);
        for (int r = 0; r < COUNT; r++) {
            float * const out = (float *) ((char *) op->data + (row + r) * op->nb[1]) + column;
            for (int c = 0; c < FLOAT_COLUMNS && column + c < end; c++) out[c] = sum_of(sums[r][c]);
        }
    }

    template <class Type, int COUNT>
    static void add(Vec (&sums)[COUNT][FLOAT_COLUMNS][PARTS], const float * const (&x)[COUNT],
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
    void add_tail(Vec (&sums)[COUNT][FLOAT_COLUMNS][PARTS], const float * (&x)[COUNT],
                  const typename Type::Element * (&w)[FLOAT_COLUMNS], int d) const {
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
        add<Type>(sums, x, w, 0);
    }
};

} // namespace
