// Attention of many sequences over one pool of cells: takes the place of ggml's
// flash attention, which computes one query row of one head at a time below 64 rows.
//
// What is different here:
// - The query heads that share a key head are computed together, and so are the rows of
//   one sequence. Each (row, head) is a lane of a vector; softmax needs no horizontal sums.
// - Only the cells that a row may see are read. They are gathered into tiles, so sequences
//   whose cells lie interleaved in the pool cost no more than sequences that lie apart.
// - They are read in the order of their positions, so that a row's sums are the same to the last
//   bit wherever the pool had room for its sequence.
// - Keys and values are turned into 32-bit floats once for all lanes.
// - What a row gets does not depend on the rows beside it, so that a seed means the same answer
//   on a busy node (but see ROWS_MIN).
//
// The softmax over tiles is the online one (Milakov and Gimelshein, 2018; Dao et al.,
// FlashAttention, 2022). What it does not do (slopes, sinks, soft caps) goes to ggml.

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "ggml.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "positions.h"
#include "vectors.h"

extern "C" {
// What ggml calls, and ggml's own, renamed by kernel-variants.cmake.
void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);
void flotilla_ggml_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst);
}

namespace {

/// Cells of a tile.
constexpr int TILE = 64;
/// Most lanes of a group. Beyond this the scratch leaves the nearest caches.
constexpr int LANES_MAX = 96;
/// Without shared keys, groups of fewer rows leave the vectors too empty: ggml's is faster.
constexpr int ROWS_MIN = 4;
/// Stands for a score of minus infinity: whole, and exact beside any real score's parts.
constexpr float UNSEEN = -1048576.0f;
/// Half-precision minus infinity.
constexpr uint16_t HIDDEN = 0xFC00;

/// The operation, and how it is cut into pieces.
struct Attention {
    const ggml_tensor * q;
    const ggml_tensor * k;
    const ggml_tensor * v;
    const ggml_tensor * mask;
    ggml_tensor * dst;
    /// Of the tokens in the cells; null if nobody has said.
    const int32_t * positions;
    /// Scores are powers of two: log2(e) is in it.
    float scale;
    int dk, dv, rows, heads, key_heads, cells;
    /// Query heads of a key head.
    int shared;
    /// Lanes that the scratch has room for, in whole vectors.
    int lanes_max;

    explicit Attention(ggml_tensor * dst)
        : q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), mask(dst->src[3]), dst(dst),
          positions(mask ? flotilla::CellPositions::of(mask) : nullptr),
          scale(ggml_get_op_params_f32(dst, 0) * 1.44269504f),
          dk((int) k->ne[0]), dv((int) v->ne[0]), rows((int) q->ne[1]), heads((int) q->ne[2]),
          key_heads((int) k->ne[2]), cells((int) k->ne[1]), shared(heads / key_heads), lanes_max(0) {}

    const uint16_t * mask_row(int row) const {
        return (const uint16_t *) ((const char *) mask->data + row * mask->nb[1]);
    }

    bool fits(const ggml_compute_params * params) {
        const float slope = ggml_get_op_params_f32(dst, 1), cap = ggml_get_op_params_f32(dst, 2);
        const bool plain = !params->use_ref && slope == 0.0f && cap == 0.0f && !dst->src[4];
        const bool shapes = q->type == GGML_TYPE_F32 && q->ne[3] == 1 && k->ne[3] == 1
            && v->ne[2] == k->ne[2] && dv % 8 == 0 && heads % key_heads == 0;
        const bool masked = !mask || (mask->type == GGML_TYPE_F16 && mask->ne[2] == 1 && mask->ne[3] == 1);
        const size_t room = params->wsize / sizeof(float) / params->nth;
        const size_t fixed = (size_t) TILE * (dk + dv);
        if (!plain || !shapes || !masked || !readable(k) || !readable(v) || room <= fixed) {
            return false;
        }
        const size_t lanes = (room - fixed) / (dk + TILE + dv + 3);
        lanes_max = (int) std::min<size_t>(lanes, LANES_MAX) / WIDTH * WIDTH;
        return shared <= lanes_max;
    }

    static bool readable(const ggml_tensor * t) {
        return t->type == GGML_TYPE_F32 || ggml_get_type_traits(t->type)->to_float;
    }

    /// Whether two rows see nearly the same cells, as neighbours in a sequence do.
    bool alike(int row, int next) const {
        if (!mask) return true;
        const uint16_t * a = mask_row(row);
        const uint16_t * b = mask_row(next);
        uint32_t different = 0, seen = 0;
        for (int from = 0; from < cells; from += 4096) {
            // 16-bit sums fill vectors twice as well.
            uint16_t d = 0, s = 0;
            for (int i = from; i < std::min(cells, from + 4096); i++) {
                d += a[i] != b[i];
                s += b[i] != HIDDEN;
            }
            different += d;
            seen += s;
        }
        return different <= 16 + seen / 8;
    }

    int group_end(int row, int end) const {
        const int most = std::min(end, row + lanes_max / shared);
        int next = row + 1;
        while (next < most && alike(next - 1, next)) next++;
        return next;
    }

    int groups() const {
        int count = 0;
        for (int row = 0; row < rows; row = group_end(row, rows)) count++;
        return count;
    }
};

/// A cell that some row of a group sees.
struct Cell {
    uint32_t at : 31;
    /// Whether some row does not see it as it is.
    uint32_t is_masked : 1;
};

/// The cells that a group sees. Memory for them is kept from one group to the next.
class Cells {
public:
    std::vector<Cell> list;

    /// Sorts them by position. They are a few ascending runs, one for each stretch of the pool, or
    /// one: runs are merged in pairs.
    void sort(const int32_t * positions) {
        const auto before = [=](Cell a, Cell b) { return positions[a.at] < positions[b.at]; };
        ends.clear();
        for (size_t i = 1; i <= list.size(); i++) {
            if (i == list.size() || before(list[i], list[i - 1])) ends.push_back(i);
        }
        while (ends.size() > 1) {
            size_t begin = 0, kept = 0;
            for (size_t run = 0; run < ends.size(); run += 2) {
                const size_t middle = ends[run], end = ends[std::min(run + 1, ends.size() - 1)];
                std::inplace_merge(list.begin() + begin, list.begin() + middle, list.begin() + end, before);
                begin = ends[kept++] = end;
            }
            ends.resize(kept);
        }
    }

private:
    std::vector<size_t> ends;
};

/// A thread's work on one group: the rows `first..end` and the heads of one key head.
class Group {
public:
    Group(const Attention & op, float * scratch, Cells & cells, int key_head, int first, int end)
        : op(op), cells(cells), head(key_head), first(first), end(end),
          used((end - first) * op.shared), lanes((used + WIDTH - 1) / WIDTH * WIDTH) {
        queries = scratch;
        scores = queries + op.dk * lanes;
        sums = scores + TILE * lanes;
        keys = sums + op.dv * lanes;
        values = keys + TILE * op.dk;
        peak = values + TILE * op.dv;
        total = peak + lanes;
        shrink = total + lanes;
    }

    void compute() {
        load_queries();
        memset(sums, 0, sizeof(float) * op.dv * lanes);
        std::fill(peak, peak + lanes, UNSEEN);
        memset(total, 0, sizeof(float) * lanes);
        cells.list.clear();
        for (int from = 0; from < op.cells; from += TILE) {
            collect(from, std::min(TILE, op.cells - from));
        }
        if (op.positions) cells.sort(op.positions);
        const int count = (int) cells.list.size();
        for (int from = 0; from < count; from += TILE) {
            take_tile(&cells.list[from], std::min(TILE, count - from));
        }
        store();
    }

private:
    const Attention & op;
    Cells & cells;
    const int head, first, end, used, lanes;
    /// [dk][lane], [cell][lane], [dv][lane], [cell][dk], [cell][dv], and three of [lane].
    float * queries, * scores, * sums, * keys, * values, * peak, * total, * shrink;

    void load_queries() {
        if (used < lanes) memset(queries, 0, sizeof(float) * op.dk * lanes);
        for (int lane = 0; lane < used; lane++) {
            const int row = first + lane / op.shared, h = head * op.shared + lane % op.shared;
            const float * x = (const float *) ((const char *) op.q->data + row * op.q->nb[1] + h * op.q->nb[2]);
            for (int d = 0; d < op.dk; d++) queries[d * lanes + lane] = x[d] * op.scale;
        }
    }

    /// Lists the visible ones of up to TILE cells.
    void collect(int from, int count) {
        uint64_t any = count == 64 ? ~0ull : (1ull << count) - 1, every = any;
        bool biased = false;
        if (op.mask) {
            any = 0;
            for (int row = first; row < end; row++) {
                const uint64_t seen = visible(op.mask_row(row) + from, count, biased);
                any |= seen;
                every &= seen;
            }
        }
        const uint64_t masked = biased ? any : any & ~every;
        for (uint64_t rest = any; rest != 0; rest &= rest - 1) {
            const uint32_t i = __builtin_ctzll(rest);
            cells.list.push_back({from + i, (uint32_t) (masked >> i & 1)});
        }
    }

    /// The cells that a row sees, a bit for each.
    static uint64_t visible(const uint16_t * mask, int count, bool & biased) {
        if (count == TILE) {
            uint16_t shown = 0, hidden = 0;
            for (int i = 0; i < TILE; i++) {
                shown |= mask[i] ^ HIDDEN;
                hidden |= mask[i];
            }
            if (shown == 0) return 0;
            if (hidden == 0) return ~0ull;
        }
        uint64_t bits = 0;
        for (int i = 0; i < count; i++) {
            bits |= (uint64_t) (mask[i] != HIDDEN) << i;
            biased |= mask[i] != HIDDEN && mask[i] != 0;
        }
        return bits;
    }

    static void read(const ggml_tensor * t, int cell, int head, float * out) {
        const char * x = (const char *) t->data + cell * t->nb[1] + head * t->nb[2];
        const int64_t n = t->ne[0];
        switch (t->type) {
            case GGML_TYPE_F32: memcpy(out, x, sizeof(float) * n); break;
            case GGML_TYPE_F16: ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) x, out, n); break;
            default: ggml_get_type_traits(t->type)->to_float(x, out, n);
        }
    }

    void take_tile(const Cell * cell, int count) {
        const int padded = (count + BLOCK_ROWS - 1) / BLOCK_ROWS * BLOCK_ROWS;
        bool is_masked = false;
        for (int c = 0; c < count; c++) {
            read(op.k, cell[c].at, head, keys + c * op.dk);
            read(op.v, cell[c].at, head, values + c * op.dv);
            is_masked |= cell[c].is_masked;
        }
        memset(keys + count * op.dk, 0, sizeof(float) * (padded - count) * op.dk);
        multiply<false>({keys, op.dk, 1}, queries, scores, padded, op.dk, lanes);
        if (is_masked) hide(cell, count);
        soften(count);
        multiply<true>({values, 1, op.dv}, scores, sums, op.dv, count, lanes);
    }

    /// Adds the mask to the scores.
    void hide(const Cell * cell, int count) {
        for (int row = first; row < end; row++) {
            const uint16_t * mask = op.mask_row(row);
            float * lane = scores + (row - first) * op.shared;
            for (int c = 0; c < count; c++) {
                const uint16_t m = mask[cell[c].at];
                if (m == 0) continue;
                const float add = m == HIDDEN ? -INFINITY : ggml_fp16_to_fp32(m);
                for (int g = 0; g < op.shared; g++) lane[c * lanes + g] += add;
            }
        }
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

    void store() {
        for (int lane = 0; lane < used; lane++) {
            const int row = first + lane / op.shared, h = head * op.shared + lane % op.shared;
            const float factor = total[lane] == 0.0f ? 0.0f : 1.0f / total[lane];
            float * out = (float *) ((char *) op.dst->data + ((size_t) row * op.heads + h) * op.dst->nb[1]);
            for (int d = 0; d < op.dv; d++) out[d] = sums[d * lanes + lane] * factor;
        }
    }
};

} // namespace

void ggml_compute_forward_flash_attn_ext(const ggml_compute_params * params, ggml_tensor * dst) {
    // For comparison (`flotilla-agent bench`), and should ours ever be wrong on some machine.
    static const char * const wanted = getenv("FLOTILLA_ATTENTION");
    static const bool leave = wanted && strcmp(wanted, "llama.cpp") == 0;
    Attention op(dst);
    const int nth = params->nth;
    if (leave || !op.fits(params) || (op.shared == 1 && op.rows < ROWS_MIN * op.groups())) {
        flotilla_ggml_flash_attn_ext(params, dst);
        return;
    }
    // Pieces of consecutive rows, four for each thread, their lanes in whole vectors.
    const int share = (op.rows * op.key_heads + 4 * nth - 1) / (4 * nth);
    const int lanes = (share * op.shared + WIDTH - 1) / WIDTH * WIDTH;
    const int piece = std::max(1, std::min(lanes, op.lanes_max) / op.shared);
    const int pieces = (op.rows + piece - 1) / piece;
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, nth);
    }
    ggml_barrier(params->threadpool);
    float * scratch = (float *) params->wdata + params->wsize / sizeof(float) / nth * params->ith;
    static thread_local Cells cells;
    for (int i = params->ith; i < pieces * op.key_heads; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
        const int first = i % pieces * piece, end = std::min(op.rows, first + piece);
        for (int row = first, next; row < end; row = next) {
            next = op.group_end(row, end);
            Group(op, scratch, cells, i / pieces, row, next).compute();
        }
    }
}
