// Weights that llama.cpp repacks when it loads a model. Memory for them is found while it still
// reads the vocabulary, and all threads repack them. ../cmake/repacked-weights.cmake has
// ggml and llama.cpp call these functions.
#include "aligned.h"
#include "ggml-backend-impl.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr size_t PAGE_BYTES = 4096;
/// Rows that a thread takes at once: a multiple of all groups of rows that ggml repacks.
constexpr int64_t SLICE_ROWS = 64;
/// A thread takes longer to start than to repack fewer bytes.
constexpr size_t PARALLEL_BYTES_MIN = 64 << 10;

#ifdef __linux__

/// Private memory at the start of a huge page; null without any.
char * map(size_t bytes, bool huge_pages) {
    char * const base = map_aligned(bytes, PROT_READ | PROT_WRITE);
    if (base != nullptr && huge_pages) {
        madvise(base, bytes, MADV_HUGEPAGE);
    }
    return base;
}

void unmap(char * base, size_t bytes) {
    munmap(base, bytes);
}

#else

char * map(size_t, bool) {
    return nullptr;
}

void unmap(char *, size_t) {}

#endif

/// Memory that a thread touches, page by page, until it is taken.
class Ahead {
  public:
    Ahead(size_t bytes, bool huge_pages)
        : bytes(rounded_up(bytes, PAGE_BYTES)), base(map(this->bytes, huge_pages)) {
        if (base != nullptr) {
            try {
                toucher = std::thread([this] { touch(); });
            } catch (const std::system_error &) {
                // Touched by those who write it.
            }
        }
    }

    Ahead(const Ahead &) = delete;
    Ahead & operator=(const Ahead &) = delete;

    ~Ahead() {
        stop();
        if (base != nullptr) {
            unmap(base, bytes);
        }
    }

    /// The first `wanted` bytes, which now belong to the caller; null if there are not as many.
    char * take(size_t wanted) {
        stop();
        const size_t kept = rounded_up(wanted, PAGE_BYTES);
        if (base == nullptr || wanted == 0 || kept > bytes) {
            return nullptr;
        }
        if (kept < bytes) {
            unmap(base + kept, bytes - kept);
        }
        char * const taken = base;
        base = nullptr;
        return taken;
    }

  private:
    size_t bytes;
    char * base;
    std::atomic<bool> stopped{false};
    std::thread toucher;

    void touch() {
        for (size_t at = 0; at < bytes && !stopped.load(std::memory_order_relaxed); at += PAGE_BYTES) {
            *static_cast<volatile char *>(base + at) = 0;
        }
    }

    void stop() {
        stopped = true;
        if (toucher.joinable()) {
            toucher.join();
        }
    }
};

/// What the model that this thread is loading may use.
struct Loading {
    int threads = 1;
    std::unique_ptr<Ahead> ahead;
};

thread_local Loading loading;

void free_taken(ggml_backend_buffer_t buffer) {
    const auto base = static_cast<char *>(buffer->context);
    unmap(base, rounded_up(buffer->size, PAGE_BYTES));
}

/// Some rows of a matrix, or of several matrices of the same width, as a matrix of their own.
ggml_tensor rows_of(const ggml_tensor & all, int64_t first, int64_t count) {
    ggml_tensor some = all;
    some.ne[1] = count;
    some.ne[2] = some.ne[3] = 1;
    some.nb[2] = some.nb[3] = some.nb[1] * count;
    some.data = static_cast<char *>(all.data) + first * all.nb[1];
    return some;
}

/// Repacks slices of a tensor with several threads.
void set_in_slices(const ggml_tensor & tensor, const char * data, int threads) {
    const int64_t rows = ggml_nrows(&tensor);
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t first; (first = next.fetch_add(SLICE_ROWS)) < rows;) {
            ggml_tensor some = rows_of(tensor, first, std::min(SLICE_ROWS, rows - first));
            ggml_backend_tensor_set(&some, data + first * tensor.nb[1], 0, ggml_nbytes(&some));
        }
    };
    std::vector<std::thread> helpers;
    helpers.reserve(threads - 1);
    try {
        while (static_cast<int>(helpers.size()) + 1 < threads) {
            helpers.emplace_back(work);
        }
    } catch (const std::system_error &) {
        // Those that have started do all of it.
    }
    work();
    for (auto & helper : helpers) {
        helper.join();
    }
}

bool is_repacked(const ggml_tensor & tensor) {
    return tensor.buffer != nullptr && tensor.view_src == nullptr &&
        std::strcmp(ggml_backend_buffer_name(tensor.buffer), "CPU_REPACK") == 0;
}

} // namespace

/// The model that this thread loads next is repacked by `threads` threads. With more than one,
/// memory for `bytes` of weights is looked for at once. Without memory for this, nothing changes.
extern "C" void flotilla_begin_weights(size_t bytes, bool huge_pages, int threads) {
    loading.threads = threads;
    if (bytes > 0 && bytes <= BYTES_MAX && threads > 1) {
        loading.ahead.reset(new (std::nothrow) Ahead(bytes, huge_pages));
    }
}

/// The model is loaded. Gives back what it has not used.
extern "C" void flotilla_end_weights() {
    loading.ahead.reset();
    loading.threads = 1;
}

/// Allocates a buffer for repacked weights, of the memory that was looked for if it suffices.
extern "C" ggml_backend_buffer_t flotilla_alloc_repacked(ggml_backend_buffer_type_t type, size_t bytes) {
    char * const base = loading.ahead ? loading.ahead->take(bytes) : nullptr;
    loading.ahead.reset();
    if (base == nullptr) {
        return ggml_backend_buft_alloc_buffer(type, bytes);
    }
    ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(base, bytes);
    buffer->iface.free_buffer = free_taken;
    return buffer;
}

/// Fills a tensor; one that is repacked with all threads.
extern "C" void flotilla_tensor_set(ggml_tensor * tensor, const void * data, size_t offset, size_t bytes) {
    const bool is_whole = offset == 0 && bytes == ggml_nbytes(tensor);
    if (loading.threads < 2 || bytes < PARALLEL_BYTES_MIN || !is_whole || !is_repacked(*tensor)) {
        return ggml_backend_tensor_set(tensor, data, offset, bytes);
    }
    set_in_slices(*tensor, static_cast<const char *>(data), loading.threads);
}
