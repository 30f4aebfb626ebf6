# States of recurrent layers are not copied where they need not be.
#
# llama.cpp gathers the states of a batch from the cache, and copies the new ones back. A gated delta net of ours
# reads and writes them where they are (../kernels/delta.cpp, ../memory/states.h), and moves those of other sequences
# out of their way.

function(flotilla_keep_states_in_place)
    set(states "build_rs(inp, ssm_states_all, hparams.n_embd_s(), n_seqs")
    foreach (model qwen35 qwen35moe qwen3next)
        flotilla_change_source(llama models/${model}.cpp "${states})"
            "${states}, flotilla::states_in_cache(*inp, n_seqs, head_v_dim, cparams))")
    endforeach()
    set(named "cb(new_state, \"new_state\", il);")
    flotilla_change_source(llama models/delta-net-base.cpp "${named}" "${named}
        if (flotilla::keep_in_cache(output, s, ssm_states_all, *inp)) return output;")
    get_target_property(folder llama SOURCE_DIR)
    target_include_directories(llama PRIVATE "${folder}/models")
    foreach (name models/qwen35 models/qwen35moe models/qwen3next models/delta-net-base)
        set_source_files_properties("${CMAKE_BINARY_DIR}/flotilla/${name}.cpp"
            TARGET_DIRECTORY llama
            PROPERTIES COMPILE_OPTIONS "-include;${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../memory/states.h")
    endforeach()
endfunction()
