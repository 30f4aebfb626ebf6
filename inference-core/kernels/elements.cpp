// Functions of single elements that need powers of e, and sums along rows: takes the place of ggml's.
//
// ggml writes them anew for vectors of each width, with other roundings and another order of additions, so that a
// response that began on one CPU continued differently on another. Here all vectors compute the same, and what is
// left at the end of a row does as well. Products are rounded before they are added: this file and ggml's
// operations are compiled so (kernel-variants.cmake), because it is up to the compiler which of two products it fuses.

#include <algorithm>
#include <cstring>

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "vec.h"
#include "vectors.h"

namespace {

inline Vec silu(Vec x) { return x / (exp(-x) + 1.0f); }

/// Calls `work` with vectors of a row of `n`, one after the other: with their place, and with how many of their
/// lanes are in the row.
template <class Work>
inline void for_vectors(int n, const Work & work) {
    for (int i = 0; i < n; i += WIDTH) work(i, std::min(WIDTH, n - i));
}

inline Vec load(const float * x, int lanes, float rest = 0.0f) {
    if (lanes == WIDTH) return at(x);
    Vec some = all(rest);
    memcpy(&some, x, lanes * sizeof(float));
    return some;
}

inline void store(float * y, Vec x, int lanes) {
    if (lanes == WIDTH) at(y) = x;
    else memcpy(y, &x, lanes * sizeof(float));
}

/// Adds up the numbers that `next(place, lanes)` has for the vectors of a row of `n`, a line at a time.
template <class Next>
inline double sum_row(int n, const Next & next) {
    double sum = 0.0;
    for (int i = 0; i < n; i += LINE) {
        Vec line[PARTS] = {};
        for (int part = 0, place = i; part < PARTS && place < n; part++, place += WIDTH) {
            line[part] = next(place, std::min(WIDTH, n - place));
        }
        sum += sum_of(line);
    }
    return sum;
}

} // namespace

extern "C" {

void ggml_vec_silu_f32(const int n, float * y, const float * x) {
    for_vectors(n, [&](int i, int lanes) { store(y + i, silu(load(x + i, lanes)), lanes); });
}

void ggml_vec_swiglu_f32(const int n, float * y, const float * x, const float * g) {
    for_vectors(n, [&](int i, int lanes) { store(y + i, silu(load(x + i, lanes)) * load(g + i, lanes), lanes); });
}

/// Subtracts the mean; returns the variance.
ggml_float ggml_vec_cvar_f32(const int n, float * y, const float * x, const float mean) {
    const double sum = sum_row(n, [&](int i, int lanes) {
        const Vec off = load(x + i, lanes, mean) - mean;
        store(y + i, off, lanes);
        return off * off;
    });
    return sum / n;
}

/// e^(x - max); returns the sum.
ggml_float ggml_vec_soft_max_f32(const int n, float * y, const float * x, float max) {
    return sum_row(n, [&](int i, int lanes) {
        const Vec weights = exp(load(x + i, lanes, -INFINITY) - max);
        store(y + i, weights, lanes);
        return load((const float *) &weights, lanes);
    });
}

}
