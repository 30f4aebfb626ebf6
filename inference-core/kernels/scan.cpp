// State space models, the recurrent layers of Mamba (Gu and Dao, 2023; Dao and Gu, "Transformers are SSMs", 2024):
// takes the place of ggml's.
//
// A channel of a head has a row of states. A line of vectors runs along it, and adds the same numbers in the same
// order whatever the width of vectors is. ggml goes over the states of Mamba 1 number by number.

#include <cmath>
#include <cstring>

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "vectors.h"

extern "C" {
// What ggml calls, and ggml's own, renamed by kernel-variants.cmake.
void ggml_compute_forward_ssm_scan(const ggml_compute_params * params, ggml_tensor * dst);
void flotilla_ggml_ssm_scan(const ggml_compute_params * params, ggml_tensor * dst);
}

namespace {

/// What a head's channels have in common at one token.
struct Step {
    /// e^(dt A), or A where each state has its own.
    const float * rate;
    const float * b, * c;
    /// How long the step is.
    float dt;
    float decay;
};

struct Scan {
    const ggml_tensor * cache, * x, * dt, * a, * b, * c, * ids;
    ggml_tensor * dst;
    /// Elements of a row of states, channels of a head.
    const int size, channels, heads;
    const int tokens, seqs, groups;
    /// States that are kept: after the last token, and after as many before it.
    const int kept;

    explicit Scan(ggml_tensor * dst)
        : cache(dst->src[0]), x(dst->src[1]), dt(dst->src[2]), a(dst->src[3]), b(dst->src[4]), c(dst->src[5]),
          ids(dst->src[6]), dst(dst), size((int) cache->ne[0]), channels((int) cache->ne[1]), heads((int) x->ne[1]),
          tokens((int) x->ne[2]), seqs((int) x->ne[3]), groups((int) b->ne[1]),
          kept(ggml_get_op_params_i32(dst, 0)) {}

    bool fits() const {
        const bool are_floats = cache->type == GGML_TYPE_F32 && x->type == GGML_TYPE_F32 && dt->type == GGML_TYPE_F32;
        return are_floats && size % LINE == 0 && heads % groups == 0;
    }

    /// Takes all tokens of a sequence into the states of one head.
    void run(int seq, int head) const {
        const ptrdiff_t state = (ptrdiff_t) size * channels * head;
        const float * from = (const float *) ((const char *) cache->data + ((const int32_t *) ids->data)[seq] * cache->nb[3]) + state;
        float * const to = kept_after(0, seq) + state;
        for (int t = 0; t < tokens; t++, from = to) {
            const Step step = step_at(seq, head, t);
            const float * const in = (const float *) ((const char *) x->data + t * x->nb[2] + seq * x->nb[3]) + head * channels;
            float * const out = (float *) dst->data + (((ptrdiff_t) seq * tokens + t) * heads + head) * channels;
            for (int i = 0; i < channels; i++) {
                const ptrdiff_t row = (ptrdiff_t) i * size;
                out[i] = is_each_decayed() ? take<true>(from + row, to + row, step, in[i])
                                           : take<false>(from + row, to + row, step, in[i]);
            }
            const int behind = tokens - 1 - t;
            if (behind > 0 && behind < kept) memcpy(kept_after(behind, seq) + state, to, sizeof(float) * size * channels);
        }
    }

private:
    /// True if each state has a rate of its own, as in Mamba 1.
    bool is_each_decayed() const { return a->ne[0] != 1; }

    /// The states of a sequence with `behind` tokens left.
    float * kept_after(int behind, int seq) const {
        const ptrdiff_t outputs = ggml_nelements(x), of_sequence = (ptrdiff_t) size * channels * heads;
        return (float *) dst->data + outputs + ((ptrdiff_t) behind * seqs + seq) * of_sequence;
    }

    Step step_at(int seq, int head, int t) const {
        const float * const steps = (const float *) ((const char *) dt->data + t * dt->nb[1] + seq * dt->nb[2]);
        const int group = head / (heads / groups) * size;
        const float given = steps[head];
        // Softplus.
        const float length = given > 20.0f ? given : std::log(1.0f + std::exp(given));
        const float * const rate = (const float *) a->data + head * a->ne[0];
        return Step{rate, (const float *) ((const char *) b->data + t * b->nb[2] + seq * b->nb[3]) + group,
                    (const float *) ((const char *) c->data + t * c->nb[2] + seq * c->nb[3]) + group, length,
                    is_each_decayed() ? 0.0f : std::exp(length * rate[0])};
    }

    /// Takes an input into a row of states; returns what they say.
    template <bool EACH>
    float take(const float * from, float * to, const Step & step, float input) const {
        const float change = input * step.dt;
        Vec line[PARTS] = {};
        for (int i = 0; i < size; i += LINE) {
            for (int part = 0, place = i; part < PARTS; part++, place += WIDTH) {
                const Vec decay = EACH ? exp(at(step.rate + place) * step.dt) : all(step.decay);
                const Vec now = at(from + place) * decay + at(step.b + place) * change;
                at(to + place) = now;
                line[part] += now * at(step.c + place);
            }
        }
        return sum_of(line);
    }
};

} // namespace

void ggml_compute_forward_ssm_scan(const ggml_compute_params * params, ggml_tensor * dst) {
    const Scan op(dst);
    if (!op.fits()) return flotilla_ggml_ssm_scan(params, dst);
    const int all = op.heads * op.seqs;
    const int first = (int) ((int64_t) all * params->ith / params->nth);
    const int end = (int) ((int64_t) all * (params->ith + 1) / params->nth);
    for (int i = first; i < end; i++) op.run(i / op.heads, i % op.heads);
}
