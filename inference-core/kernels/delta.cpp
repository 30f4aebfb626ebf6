// Gated delta nets, the recurrent layers of Qwen3.5 (Yang et al., "Gated Delta Networks", 2025): takes the place
// of ggml's.
//
// What is different here:
// - A state of a head is a matrix whose rows depend on nothing but themselves, so a tile of rows takes all tokens
//   while it is in the nearest cache. ggml goes over the whole state four times for each token.
// - As many rows as a vector has lanes are summed up together.
// - States are read and written in the cache, where they belong: `DeltaNet::in_cache`. Otherwise llama.cpp gathers
//   them before and scatters them after, and each step moves every state six times.
//
// Gates of several elements and snapshots of states, which no model with our own graph has, go to ggml.

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "delta_op.h"

extern "C" {
// What ggml calls, and ggml's own, renamed by kernel-variants.cmake.
void ggml_compute_forward_gated_delta_net(const ggml_compute_params * params, ggml_tensor * dst);
void flotilla_ggml_gated_delta_net(const ggml_compute_params * params, ggml_tensor * dst);
}

namespace {

/// Tokens whose keys and queries are in the nearest cache together.
constexpr int TOKENS = 16;

/// Adds up the lanes of WIDTH vectors, each into a lane of its own.
template <int STEP = WIDTH / 2>
inline Vec sum_lanes(Vec (&rows)[WIDTH]) {
    for (int i = 0; i < STEP; i++) {
        swap_corners<STEP>(rows[i], rows[i + STEP], std::make_integer_sequence<int, WIDTH>());
        rows[i] += rows[i + STEP];
    }
    if constexpr (STEP > 1) return sum_lanes<STEP / 2>(rows);
    return rows[0];
}

/// A token of one head.
struct Token {
    const float * key, * query, * value;
    float * out;
    float decay, beta;
};

/// Takes a token into the state of WIDTH rows: decays it, replaces what it holds at the key, and reads it at the
/// query. SIZE is that of a head, or 0 if it is not known ahead.
template <int SIZE>
inline void take(float * state, const Token & token, int size, float scale) {
    if (SIZE > 0) size = SIZE;
    Vec sums[WIDTH];
    for (int row = 0; row < WIDTH; row++) {
        const float * from = state + (ptrdiff_t) row * size;
        Vec line[PARTS] = {};
        for (int i = 0; i < size; i += LINE) {
            for (int part = 0, at_part = i; part < PARTS; part++, at_part += WIDTH) {
                line[part] += at(from + at_part) * at(token.key + at_part);
            }
        }
        sums[row] = join(line);
    }
    const Vec held = sum_lanes(sums) * token.decay;
    alignas(64) float changes[WIDTH];
    at(changes) = (at(token.value) - held) * token.beta;
    for (int row = 0; row < WIDTH; row++) {
        float * to = state + (ptrdiff_t) row * size;
        Vec line[PARTS] = {};
        for (int i = 0; i < size; i += LINE) {
            for (int part = 0, at_part = i; part < PARTS; part++, at_part += WIDTH) {
                const Vec now = at(to + at_part) * token.decay + at(token.key + at_part) * changes[row];
                at(to + at_part) = now;
                line[part] += now * at(token.query + at_part);
            }
        }
        sums[row] = join(line);
    }
    at(token.out) = sum_lanes(sums) * scale;
}

/// Takes tokens into a tile of rows, which is in the nearest cache for as long.
template <int SIZE>
void take_all(const float * from, float * to, const Token * tokens, int count, int size, float scale) {
    if (from != to) memcpy(to, from, sizeof(float) * WIDTH * size);
    for (int t = 0; t < count; t++) take<SIZE>(to, tokens[t], size, scale);
}

/// The first row of a tile, and of what follows from a token there.
Token at_row(Token token, int row) {
    token.value += row;
    token.out += row;
    return token;
}

/// Takes all tokens of a sequence into some tiles of a head's state.
void compute_head(const DeltaNet & op, int seq, int head, int first, int end) {
    const float scale = 1.0f / std::sqrt((float) op.size);
    const float * from = op.source(seq, head);
    float * to = op.target(seq, head);
    for (int begin = 0; begin < op.tokens; begin += TOKENS) {
        const int count = op.tokens - begin < TOKENS ? op.tokens - begin : TOKENS;
        Token all[TOKENS];
        for (int t = 0; t < count; t++) {
            const int token = begin + t;
            all[t] = Token{op.key(seq, head, token), op.query(seq, head, token), op.value(seq, head, token),
                           op.out(seq, head, token), std::exp(op.gate(seq, head, token)), op.beta(seq, head, token)};
        }
        for (int tile = first; tile < end; tile++) {
            Token tokens[TOKENS];
            for (int t = 0; t < count; t++) tokens[t] = at_row(all[t], tile * WIDTH);
            const ptrdiff_t offset = (ptrdiff_t) tile * WIDTH * op.size;
            const float * const before = begin == 0 ? from + offset : to + offset;
            if (op.size == 128) take_all<128>(before, to + offset, tokens, count, op.size, scale);
            else take_all<0>(before, to + offset, tokens, count, op.size, scale);
        }
    }
}

/// False to leave everything to ggml: for comparison (`flotilla-agent bench`), and should ours ever be wrong on
/// some machine.
bool is_on() {
    static const char * const wanted = getenv("FLOTILLA_ATTENTION");
    static const bool leave = wanted && strcmp(wanted, "llama.cpp") == 0;
    return !leave;
}

} // namespace

void ggml_compute_forward_gated_delta_net(const ggml_compute_params * params, ggml_tensor * dst) {
    DeltaNet op(dst);
    if (!op.in_cache && !(is_on() && op.fits())) {
        flotilla_ggml_gated_delta_net(params, dst);
        return;
    }
    if (op.must_arrange()) {
        op.arrange(params->ith, params->nth);
        ggml_barrier(params->threadpool);
    }
    // A share of all tiles for each thread.
    const int tiles = op.size / WIDTH, all = tiles * op.heads * op.seqs;
    const int first = (int) ((int64_t) all * params->ith / params->nth);
    const int end = (int) ((int64_t) all * (params->ith + 1) / params->nth);
    for (int at = first, next; at < end; at = next) {
        const int head = at / tiles, tile = at % tiles;
        next = end < (head + 1) * tiles ? end : (head + 1) * tiles;
        compute_head(op, head / op.heads, head % op.heads, tile, tile + next - at);
    }
}
