# The results of batches.
#
# llama.cpp copies the logits of a batch from its compute buffer into another one, on one thread: ten
# megabytes for 16 sequences and a vocabulary of 150,000. They stay where they are until the next
# batch, so they are read there, unless a batch was computed in several parts. The other buffer is
# filled with zeros, for all sequences that there may be, and takes memory from then on; untouched-caches.cmake
# leaves these zeros to the kernel.
#
# Contexts that make one vector of each text have no room for logits: llama.cpp reserves a row of them for
# every token of a batch, also where the result is a pooled vector and nothing writes or reads them.
# With a vocabulary of 250,000 tokens a text of 4096 takes 4 GB.
#
# There is no parameter for either, so lines of llama-context.cpp are changed.
#
# Hidden states, the input of an MTP head, are results as well. Their functions are in a header that is not
# llama.cpp's public one; ../memory/staging.cpp calls them.

function(flotilla_change_outputs)
    set(pooled "cparams.embeddings && cparams.pooling_type != LLAMA_POOLING_TYPE_NONE")
    set(copy "ggml_backend_tensor_get_async(backend_res, t_logits, logits_out, 0, n_outputs*n_vocab*sizeof(float));")
    flotilla_change_source(llama llama-context.cpp
        "bool has_logits     = true;" "bool has_logits = !(${pooled});"
        "${copy}" "if (ubatch.n_tokens == n_tokens_all) logits.data = (float *) t_logits->data; else ${copy}")
    set(staging ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../memory/staging.cpp)
    target_sources(llama PRIVATE ${staging})
    set_source_files_properties(${staging} TARGET_DIRECTORY llama PROPERTIES
        SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
