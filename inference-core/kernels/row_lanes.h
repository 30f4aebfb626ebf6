// Attention of a group of rows in which each pair of a row and a head is a lane of a vector: softmax needs
// no horizontal sums.
#pragma once

#include "group.h"

namespace {

class RowLanes : Group {
public:
    RowLanes(const Attention & op, float * scratch, int key_head, int first, int end)
        : Group(op, key_head, first, end), lanes((used + WIDTH - 1) / WIDTH * WIDTH) {
        queries = scratch;
        scores = queries + op.dk * lanes;
        sums = scores + TILE * lanes;
        keys = sums + op.dv * lanes;
        values = keys + TILE * op.dk;
        peak = values + TILE * op.dv;
        total = peak + lanes;
        shrink = total + lanes;
    }

    void compute(const Cells & cells) {
        begin();
        const int count = (int) cells.list.size();
        for (int from = 0; from < count; from += TILE) {
            take_tile(&cells.list[from], std::min(TILE, count - from), count - from);
        }
        store();
    }

private:
    const int lanes;
    /// [dk][lane], [cell][lane], [dv][lane], [cell][dk], [cell][dv], and three of [lane].
    float * queries, * scores, * sums, * keys, * values, * peak, * total, * shrink;

    void begin() {
        if (used < lanes) memset(queries, 0, sizeof(float) * op.dk * lanes);
        for (int lane = 0; lane < used; lane++) {
            const float * x = query(lane);
            for (int d = 0; d < op.dk; d++) queries[d * lanes + lane] = x[d] * op.scale;
        }
        memset(sums, 0, sizeof(float) * op.dv * lanes);
        for (int lane = 0; lane < lanes; lane++) peak[lane] = lane < used ? sink(lane) : UNSEEN;
        for (int j = 0; j < lanes; j += WIDTH) {
            const Vec score = at(peak + j), high = round(score);
            const Vec weight = exp2_fraction(score - high);
            at(total + j) = score > UNSEEN ? weight : Vec{};
            at(peak + j) = high;
        }
    }

    void take_tile(const Cell * cell, int count, int left) {
        const int padded = (count + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
        const bool is_masked = read(cell, count, left, keys, values);
        memset(keys + count * op.dk, 0, sizeof(float) * (padded - count) * op.dk);
        multiply<false>({keys, op.dk, 1}, queries, scores, padded, op.dk, lanes);
        if (op.cap != 0.0f) {
            for (int i = 0; i < count * lanes; i += WIDTH) at(scores + i) = tanh(at(scores + i)) * op.cap;
        }
        if (is_masked) hide(cell, count, [&](int lane, int c) -> float & { return scores[c * lanes + lane]; });
        soften(count);
        multiply<true>({values, 1, op.dv}, scores, sums, op.dv, count, lanes);
    }

    /// Scores -> weights, relative to a power of two near the highest score so far. Being
    /// powers of two, such factors round nothing: whatever rows share a group and wherever
    /// tiles end, a row's sums are the same to the last bit.
    void soften(int count) {
        bool higher = false;
        for (int j = 0; j < lanes; j += WIDTH) {
            const Vec before = at(peak + j);
            Vec high = before;
            for (int c = 0; c < count; c++) {
                Vec & s = at(scores + c * lanes + j);
                s = s > UNSEEN ? s : all(UNSEEN);
                high = s > high ? s : high;
            }
            high = round(high);
            const Vec kept = shift(all(1.0f), before - high);
            Vec sum = at(total + j) * kept;
            for (int c = 0; c < count; c++) {
                Vec & s = at(scores + c * lanes + j);
                const Vec whole = round(s);
                const Vec weight = shift(exp2_fraction(s - whole), whole - high);
                s = s > UNSEEN ? weight : Vec{};
                sum += s;
            }
            at(total + j) = sum;
            at(shrink + j) = kept;
            at(peak + j) = high;
            for (int i = 0; i < WIDTH; i++) higher |= kept[i] != 1.0f;
        }
        if (!higher) return;
        for (int d = 0; d < op.dv; d++) {
            for (int j = 0; j < lanes; j += WIDTH) at(sums + d * lanes + j) *= at(shrink + j);
        }
    }

    void store() const {
        for (int lane = 0; lane < used; lane++) {
            const float factor = total[lane] == 0.0f ? 0.0f : 1.0f / total[lane];
            float * out = output(lane);
            for (int d = 0; d < op.dv; d++) out[d] = sums[d * lanes + lane] * factor;
        }
    }
};

} // namespace
