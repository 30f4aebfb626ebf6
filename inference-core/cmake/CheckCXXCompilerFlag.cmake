# Shadows CMake's module of the same name: ggml/src/CMakeLists.txt includes it on its
# first line, which is the one place where code of ours can run in that directory.
# The real module still does its work; afterwards, once ggml's own targets exist,
# a second set of CPU kernels is added (kernel-variants.cmake), and once llama.cpp's
# exists, its pre-tokenizers lose std::regex (pretokenizer.cmake).
include("${CMAKE_ROOT}/Modules/CheckCXXCompilerFlag.cmake")

if (CMAKE_CURRENT_SOURCE_DIR MATCHES "/ggml/src$")
    include("${CMAKE_CURRENT_LIST_DIR}/kernel-variants.cmake")
    cmake_language(DEFER CALL flotilla_add_kernel_variants)
    include("${CMAKE_CURRENT_LIST_DIR}/repacked-weights.cmake")
    cmake_language(DEFER CALL flotilla_allocate_repacked_weights)
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flotilla_repack_in_parallel)
    # llama.cpp's own target is made after this directory.
    include("${CMAKE_CURRENT_LIST_DIR}/pretokenizer.cmake")
    cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL flotilla_replace_pretokenizer)
    include("${CMAKE_CURRENT_LIST_DIR}/changed-sources.cmake")
    include("${CMAKE_CURRENT_LIST_DIR}/outputs.cmake")
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flotilla_change_outputs)
    include("${CMAKE_CURRENT_LIST_DIR}/cell-positions.cmake")
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flotilla_pass_cell_positions)
    include("${CMAKE_CURRENT_LIST_DIR}/graphs.cmake")
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flotilla_change_graphs)
    include("${CMAKE_CURRENT_LIST_DIR}/recurrent-states.cmake")
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flotilla_keep_states_in_place)
    include("${CMAKE_CURRENT_LIST_DIR}/untouched-caches.cmake")
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flotilla_leave_caches_untouched)
    include("${CMAKE_CURRENT_LIST_DIR}/aligned-files.cmake")
    cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL flotilla_align_files)
endif()
