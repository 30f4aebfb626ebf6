// Attention of a few pairs of a row and a head, which would leave most lanes of their vectors empty: here each
// cell of a tile is a lane for the scores, and each element of a value for the sums. All numbers are added in the
// same order as with RowLanes, so a pair gets the same to the last bit.
#pragma once

#include "group.h"

namespace {

class CellLanes : Group {
public:
    /// Most pairs: their sums stay in registers beside a transposed square of keys.
    static constexpr int PAIRS_MAX = WIDTH / 2;

    static bool fits(const Attention & op, int rows) {
        return rows * op.shared <= PAIRS_MAX && op.dk % WIDTH == 0 && op.dv % WIDTH == 0;
    }

    CellLanes(const Attention & op, float * scratch, int key_head, int first, int end)
        : Group(op, key_head, first, end) {
        queries = scratch;
        scores = queries + op.dk * used;
        sums = scores + TILE * used;
        keys = sums + op.dv * used;
        values = keys + TILE * op.dk;
    }

    /// Call it without PAIRS, which counts down to the number of pairs that there are.
    template <int PAIRS = PAIRS_MAX>
    void compute(const Cells & cells) {
        if constexpr (PAIRS > 1) {
            if (used < PAIRS) return compute<PAIRS - 1>(cells);
        }
        begin();
        const int count = (int) cells.list.size();
        for (int from = 0; from < count; from += TILE) {
            take_tile<PAIRS>(&cells.list[from], std::min(TILE, count - from), count - from);
        }
        store();
    }

private:
    /// [pair][dk], [pair][cell], [pair][dv], [cell][dk], [cell][dv].
    float * queries, * scores, * sums, * keys, * values;
    float peak[PAIRS_MAX], total[PAIRS_MAX];

    void begin() {
        for (int pair = 0; pair < used; pair++) {
            const float * x = query(pair);
            for (int d = 0; d < op.dk; d++) queries[pair * op.dk + d] = x[d] * op.scale;
            const Vec score = all(sink(pair)), high = round(score);
            total[pair] = score[0] > UNSEEN ? exp2_fraction(score - high)[0] : 0.0f;
            peak[pair] = high[0];
        }
        memset(sums, 0, sizeof(float) * op.dv * used);
    }

    template <int PAIRS>
    void take_tile(const Cell * cell, int count, int left) {
        const int padded = (count + WIDTH - 1) / WIDTH * WIDTH;
        const bool is_masked = read(cell, count, left, keys, values);
        memset(keys + count * op.dk, 0, sizeof(float) * (padded - count) * op.dk);
        for (int c = 0; c < padded; c += WIDTH) score_cells<PAIRS>(c);
        if (is_masked) hide(cell, count, [&](int pair, int c) -> float & { return scores[pair * TILE + c]; });
        // What is beyond the last cell weighs nothing.
        for (int pair = 0; pair < PAIRS; pair++) {
            std::fill(scores + pair * TILE + count, scores + pair * TILE + padded, UNSEEN);
            soften(pair, padded);
        }
        add_weights<PAIRS>(count);
        for (int d = 0; d < op.dv; d += WIDTH) add_values<PAIRS>(d, count);
    }

    /// The scores of WIDTH cells.
    template <int PAIRS>
    void score_cells(int cell) {
        Vec of_pair[PAIRS] = {};
        for (int d = 0; d < op.dk; d += WIDTH) {
            Vec square[WIDTH];
            for (int c = 0; c < WIDTH; c++) square[c] = at(keys + (cell + c) * op.dk + d);
            transpose(square);
            for (int i = 0; i < WIDTH; i++) {
                for (int pair = 0; pair < PAIRS; pair++) of_pair[pair] += queries[pair * op.dk + d + i] * square[i];
            }
        }
        for (int pair = 0; pair < PAIRS; pair++) {
            at(scores + pair * TILE + cell) = op.cap == 0.0f ? of_pair[pair] : tanh(of_pair[pair]) * op.cap;
        }
    }

    /// Scores -> weights, as RowLanes::soften, but for their sum.
    void soften(int pair, int padded) {
        float * const score = scores + pair * TILE;
        Vec highs = all(peak[pair]);
        for (int c = 0; c < padded; c += WIDTH) {
            Vec & s = at(score + c);
            s = s > UNSEEN ? s : all(UNSEEN);
            highs = s > highs ? s : highs;
        }
        float highest = highs[0];
        for (int i = 1; i < WIDTH; i++) highest = std::max(highest, highs[i]);
        const Vec high = round(all(highest));
        for (int c = 0; c < padded; c += WIDTH) {
            Vec & s = at(score + c);
            const Vec whole = round(s);
            const Vec weight = shift(exp2_fraction(s - whole), whole - high);
            s = s > UNSEEN ? weight : Vec{};
        }
        const float kept = shift(all(1.0f), all(peak[pair]) - high)[0];
        peak[pair] = high[0];
        total[pair] *= kept;
        if (kept == 1.0f) return;
        for (int d = 0; d < op.dv; d += WIDTH) at(sums + pair * op.dv + d) *= kept;
    }

    /// One after the other, so that it does not matter where tiles end.
    template <int PAIRS>
    void add_weights(int count) {
        for (int c = 0; c < count; c++) {
            for (int pair = 0; pair < PAIRS; pair++) total[pair] += scores[pair * TILE + c];
        }
    }

    template <int PAIRS>
    void add_values(int d, int count) {
        Vec of_pair[PAIRS];
        for (int pair = 0; pair < PAIRS; pair++) of_pair[pair] = at(sums + pair * op.dv + d);
        for (int c = 0; c < count; c++) {
            const Vec value = at(values + c * op.dv + d);
            for (int pair = 0; pair < PAIRS; pair++) of_pair[pair] += scores[pair * TILE + c] * value;
        }
        for (int pair = 0; pair < PAIRS; pair++) at(sums + pair * op.dv + d) = of_pair[pair];
    }

    void store() const {
        for (int pair = 0; pair < used; pair++) {
            const float factor = total[pair] == 0.0f ? 0.0f : 1.0f / total[pair];
            float * out = output(pair);
            for (int d = 0; d < op.dv; d++) out[d] = sums[pair * op.dv + d] * factor;
        }
    }
};

} // namespace
