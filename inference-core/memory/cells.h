// Read before llama-kv-cache.cpp, by ../cmake/cell-positions.cmake.
#pragma once

#include "../kernels/positions.h"
#include "llama-kv-cells.h"

namespace flotilla {

/// Positions are private, but for one at a time: an explicit instantiation may name them.
const std::vector<llama_pos> & positions(const llama_kv_cells & cells);

template <std::vector<llama_pos> llama_kv_cells::* MEMBER>
struct Revealed {
    friend const std::vector<llama_pos> & positions(const llama_kv_cells & cells) {
        return cells.*MEMBER;
    }
};

template struct Revealed<&llama_kv_cells::pos>;

} // namespace flotilla
