// Addresses at the start of a huge page.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr size_t HUGE_PAGE_BYTES = 2 << 20;
/// More than any machine has. Sums of two such numbers do not overflow.
constexpr size_t BYTES_MAX = SIZE_MAX / 4;

inline size_t rounded_up(size_t bytes, size_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

#ifdef __linux__
#include <sys/mman.h>

/// Private memory, or addresses for something else, at the start of a huge page; null without any.
inline char * map_aligned(size_t bytes, int access) {
    void * mapped = mmap(nullptr, bytes + HUGE_PAGE_BYTES, access,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        return nullptr;
    }
    const auto address = reinterpret_cast<uintptr_t>(mapped);
    const size_t before = rounded_up(address, HUGE_PAGE_BYTES) - address;
    char * const base = static_cast<char *>(mapped) + before;
    if (before > 0) {
        munmap(mapped, before);
    }
    munmap(base + bytes, HUGE_PAGE_BYTES - before);
    return base;
}
#endif
