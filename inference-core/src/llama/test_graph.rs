//! A graph of a few operations for tests of kernels, and the sets of kernels that run here.

use llama_cpp_sys_2 as sys;

use super::attention::tests::runs_here;
use super::device::{Buffer, Device, Graph, new_graph};
use crate::hardware::Kernel;

/// A graph whose tensors have memory.
pub(super) struct Tensors {
    pub(super) graph: Graph,
    buffer: Option<Buffer>,
}

pub(super) type Tensor = *mut sys::ggml_tensor;

impl Tensors {
    pub(super) fn new() -> Self {
        // SAFETY: ggml is linked.
        Self { graph: unsafe { new_graph() }.unwrap(), buffer: None }
    }

    /// A tensor of floats.
    pub(super) fn floats(&self, sizes: [usize; 4]) -> Tensor {
        let [a, b, c, d] = sizes.map(|n| n as i64);
        // SAFETY: the context lives as long as self.
        unsafe { sys::ggml_new_tensor_4d(self.graph.0, sys::GGML_TYPE_F32, a, b, c, d) }
    }

    /// A tensor of whole numbers.
    pub(super) fn integers(&self, count: usize) -> Tensor {
        // SAFETY: the context lives as long as self.
        unsafe { sys::ggml_new_tensor_1d(self.graph.0, sys::GGML_TYPE_I32, count as i64) }
    }

    /// Gives all tensors memory.
    pub(super) fn allocate(&mut self, device: &Device) {
        // SAFETY: the context and the backend are valid; null is checked.
        let buffer = unsafe { sys::ggml_backend_alloc_ctx_tensors(self.graph.0, device.backend()) };
        assert!(!buffer.is_null());
        self.buffer = Some(Buffer(buffer));
    }

    /// Fills an allocated tensor.
    pub(super) fn set<T>(&self, tensor: Tensor, data: &[T]) {
        // SAFETY: the tensor is allocated; its size is compared.
        unsafe {
            assert_eq!(sys::ggml_nbytes(tensor), size_of_val(data));
            sys::ggml_backend_tensor_set(tensor, data.as_ptr().cast(), 0, size_of_val(data));
        }
    }

    /// What an allocated tensor holds.
    pub(super) fn get(&self, tensor: Tensor) -> Vec<f32> {
        // SAFETY: the tensor is allocated and holds floats without gaps.
        unsafe {
            let mut all = vec![0.0f32; sys::ggml_nbytes(tensor) / 4];
            let bytes = size_of_val(all.as_slice());
            sys::ggml_backend_tensor_get(tensor, all.as_mut_ptr().cast(), 0, bytes);
            all
        }
    }
}

/// Every set of kernels that runs here.
pub(super) fn devices() -> impl Iterator<Item = (Kernel, Device)> {
    let here = Kernel::ALL.iter().filter(|kernel| runs_here(**kernel));
    here.map(|kernel| (*kernel, Device::open(*kernel).unwrap()))
}

/// Runs an operation in every set of kernels that runs here. Asserts that its numbers are the same
/// to the last bit, and returns them.
pub(super) fn in_every_set(run: impl Fn(&Device) -> Vec<f32>) -> Vec<f32> {
    let mut all = devices().map(|(kernel, device)| (kernel, run(&device)));
    let (first, numbers) = all.next().unwrap();
    for (kernel, others) in all {
        assert_eq!(numbers.len(), others.len());
        let pairs = || numbers.iter().zip(&others);
        let different = pairs().position(|(a, b)| a.to_bits() != b.to_bits());
        let count = pairs().filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(
            different.map(|i| (i, numbers[i], others[i])),
            None,
            "{count} of {} numbers differ between {first:?} and {kernel:?}",
            numbers.len()
        );
    }
    numbers
}

/// Asserts that numbers are what they should be, but for roundings.
pub(super) fn assert_close(got: &[f32], wanted: &[f64], what: &str) {
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let off = (f64::from(*got) - wanted).abs();
        assert!(off <= 1e-4, "{what}, number {i}: {got}, not {wanted}");
    }
}
