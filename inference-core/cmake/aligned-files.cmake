# Model files are mapped where their weights can have huge pages.
#
# The call in llama.cpp's only file that maps one gets another name, and reaches ../memory/mapped.cpp.

function(flotilla_align_files)
    if (NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
        return()
    endif()
    get_target_property(theirs llama SOURCE_DIR)
    set_source_files_properties(${theirs}/llama-mmap.cpp TARGET_DIRECTORY llama PROPERTIES
        COMPILE_DEFINITIONS mmap=flotilla_mmap
        SKIP_UNITY_BUILD_INCLUSION ON)
    set(ours ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../memory/mapped.cpp)
    target_sources(llama PRIVATE ${ours})
    set_source_files_properties(${ours} TARGET_DIRECTORY llama PROPERTIES
        SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
