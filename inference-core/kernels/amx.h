// Instructions of AMX, Intel's unit for products of small matrices: eight registers, each of up to 16 rows
// of 64 bytes.
//
// These are not the compiler's own intrinsics: GCC 12's `_tile_loadconfig` tells the compiler that it reads
// only 8 of the 64 bytes, so the compiler drops the code that writes the others. Tiles then have no rows,
// and the first instruction on one raises SIGILL.
#pragma once

#if defined(__AMX_INT8__) && defined(__AVX512VNNI__)

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace {

/// Rows of a tile at most, and bytes of a row.
constexpr int AMX_ROWS = 16, AMX_BYTES = 64;

/// Tiles for results, which take turns, for what is multiplied, row by row, and for what it is multiplied by,
/// four bytes of each of sixteen columns at a time.
constexpr int RESULT_TILES = 4, LEFT_TILE = 4, RIGHT_TILE = 6, ALL_TILES = 8;

/// The operand of `ldtilecfg`: Intel's Software Developer's Manual, volume 1, 18.2.
struct alignas(64) AmxConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(AmxConfig) == 64, "the layout is the CPU's");

/// True if the kernel of the system lets this process use tiles. It must be asked before the first use.
inline bool has_tiles() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    static const bool has = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
    return has;
}

/// Tiles of this thread for `rows` rows on the left, at most 16, with `depth` bytes each. The tiles are
/// released at the end: the system saves them at each switch of threads as long as they are in use.
class AmxTiles {
public:
    AmxTiles(int rows, int depth) {
        AmxConfig config;
        for (int tile = 0; tile < ALL_TILES; tile++) {
            const bool is_right = tile >= RIGHT_TILE, is_left = !is_right && tile >= LEFT_TILE;
            config.rows[tile] = (uint8_t) (is_right ? depth / 4 : rows);
            config.bytes[tile] = (uint16_t) (is_left ? depth : AMX_BYTES);
        }
        asm volatile("ldtilecfg %0" : : "m"(config));
    }
    ~AmxTiles() { asm volatile("tilerelease"); }
    AmxTiles(const AmxTiles &) = delete;
};

/// Loads a tile whose rows are `stride` bytes apart. What it reads must have reached memory: see `settle`.
template <int TILE>
inline void load_tile(const void * from, ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE));
}

/// Stores a tile without gaps between rows.
template <int TILE>
inline void store_tile(void * to) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"((ptrdiff_t) AMX_BYTES), "i"(TILE) : "memory");
}

/// Sets a tile to the product of two others, both of signed bytes.
template <int RESULT, int LEFT, int RIGHT>
inline void multiply_bytes() {
    asm volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(RESULT), "i"(LEFT), "i"(RIGHT));
}

/// Keeps the compiler from moving what it writes to memory behind the loads of tiles that read it.
inline void settle() { asm volatile("" : : : "memory"); }

} // namespace

#endif
