// Included before ggml's repack.cpp on ARM: it chooses the layouts that our kernels read, which are those of x86-64.
// The weights of other types stay in the file. ggml's own choice stands where our kernels do not (other types,
// numbers of columns), and without them (FLOTILLA_MATMUL=llama.cpp).
#pragma once

#include "ggml-cpu.h"
#include "ggml.h"

/// True if our kernels read this tensor in groups of eight columns.
extern "C" bool flotilla_reads_groups(const ggml_tensor * weights);
/// True if they read it as it is in the file.
extern "C" bool flotilla_reads_file(const ggml_tensor * weights);

// Where ggml asks for these features, `cur` is the tensor.
#define ggml_cpu_has_avx2() (flotilla_reads_groups(cur))
#define ggml_cpu_has_dotprod() (!flotilla_reads_file(cur) && ggml_cpu_has_dotprod())
#define ggml_cpu_has_matmul_int8() (!flotilla_reads_file(cur) && ggml_cpu_has_matmul_int8())
