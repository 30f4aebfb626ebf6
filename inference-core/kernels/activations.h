// Activations, quantized to 8 bits in blocks of 32: as ggml's Q8_0, with a scale that is not rounded
// to half precision, and with the sums of both halves of each block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace {

/// Elements of a block.
constexpr int BLOCK = 32;

typedef int8_t Bytes __attribute__((vector_size(WIDTH), aligned(1), may_alias));

/// Sums of the first and of the second half of a block.
struct HalfSums {
    int32_t first, second;

    int32_t both() const { return first + second; }
};

/// All rows of a product, in memory of the caller's.
class Activations {
public:
    Activations(void * memory, int rows, int depth)
        : depth(depth), blocks(depth / BLOCK), values((int8_t *) memory),
          scales((float *) (values + (ptrdiff_t) rows * depth)),
          sums((HalfSums *) (scales + (ptrdiff_t) rows * blocks)),
          scaled_sums((float *) (sums + (ptrdiff_t) rows * blocks)) {}

    /// Bytes of memory that they take.
    static size_t bytes(int rows, int depth) {
        return (size_t) rows * (depth + depth / BLOCK * (2 * sizeof(float) + sizeof(HalfSums)));
    }

    /// Elements, and blocks, of a row.
    const int depth, blocks;

    const int8_t * row(int row) const { return values + (ptrdiff_t) row * depth; }
    const float * row_scales(int row) const { return scales + (ptrdiff_t) row * blocks; }
    const HalfSums * row_sums(int row) const { return sums + (ptrdiff_t) row * blocks; }
    /// The sum of each block times its scale.
    const float * row_scaled_sums(int row) const { return scaled_sums + (ptrdiff_t) row * blocks; }

    void quantize(const float * x, int row, int block) {
        Vec peaks = Vec{};
        for (int i = 0; i < BLOCK; i += WIDTH) {
            const Vec v = at(x + i);
            const Vec size = v < 0.0f ? -v : v;
            peaks = size > peaks ? size : peaks;
        }
        float peak = 0.0f;
        for (int i = 0; i < WIDTH; i++) peak = peaks[i] > peak ? peaks[i] : peak;
        const float scale = peak / 127.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        int8_t * to = values + (ptrdiff_t) row * depth + block * BLOCK;
        for (int i = 0; i < BLOCK; i += WIDTH) {
            const Ints whole = __builtin_convertvector(round(at(x + i) * inverse), Ints);
            *(Bytes *) (to + i) = __builtin_convertvector(whole, Bytes);
        }
        HalfSums both = {0, 0};
        for (int i = 0; i < BLOCK / 2; i++) {
            both.first += to[i];
            both.second += to[BLOCK / 2 + i];
        }
        scales[(ptrdiff_t) row * blocks + block] = scale;
        sums[(ptrdiff_t) row * blocks + block] = both;
        scaled_sums[(ptrdiff_t) row * blocks + block] = scale * both.both();
    }

private:
    int8_t * values;
    float * scales;
    HalfSums * sums;
    float * scaled_sums;
};

} // namespace
