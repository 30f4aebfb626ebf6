// Where the tokens of a pool's cells stand in their sequences: what attention reads and the mask
// does not say. llama.cpp's cache puts it beside the numbers of the mask that it fills
// (../cmake/cell-positions.cmake), in parameters that an input has no other use for.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <cstring>

namespace flotilla {

/// In the parameters of a mask.
struct CellPositions {
    /// `MARK`, or it is something else.
    uint64_t mark;
    /// A position for each cell. The cache owns it, and changes it between batches alone.
    const int32_t * positions;

    /// Any number that no other parameters begin with.
    static constexpr uint64_t MARK = 0x464c4f5449504f53;

    static void note(ggml_tensor * mask, const int32_t * positions) {
        const CellPositions noted{MARK, positions};
        static_assert(sizeof noted <= sizeof mask->op_params, "it does not fit");
        memcpy(mask->op_params, &noted, sizeof noted);
    }

    /// Null if nobody has said.
    static const int32_t * of(const ggml_tensor * mask) {
        CellPositions noted{};
        // What computes a mask, views among it, has parameters of its own.
        if (mask->op == GGML_OP_NONE) memcpy(&noted, mask->op_params, sizeof noted);
        return noted.mark == MARK ? noted.positions : nullptr;
    }
};

} // namespace flotilla
