# Caches of keys and values, and the buffer of results, take memory, and time at start, as they are filled.
#
# llama.cpp writes zeros over a cache when it makes one: of 16,384 tokens that is most of a gigabyte
# for some models, a second on a machine whose memory the host has to find first, and resident from
# then on. The calls get another name in the files that make caches, and reach
# ../memory/clear.cpp, which leaves the zeros to the kernel.

function(flotilla_leave_caches_untouched)
    get_target_property(theirs llama SOURCE_DIR)
    # Two of them are changed copies (cell-positions.cmake, outputs.cmake).
    set(changed ${CMAKE_BINARY_DIR}/flotilla)
    foreach (file ${changed}/llama-kv-cache.cpp ${changed}/llama-context.cpp ${theirs}/llama-memory-recurrent.cpp)
        set_source_files_properties(${file} TARGET_DIRECTORY llama PROPERTIES
            COMPILE_DEFINITIONS ggml_backend_buffer_clear=flotilla_buffer_clear
            SKIP_UNITY_BUILD_INCLUSION ON)
    endforeach()
    set(ours ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../memory/clear.cpp)
    target_sources(llama PRIVATE ${ours})
    set_source_files_properties(${ours} TARGET_DIRECTORY llama PROPERTIES
        SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
