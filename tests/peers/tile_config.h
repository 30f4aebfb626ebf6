// Included before every C++ source of llama-server: see scripts/peers.sh.
//
// GCC's `_tile_loadconfig` tells the compiler that it reads 8 of the 64 bytes of a configuration (at least up
// to GCC 12). The compiler then drops the code that sets the others, tiles have no rows, and the AMX kernels
// die of SIGILL. This one names all 64 bytes and is the same instruction.
#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)

#include <immintrin.h>

static inline __attribute__((always_inline)) void load_whole_tile_config(const void * config) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64]) config));
}

#define _tile_loadconfig load_whole_tile_config

#endif
