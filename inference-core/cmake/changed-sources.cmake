# Compiles a copy of a file of llama.cpp, or of ggml, in which some pieces of text read differently: each piece is
# followed by what it becomes. A release in which one is missing does not build.

function(flotilla_change_source target name)
    get_target_property(folder ${target} SOURCE_DIR)
    set(original "${folder}/${name}")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${original}")
    file(READ "${original}" text)
    math(EXPR last "${ARGC} - 1")
    foreach (i RANGE 2 ${last} 2)
        math(EXPR after "${i} + 1")
        string(FIND "${text}" "${ARGV${i}}" at)
        if (at EQUAL -1)
            message(FATAL_ERROR "${name} has no '${ARGV${i}}': see ${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
        endif()
        string(REPLACE "${ARGV${i}}" "${ARGV${after}}" text "${text}")
    endforeach()
    set(changed "${CMAKE_BINARY_DIR}/flotilla/${name}")
    set(before "")
    if (EXISTS "${changed}")
        file(READ "${changed}" before)
    endif()
    # Not written again: it would be compiled again.
    if (NOT text STREQUAL before)
        file(WRITE "${changed}" "${text}")
    endif()
    get_target_property(sources ${target} SOURCES)
    string(REPLACE "." "[.]" pattern "${name}")
    list(TRANSFORM sources REPLACE "^(.*/)?${pattern}$" "${changed}")
    set_target_properties(${target} PROPERTIES SOURCES "${sources}")
    # As the original: all that is compiled together with it stays as it is.
    set_source_files_properties("${changed}" TARGET_DIRECTORY ${target}
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    # Its own headers lay beside it.
    target_include_directories(${target} PRIVATE "${folder}")
endfunction()
