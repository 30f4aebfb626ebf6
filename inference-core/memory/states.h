// States of gated delta nets in the cache, where the layers' operation reads and writes them (../kernels/delta.cpp).
//
// llama.cpp gathers the states of a batch from the cache before each layer, and copies the new ones back after it.
#pragma once

#include <cstdlib>
#include <cstring>

#include "llama-graph.h"
#include "llama-memory-recurrent.h"

namespace flotilla {

/// How a layer gets the states of a batch: the rows of the cache that the new ones belong to. Nothing, and the layer
/// gets copies, if ours cannot compute it. That is the same for all batches of a model, because llama.cpp plans its
/// memory for the first graph, and again for each one with other operations.
inline llm_graph_get_rows_fn states_in_cache(const llm_graph_input_rs & input, int64_t sequences, int64_t head,
                                             const llama_cparams & parameters) {
    const char * const wanted = getenv("FLOTILLA_ATTENTION");
    const bool is_off = wanted && strcmp(wanted, "llama.cpp") == 0;
    const bool is_one_operation = parameters.fused_gdn_ar && parameters.fused_gdn_ch && parameters.n_rs_seq == 0;
    // As many elements as the widest vectors have.
    if (is_off || !is_one_operation || head % 16 != 0) return nullptr;
    const size_t first = input.mctx->get_head();
    return [=](ggml_context * context, ggml_tensor * states, ggml_tensor *) {
        return ggml_view_2d(context, states, states->ne[0], sequences, states->nb[1], first * states->nb[1]);
    };
}

/// True if these are states in the cache.
inline bool are_in_cache(const ggml_tensor * states, const ggml_tensor * cache) {
    return states->view_src == (cache->view_src ? cache->view_src : cache);
}

/// Makes the operation that has this output keep its states in the cache, if that is where it gets them.
inline bool keep_in_cache(ggml_tensor * output, const ggml_tensor * states, const ggml_tensor * cache,
                          const llm_graph_input_rs & input) {
    ggml_tensor * const operation = output->view_src;
    if (!are_in_cache(states, cache) || operation->op != GGML_OP_GATED_DELTA_NET) return false;
    operation->src[6] = input.s_copy;
    operation->op_params[1] = (int32_t) input.mctx->get_head();
    return true;
}

} // namespace flotilla
