// Short convolutions along the tokens of a sequence (Mamba, LFM2, gated delta nets), and putting together what they
// run over: takes the place of ggml's.
//
// Rows of channels run along tokens there, while all else has rows of tokens. ggml goes from one to the other
// number by number, and lets one thread do it if there is one sequence. Ours transposes squares. It adds taps in the
// same order for one token and for many.

#include <cmath>
#include <cstring>

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "vectors.h"

extern "C" {
// What ggml calls, and ggml's own, renamed by kernel-variants.cmake.
void ggml_compute_forward_concat(const ggml_compute_params * params, ggml_tensor * dst);
void ggml_compute_forward_ssm_conv(const ggml_compute_params * params, ggml_tensor * dst);
void flotilla_ggml_concat(const ggml_compute_params * params, ggml_tensor * dst);
void flotilla_ggml_ssm_conv(const ggml_compute_params * params, ggml_tensor * dst);
}

namespace {

/// Calls `work` with each sequence and with the first of WIDTH channels, for a thread's share of all channels.
template <class Work>
void for_channels(const ggml_compute_params * params, int channels, int seqs, const Work & work) {
    const int groups = channels / WIDTH;
    const int first = groups * params->ith / params->nth, end = groups * (params->ith + 1) / params->nth;
    for (int seq = 0; seq < seqs; seq++) {
        for (int group = first; group < end; group++) work(seq, group * WIDTH);
    }
}

/// Rows of channels, and behind each of them what the columns of a matrix of tokens hold.
struct Concat {
    const ggml_tensor * before, * now;
    ggml_tensor * dst;

    explicit Concat(ggml_tensor * dst) : before(dst->src[0]), now(dst->src[1]), dst(dst) {}

    bool fits() const {
        const bool are_floats = before->type == GGML_TYPE_F32 && now->type == GGML_TYPE_F32;
        const bool is_transposed = now->nb[1] == sizeof(float) && before->nb[0] == sizeof(float);
        return are_floats && is_transposed && ggml_get_op_params_i32(dst, 0) == 0 && ggml_is_contiguous(dst) &&
               dst->ne[3] == 1 && dst->ne[1] % WIDTH == 0;
    }

    void join(int seq, int channel) const {
        const size_t held = before->ne[0];
        const int tokens = (int) now->ne[0];
        for (int i = 0; i < WIDTH; i++) memcpy(out(seq, channel + i), old(seq, channel + i), held * sizeof(float));
        int t = 0;
        for (; t + WIDTH <= tokens; t += WIDTH) {
            Vec square[WIDTH];
            for (int i = 0; i < WIDTH; i++) square[i] = at(of_token(seq, t + i) + channel);
            transpose(square);
            for (int i = 0; i < WIDTH; i++) at(out(seq, channel + i) + held + t) = square[i];
        }
        for (; t < tokens; t++) {
            const float * const token = of_token(seq, t) + channel;
            for (int i = 0; i < WIDTH; i++) out(seq, channel + i)[held + t] = token[i];
        }
    }

private:
    const float * old(int seq, int channel) const {
        return (const float *) ((const char *) before->data + seq * before->nb[2] + channel * before->nb[1]);
    }
    const float * of_token(int seq, int token) const {
        return (const float *) ((const char *) now->data + seq * now->nb[2] + token * now->nb[0]);
    }
    float * out(int seq, int channel) const {
        return (float *) ((char *) dst->data + seq * dst->nb[2] + channel * dst->nb[1]);
    }
};

/// A convolution of each channel with its own weights.
struct Convolution {
    const ggml_tensor * x, * w;
    ggml_tensor * dst;
    int taps, tokens, row;

    explicit Convolution(ggml_tensor * dst)
        : x(dst->src[0]), w(dst->src[1]), dst(dst), taps((int) w->ne[0]), tokens((int) dst->ne[1]),
          row((int) x->ne[0]) {}

    bool fits() const {
        const bool are_floats = x->type == GGML_TYPE_F32 && w->type == GGML_TYPE_F32;
        return are_floats && ggml_is_contiguous(x) && ggml_is_contiguous(w) && ggml_is_contiguous(dst) &&
               x->ne[1] % WIDTH == 0;
    }

    void run(int seq, int channel) const {
        const float * const from = (const float *) ((const char *) x->data + seq * x->nb[2]) + channel * row;
        const float * const weights = (const float *) w->data + channel * taps;
        float * const out = (float *) ((char *) dst->data + seq * dst->nb[2]) + channel;
        if (tokens >= WIDTH) return along_tokens(from, weights, out);
        if (tokens == 1 && taps == FOUR) return one_token(from, weights, out);
        for (int t = 0; t < tokens; t++) {
            for (int i = 0; i < WIDTH; i++) {
                float sum = 0.0f;
                for (int tap = 0; tap < taps; tap++) {
                    // As in vectors. Left to itself, the compiler rounds some products before it adds them.
                    sum = std::fma(from[i * row + t + tap], weights[i * taps + tap], sum);
                }
                out[t * x->ne[1] + i] = sum;
            }
        }
    }

private:
    /// As many taps as most models have.
    static constexpr int FOUR = 4;

    /// A vector has as many tokens of a channel. The last ones may be computed twice.
    void along_tokens(const float * from, const float * weights, float * out) const {
        for (int begin = 0; begin < tokens; begin += WIDTH) {
            const int t = begin + WIDTH > tokens ? tokens - WIDTH : begin;
            Vec square[WIDTH];
            for (int i = 0; i < WIDTH; i++) {
                Vec sum = Vec{};
                for (int tap = 0; tap < taps; tap++) sum += at(from + i * row + t + tap) * weights[i * taps + tap];
                square[i] = sum;
            }
            transpose(square);
            for (int i = 0; i < WIDTH; i++) at(out + (t + i) * x->ne[1]) = square[i];
        }
    }

    /// A vector has as many channels.
    static void one_token(const float * from, const float * weights, float * out) {
        Vec inputs[FOUR], factors[FOUR], sum = Vec{};
        load(from, inputs);
        load(weights, factors);
        for (int tap = 0; tap < FOUR; tap++) sum += inputs[tap] * factors[tap];
        at(out) = in_order(sum, std::make_integer_sequence<int, WIDTH>());
    }

    /// A vector for each tap of WIDTH channels, which are not in order: see `in_order`.
    static void load(const float * from, Vec (&taps)[FOUR]) {
        constexpr auto ALL = std::make_integer_sequence<int, WIDTH>();
        for (int i = 0; i < FOUR; i++) taps[i] = at(from + i * WIDTH);
        swap_corners<2>(taps[0], taps[2], ALL);
        swap_corners<2>(taps[1], taps[3], ALL);
        swap_corners<1>(taps[0], taps[1], ALL);
        swap_corners<1>(taps[2], taps[3], ALL);
    }

    /// Lane 4 c + v has a channel of vector v: puts those of each vector side by side.
    template <int... I>
    static Vec in_order(Vec x, std::integer_sequence<int, I...>) {
        return pick<(I % (WIDTH / FOUR) * FOUR + I / (WIDTH / FOUR))...>(x, x);
    }
};

} // namespace

void ggml_compute_forward_concat(const ggml_compute_params * params, ggml_tensor * dst) {
    const Concat op(dst);
    if (!op.fits()) return flotilla_ggml_concat(params, dst);
    const auto join = [&](int seq, int channel) { op.join(seq, channel); };
    for_channels(params, (int) dst->ne[1], (int) dst->ne[2], join);
}

void ggml_compute_forward_ssm_conv(const ggml_compute_params * params, ggml_tensor * dst) {
    const Convolution op(dst);
    if (!op.fits()) return flotilla_ggml_ssm_conv(params, dst);
    const auto run = [&](int seq, int channel) { op.run(seq, channel); };
    for_channels(params, (int) dst->ne[0], (int) dst->ne[2], run);
}
