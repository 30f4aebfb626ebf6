# Changes to what the graphs of all models have in common. A file can be changed once, so both are here.
#
# States of recurrent layers stay where they are: recurrent-states.cmake says why.
#
# Contexts that draft multiply only the first rows of the output matrix: ../memory/used_rows.h says why. There
# is no parameter for it, and every model has a graph of its own, but all of them multiply in one function.

function(flotilla_change_graphs)
    set(before "    // copy extra states which won't be changed further (between n_seqs and n_rs)")
    set(product "    ggml_tensor * res = ggml_mul_mat(ctx0, w, cur);

    if (prec_policy) {
        prec_policy->apply(res);
    }

    if (w->type == GGML_TYPE_NVFP4) {
        ggml_prec_set_acc(res, GGML_PREC_BF16);
    }
")
    flotilla_change_source(llama llama-graph.cpp
        "${before}" "    if (flotilla::are_in_cache(output_states, s)) return output_states;
${before}"
        "${product}" "    const ggml_tensor * const whole = w;
    w = flotilla::used_rows(ctx0, w);
${product}    res = flotilla::with_all_rows(ctx0, res, whole);
")
    set(ours "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../memory")
    set_source_files_properties("${CMAKE_BINARY_DIR}/flotilla/llama-graph.cpp" TARGET_DIRECTORY llama PROPERTIES
        COMPILE_OPTIONS "-include;${ours}/states.h;-include;${ours}/used_rows.h"
        OBJECT_DEPENDS "${ours}/states.h;${ours}/used_rows.h")
endfunction()
