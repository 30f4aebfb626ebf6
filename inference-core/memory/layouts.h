// Included before ggml's repack.cpp: it gives weights the layouts that our kernels read. On ARM, these are those of
// x86-64, and the weights of other types stay in the file. Several matrices that are multiplied with rows of their own
// each, of which ggml repacks none, are repacked everywhere. ggml's own choice stands where our kernels do not (other
// types, numbers of columns), and without them (FLOTILLA_MATMUL=llama.cpp).
#pragma once

#include "ggml-cpu.h"
#include "ggml.h"

/// True if this is a product of several matrices of which our kernels read groups of eight columns.
extern "C" bool flotilla_reads_planes(const ggml_tensor * op);

// Where ggml asks whether there is one matrix, `op` is the product.
#define ggml_n_dims(weights) (flotilla_reads_planes(op) ? 2 : ggml_n_dims(weights))

#if defined(__aarch64__)

/// True if our kernels read this tensor in groups of eight columns.
extern "C" bool flotilla_reads_groups(const ggml_tensor * weights);
/// True if they read it as it is in the file.
extern "C" bool flotilla_reads_file(const ggml_tensor * weights);

// Where ggml asks for these features, `cur` is the tensor.
#define ggml_cpu_has_avx2() (flotilla_reads_groups(cur))
#define ggml_cpu_has_dotprod() (!flotilla_reads_file(cur) && ggml_cpu_has_dotprod())
#define ggml_cpu_has_matmul_int8() (!flotilla_reads_file(cur) && ggml_cpu_has_matmul_int8())

#endif
