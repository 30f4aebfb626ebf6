# Several sets of ggml's CPU kernels in one static binary.
#
# ggml can hold several CPU variants only as shared libraries that it picks by CPUID.
# CPUID is not to be trusted (the system may not grant AMX tiles, and a compiler may
# break their kernels: docs/decisions/kernels.md), and shared libraries would make the
# agent more than one file. So each extra variant is compiled as a static library,
# linked into one relocatable object, and every symbol but its registration function is
# made local. Which variant runs is decided by running it in a child process
# (inference-core/src/hardware.rs).
#
# The registration function of the baseline (AVX2; armv8-a) keeps ggml's name.

function(flotilla_add_kernel_variants)
    # Nothing registers by itself: the engine registers exactly the proven variant.
    foreach (property COMPILE_DEFINITIONS INTERFACE_COMPILE_DEFINITIONS)
        get_target_property(definitions ggml ${property})
        list(REMOVE_ITEM definitions GGML_USE_CPU)
        set_target_properties(ggml PROPERTIES ${property} "${definitions}")
    endforeach()

    # Attention, recurrent layers and products of quantized weights are ours in every set (inference-core/kernels);
    # ggml's stay for what ours leave.
    set(ours flash_attn_ext gated_delta_net concat ssm_conv ssm_scan)
    list(TRANSFORM ours REPLACE "(.+)" "ggml_compute_forward_\\1=flotilla_ggml_\\1")
    set_source_files_properties(ggml-cpu/ops.cpp PROPERTIES COMPILE_DEFINITIONS "${ours}")
    set_source_files_properties(ggml-cpu/traits.cpp PROPERTIES COMPILE_DEFINITIONS
        "ggml_cpu_extra_compute_forward=flotilla_ggml_extra_compute_forward;ggml_cpu_extra_work_size=flotilla_ggml_extra_work_size")
    # Our products with AMX read the layouts that all sets have, so ggml's own for AMX is not offered.
    set_source_files_properties(ggml-cpu/ggml-cpu.cpp PROPERTIES COMPILE_DEFINITIONS
        ggml_backend_amx_buffer_type=flotilla_no_amx_buffer_type)
    # So that all sets compute the same to the last bit: inference-core/kernels/elements.cpp.
    set(elements silu swiglu cvar soft_max)
    list(TRANSFORM elements REPLACE "(.+)" "ggml_vec_\\1_f32=flotilla_ggml_vec_\\1_f32")
    set_source_files_properties(ggml-cpu/vec.cpp PROPERTIES COMPILE_DEFINITIONS "${elements}")
    set(folder ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../kernels)
    # ggml's rotations subtract one product from another: with SVE, GCC fuses the other one.
    set_source_files_properties(${folder}/elements.cpp ${folder}/scan.cpp ggml-cpu/ops.cpp
        PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
    flotilla_add_our_kernels(ggml-cpu)

    if (GGML_SYSTEM_ARCH STREQUAL "x86")
        # Ice Lake, Sapphire Rapids, Zen 4 and later: no BF16, which Ice Lake lacks.
        ggml_add_cpu_backend_variant(avx512
            SSE42 AVX F16C FMA AVX2 BMI2 AVX512 AVX512_VBMI AVX512_VNNI)
        flotilla_seal_variant(avx512)
        # Sapphire Rapids and later, where the system grants tiles.
        ggml_add_cpu_backend_variant(amx
            SSE42 AVX F16C FMA AVX2 BMI2 AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16
            AMX_TILE AMX_INT8)
        flotilla_seal_variant(amx)
    elseif (GGML_SYSTEM_ARCH STREQUAL "ARM")
        # Raspberry Pi 5, Graviton 2, Ampere Altra and later.
        set(GGML_CPU_ARM_ARCH armv8.2-a+dotprod+fp16)
        ggml_add_cpu_backend_variant(dotprod)
        flotilla_seal_variant(dotprod)
        # Ampere One, and what has no SVE otherwise.
        set(GGML_CPU_ARM_ARCH armv8.6-a+dotprod+fp16+i8mm)
        ggml_add_cpu_backend_variant(i8mm)
        flotilla_seal_variant(i8mm)
        # Graviton 3 and 4, Neoverse V1 and N2 and later.
        set(GGML_CPU_ARM_ARCH armv8.6-a+dotprod+fp16+i8mm+sve)
        ggml_add_cpu_backend_variant(sve)
        flotilla_seal_variant(sve)
    endif()
endfunction()

function(flotilla_add_our_kernels target)
    set(folder ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../kernels)
    target_sources(${target} PRIVATE 
        ${folder}/attention.cpp ${folder}/conv.cpp ${folder}/delta.cpp ${folder}/elements.cpp ${folder}/matmul.cpp
        ${folder}/scan.cpp)
    # Threads that wait for others sleep after a while (inference-core/kernels/barrier.h).
    set(barrier "void ggml_barrier(struct ggml_threadpool * tp) {")
    set(release "        atomic_fetch_add_explicit(&tp->n_barrier_passed, 1, memory_order_seq_cst);
        return;")
    set(wait "    while (atomic_load_explicit(&tp->n_barrier_passed, memory_order_relaxed) == n_passed) {
        ggml_thread_cpu_relax();
    }")
    flotilla_change_source(${target} ggml-cpu/ggml-cpu.c
        "${barrier}" "#include \"${folder}/barrier.h\"
${barrier}"
        "${release}" "        atomic_fetch_add_explicit(&tp->n_barrier_passed, 1, memory_order_seq_cst);
        flotilla_wake(&tp->n_barrier_passed);
        return;"
        "${wait}" "    flotilla_wait(&tp->n_barrier_passed, n_passed);")
    set_source_files_properties("${CMAKE_BINARY_DIR}/flotilla/ggml-cpu/ggml-cpu.c"
        PROPERTIES OBJECT_DEPENDS ${folder}/barrier.h)
endfunction()

# Leaves `ggml_backend_cpu_<tag>_reg` as the archive's only global symbol.
# --force-group-allocation: C++ inline functions live in COMDAT groups, which the final
# link would otherwise merge with the baseline's copies, losing the variant's code.
function(flotilla_seal_variant tag)
    set(target ggml-cpu-${tag})
    flotilla_add_our_kernels(${target})
    # Unique symbols stay global whatever objcopy is told.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique>)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${target}.sealed.o)
    add_custom_command(TARGET ${target} POST_BUILD
        COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o ${object}
                --whole-archive $<TARGET_FILE:${target}>
        COMMAND ${CMAKE_OBJCOPY}
                --redefine-sym ggml_backend_cpu_reg=ggml_backend_cpu_${tag}_reg
                --keep-global-symbol=ggml_backend_cpu_${tag}_reg ${object}
        COMMAND ${CMAKE_COMMAND} -E rm -f $<TARGET_FILE:${target}>
        COMMAND ${CMAKE_AR} qcs $<TARGET_FILE:${target}> ${object}
        COMMENT "Sealing CPU kernels: ${tag}"
        VERBATIM)
endfunction()
