// Files of weights are mapped at the start of a huge page: elsewhere they cannot have huge pages
// (../src/llama/mapped.rs). Not all file systems choose such addresses by themselves.
// ../cmake/aligned-files.cmake has llama.cpp call this to map a file.
#include "aligned.h"

#ifdef __linux__
#include <sys/types.h>
#include <unistd.h>

/// The same as `mmap`, which it replaces.
extern "C" void * flotilla_mmap(void * wanted, size_t bytes, int access, int flags, int file, off_t offset) noexcept {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const bool is_large = bytes >= HUGE_PAGE_BYTES && bytes <= BYTES_MAX;
    char * const base = wanted == nullptr && is_large ? map_aligned(rounded_up(bytes, page), PROT_NONE) : nullptr;
    if (base == nullptr) {
        return mmap(wanted, bytes, access, flags, file, offset);
    }
    void * const mapped = mmap(base, bytes, access, flags | MAP_FIXED, file, offset);
    if (mapped == MAP_FAILED) {
        munmap(base, rounded_up(bytes, page));
    }
    return mapped;
}
#endif
