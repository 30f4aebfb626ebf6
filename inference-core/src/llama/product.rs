//! The product of a matrix of weights and some rows alone, as a single operation of a set of CPU
//! kernels, for the kernel trial and for tests. Computations of ours are in inference-core/kernels.

use std::time::Duration;

use llama_cpp_sys_2 as sys;

use super::device::{Buffer, Device, Graph, new_graph};
use super::trial_error::TrialError;

/// Inputs of one product.
pub(super) struct Product {
    /// Number of rows to multiply.
    pub(crate) rows: usize,
    /// Planes that they are in, one after the other; a divisor of `rows`.
    pub(crate) planes: usize,
    /// Number of matrices without experts: 1, or as many as planes, each for the rows of one.
    pub(crate) matrices: usize,
    /// Number of results per row.
    pub(crate) columns: usize,
    /// Elements of a row, and of a column of the weights.
    pub(crate) depth: usize,
    /// `[row][depth]`
    pub(crate) input: Vec<f32>,
    /// `[matrix][column][depth]`
    pub(crate) weights: Vec<f32>,
    /// Set if each row is multiplied by some of several matrices.
    pub(crate) experts: Option<Experts>,
}

/// Weights of a type, as they are stored, and the layout that they get.
pub(super) struct Stored<'a> {
    pub(crate) layout: sys::ggml_backend_buffer_type_t,
    pub(crate) kind: sys::ggml_type,
    pub(crate) packed: &'a [u8],
}

/// The matrices of a mixture of experts, which follow each other in the weights.
pub(super) struct Experts {
    /// Number of matrices.
    pub(crate) count: usize,
    /// How many of them a row is multiplied by.
    pub(crate) used: usize,
    /// Which ones: `[row][used]`.
    pub(crate) ids: Vec<i32>,
    /// True if the input has a row for each of them: `[row][used][depth]`.
    pub(crate) are_inputs_apart: bool,
}

impl Experts {
    /// Rows of the input for each row.
    fn inputs(&self) -> usize {
        if self.are_inputs_apart { self.used } else { 1 }
    }
}

impl Product {
    /// Ones times ones: every result is `depth`.
    pub(crate) fn of_ones(rows: usize, columns: usize, depth: usize) -> Self {
        Self {
            rows,
            planes: 1,
            matrices: 1,
            columns,
            depth,
            input: vec![1.0; rows * depth],
            weights: vec![1.0; columns * depth],
            experts: None,
        }
    }

    /// The weights as they are stored in `kind`.
    pub(crate) fn packed(&self, kind: sys::ggml_type) -> Vec<u8> {
        // SAFETY: the depth is a multiple of the type's block, and the buffer has the size that
        // ggml computes for the matrix.
        unsafe {
            let columns = self.weights.len() / self.depth;
            let mut packed = vec![0u8; sys::ggml_row_size(kind, self.depth as i64) * columns];
            sys::ggml_quantize_chunk(
                kind,
                self.weights.as_ptr(),
                packed.as_mut_ptr().cast(),
                0,
                columns as i64,
                self.depth as i64,
                std::ptr::null(),
            );
            packed
        }
    }

    /// Runs it with weights of type `kind` in `layout`; returns `[row][column]`, or with experts
    /// `[row][used][column]`. `None` if the layout does not support the type.
    pub(crate) fn run(
        &self,
        device: &Device,
        layout: sys::ggml_backend_buffer_type_t,
        kind: sys::ggml_type,
        threads: i32,
    ) -> Result<Option<Vec<f32>>, TrialError> {
        let used = self.experts.as_ref().map_or(1, |experts| experts.used);
        let stored = Stored { layout, kind, packed: &self.packed(kind) };
        self.with_output(device, &stored, |graph, output| {
            // SAFETY: the tensor belongs to the graph and is allocated, with this many floats.
            unsafe {
                device.compute(graph.0, output, threads)?;
                let mut result = vec![0.0f32; self.rows * self.columns * used];
                let bytes = size_of_val(result.as_slice());
                sys::ggml_backend_tensor_get(output, result.as_mut_ptr().cast(), 0, bytes);
                Ok(result)
            }
        })
    }

    /// The shortest of `passes` runs with one thread. `None` if
    /// the layout does not support the type.
    pub(crate) fn time(
        &self,
        device: &Device,
        stored: &Stored<'_>,
        passes: usize,
    ) -> Result<Option<Duration>, TrialError> {
        self.with_output(device, stored, |graph, output| {
            // SAFETY: the tensor belongs to the graph and is allocated.
            unsafe { device.compute_often(graph.0, output, 1, passes) }
        })
    }

    /// Calls `work` with the product as an operation whose inputs are set. `None` if the layout
    /// does not support the type.
    fn with_output<T>(
        &self,
        device: &Device,
        &Stored { layout, kind, packed }: &Stored<'_>,
        work: impl FnOnce(&Graph, *mut sys::ggml_tensor) -> Result<T, TrialError>,
    ) -> Result<Option<T>, TrialError> {
        let [columns, depth] = [self.columns, self.depth].map(|n| n as i64);
        let experts = self.experts.as_ref();
        let count = experts.map_or(self.matrices, |experts| experts.count) as i64;
        // SAFETY: tensors belong to contexts and buffers that live to the end of the function, all
        // copies have the tensors' sizes, and every pointer that may be null is checked.
        unsafe {
            let weights_graph = new_graph()?;
            let weights = sys::ggml_new_tensor_3d(weights_graph.0, kind, depth, columns, count);
            let graph = new_graph()?;
            let (input, ids) = self.inputs(&graph);
            let buffer = sys::ggml_backend_alloc_ctx_tensors_from_buft(weights_graph.0, layout);
            if buffer.is_null() {
                return Ok(None);
            }
            let _weights_buffer = Buffer(buffer);
            let output = match ids.is_null() {
                true => sys::ggml_mul_mat(graph.0, weights, input),
                false => sys::ggml_mul_mat_id(graph.0, weights, input, ids),
            };
            if !device.can_compute(output) {
                return Ok(None);
            }
            let buffer = sys::ggml_backend_alloc_ctx_tensors(graph.0, device.backend());
            if buffer.is_null() {
                return Err(TrialError::NoMemory);
            }
            let _buffer = Buffer(buffer);
            set(weights, packed);
            set(input, &self.input);
            if let Some(experts) = experts {
                set(ids, &experts.ids);
            }
            work(&graph, output).map(Some)
        }
    }

    /// Tensors for the input, and for the chosen experts: null without.
    ///
    /// # Safety
    /// They are valid as long as `graph`.
    unsafe fn inputs(&self, graph: &Graph) -> (*mut sys::ggml_tensor, *mut sys::ggml_tensor) {
        let [rows, depth] = [self.rows, self.depth].map(|n| n as i64);
        // SAFETY: the graph has room for a few tensors without data.
        unsafe {
            let Some(experts) = &self.experts else {
                let planes = self.planes as i64;
                let in_plane = rows / planes;
                let input =
                    sys::ggml_new_tensor_3d(graph.0, sys::GGML_TYPE_F32, depth, in_plane, planes);
                return (input, std::ptr::null_mut());
            };
            let inputs = experts.inputs() as i64;
            let input = sys::ggml_new_tensor_3d(graph.0, sys::GGML_TYPE_F32, depth, inputs, rows);
            let used = experts.used as i64;
            (input, sys::ggml_new_tensor_2d(graph.0, sys::GGML_TYPE_I32, used, rows))
        }
    }
}

/// Copies `values` to a tensor.
///
/// # Safety
/// The tensor has memory, of the same size.
unsafe fn set<T>(tensor: *mut sys::ggml_tensor, values: &[T]) {
    // SAFETY: as above.
    unsafe { sys::ggml_backend_tensor_set(tensor, values.as_ptr().cast(), 0, size_of_val(values)) };
}

#[cfg(test)]
mod tests;
