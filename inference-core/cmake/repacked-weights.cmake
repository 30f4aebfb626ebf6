# Repacked weights get memory that was found ahead, and are repacked by all threads.
#
# ggml repacks one tensor after the other on one thread, into memory that the system finds page by
# page: for a model of 5 GB that is seconds. The calls that allocate and fill such a buffer get another
# name in the two files that make them, and reach ../memory/weights.cpp.
#
# ggml chooses the layouts that our kernels read: ../memory/layouts.h.

function(flotilla_repack_in_parallel)
    get_target_property(theirs llama SOURCE_DIR)
    set_source_files_properties(${theirs}/llama-model-loader.cpp TARGET_DIRECTORY llama PROPERTIES
        COMPILE_DEFINITIONS ggml_backend_tensor_set=flotilla_tensor_set
        SKIP_UNITY_BUILD_INCLUSION ON)
    set(ours ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../memory/weights.cpp)
    target_sources(llama PRIVATE ${ours})
    set_source_files_properties(${ours} TARGET_DIRECTORY llama PROPERTIES
        INCLUDE_DIRECTORIES ${CMAKE_SOURCE_DIR}/ggml/src
        SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# For the sets of kernels, in ggml's own folder.
function(flotilla_allocate_repacked_weights)
    set_source_files_properties(ggml-cpu/repack.cpp PROPERTIES COMPILE_DEFINITIONS
        ggml_backend_buft_alloc_buffer=flotilla_alloc_repacked)
    set(layouts ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../memory/layouts.h)
    set_source_files_properties(ggml-cpu/repack.cpp PROPERTIES
        COMPILE_OPTIONS "-include;${layouts}" OBJECT_DEPENDS ${layouts})
endfunction()
