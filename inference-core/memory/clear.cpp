// Caches of keys and values begin as zeros without being written: the kernel gives a page when a
// token first needs it. Small pages: a token needs one in each cache of each layer at the same time,
// and dozens of huge ones, zeroed under a batch that waits, are a pause of a third of a second where
// the host has to find them first. Attention over 8,000 tokens is at most 5 % slower with them. ../cmake/untouched-caches.cmake has llama.cpp call this for its caches.
#include "ggml-backend.h"

#include <cstdint>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

/// Zeros the pages that lie whole in a range, which must be private memory. False if they have
/// their old content.
static bool drop_pages(char * begin, char * end) {
#ifdef __linux__
    if (begin >= end) {
        return true;
    }
    // A kernel without huge pages refuses.
    madvise(begin, end - begin, MADV_NOHUGEPAGE);
    return madvise(begin, end - begin, MADV_DONTNEED) == 0;
#else
    return begin >= end;
#endif
}

static size_t page_bytes() {
#ifdef __linux__
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
#else
    return 4096;
#endif
}

extern "C" void flotilla_buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    const auto base = static_cast<char *>(ggml_backend_buffer_get_base(buffer));
    const size_t bytes = ggml_backend_buffer_get_size(buffer), page = page_bytes();
    const size_t head = (page - reinterpret_cast<uintptr_t>(base) % page) % page;
    if (value != 0 || base == nullptr || !ggml_backend_buffer_is_host(buffer) || head >= bytes) {
        return ggml_backend_buffer_clear(buffer, value);
    }
    const size_t whole = (bytes - head) / page * page;
    if (!drop_pages(base + head, base + head + whole)) {
        // Pages that are locked stay.
        return ggml_backend_buffer_clear(buffer, value);
    }
    std::memset(base, 0, head);
    std::memset(base + head + whole, 0, bytes - head - whole);
}
