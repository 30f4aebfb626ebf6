//! PURE. Memory of a model's weights, and how much of them each token reads.

use super::PlanError;
use super::layout::Layout;
use crate::hardware::Kernel;
use crate::model_file::gguf::{Header, TensorInfo, kinds};
use crate::model_file::mtp_head;

/// Weights that llama.cpp repacks when it loads them, by CPU features:
/// `ggml_repack_get_optimal_repack_type` in ggml's `repack.cpp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Repacking {
    /// Disabled, or no kernels for it.
    Off,
    /// Repacking on x86-64 with AVX2.
    Avx2,
    /// Repacking on x86-64 with AVX-512.
    Avx512,
    /// Repacking on ARM without dot products.
    Neon,
    /// Repacking on ARM with dot products.
    Dotprod,
}

impl Repacking {
    /// What a set of kernels repacks.
    pub(crate) fn of(kernel: Kernel) -> Self {
        match kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Amx | Kernel::Avx512 => Self::Avx512,
            #[cfg(target_arch = "aarch64")]
            Kernel::Sve | Kernel::I8mm | Kernel::Dotprod => Self::Dotprod,
            Kernel::Baseline if cfg!(target_arch = "x86_64") => Self::Avx2,
            Kernel::Baseline => Self::Neon,
        }
    }

    /// True if a matrix of this type and number of rows is repacked.
    fn applies(self, kind: &str, rows: u64) -> bool {
        let are_eights = rows.is_multiple_of(8);
        match (self, kind) {
            (Self::Off, _) => false,
            (_, "q4_0" | "q4_k" | "iq4_nl" | "mxfp4") if are_eights => true,
            (Self::Avx512, "q2_k") => are_eights,
            // Ours read Q8_0 as it is in the file, unless the rows are no multiple of eight.
            (Self::Dotprod, "q8_0") => rows.is_multiple_of(4) && !are_eights,
            (Self::Dotprod, "q4_0" | "iq4_nl" | "mxfp4" | "q1_0") => rows.is_multiple_of(4),
            _ => false,
        }
    }
}

/// Bytes of a model's weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WeightBytes {
    /// All tensors as they are in the file.
    pub(crate) file_bytes: u64,
    /// Tensors that are used in the file's layout.
    pub(crate) plain_bytes: u64,
    /// Repacked copies.
    pub(crate) repacked_bytes: u64,
    /// Bytes read to compute one token.
    pub(crate) read_bytes: u64,
    /// Number of parameters in all tensors.
    pub(crate) parameters: u64,
}

/// Bytes of a model's weights that a set of kernels repacks; 0 if the header does not tell.
/// Without its MTP head unless `with_head`.
pub fn repacked_bytes(header: &Header, kernel: Kernel, with_head: bool) -> u64 {
    let (layout, repacking) = (Layout::default(), Repacking::of(kernel));
    let weights = WeightBytes::read(header, &layout, repacking, with_head);
    weights.map_or(0, |weights| weights.repacked_bytes)
}

/// Tensors of which each token reads one row.
const TABLES: &[&str] = &[
    "token_embd.weight",
    "per_layer_token_embd.weight",
    "position_embd.weight",
    "token_types.weight",
];

impl WeightBytes {
    /// Sums up the tensors; the error names the one whose size is unknown. An MTP head stays in the
    /// file unless `with_head`.
    pub(crate) fn read(
        header: &Header,
        layout: &Layout,
        repacking: Repacking,
        with_head: bool,
    ) -> Result<Self, PlanError> {
        let tied = !header.tensor_list.iter().any(|t| t.name == "output.weight");
        let mut sum = Self::default();
        for tensor in &header.tensor_list {
            let bytes = tensor.bytes().ok_or_else(|| unknown(tensor))?;
            let table = TABLES.contains(&tensor.name.as_str());
            let is_output = tied && tensor.name == "token_embd.weight";
            let repacked = is_repacked(tensor, repacking) && (!table || is_output);
            let add = |to: &mut u64, n: u64| *to = to.saturating_add(n);
            add(&mut sum.file_bytes, bytes);
            add(&mut sum.parameters, tensor.elements());
            let of_head = mtp_head::has_tensor(header, &tensor.name);
            if of_head && !with_head {
                continue;
            }
            if repacked {
                add(&mut sum.repacked_bytes, bytes);
            }
            // An embedding table that is also the output matrix is held twice.
            if !repacked || table {
                add(&mut sum.plain_bytes, bytes);
            }
            if (!table || is_output) && !of_head {
                add(&mut sum.read_bytes, read_of(tensor, bytes, layout));
            }
        }
        Ok(sum)
    }
}

fn unknown(tensor: &TensorInfo) -> PlanError {
    let kind = match kinds::kind(tensor.kind) {
        Some(kind) => format!("{}, which its rows do not fit", kind.name),
        None => format!("number {}", tensor.kind),
    };
    PlanError::UnknownTensor { name: tensor.name.clone(), kind }
}

fn is_experts(tensor: &TensorInfo) -> bool {
    tensor.dimensions.len() == 3 && tensor.name.contains("_exps.")
}

/// Each token reads only the experts that it uses.
fn read_of(tensor: &TensorInfo, bytes: u64, layout: &Layout) -> u64 {
    if !is_experts(tensor) || layout.experts == 0 {
        return bytes;
    }
    let used = layout.experts_used.clamp(1, layout.experts);
    (u128::from(bytes) * u128::from(used) / u128::from(layout.experts)) as u64
}

fn is_repacked(tensor: &TensorInfo, repacking: Repacking) -> bool {
    let Some(kind) = kinds::kind(tensor.kind) else { return false };
    // Matrices of experts, and of the heads of latent attention.
    let matrix = [2, 3].contains(&tensor.dimensions.len());
    let rows = tensor.dimensions.get(1).copied().unwrap_or(0);
    matrix && tensor.name.ends_with(".weight") && rows > 0 && repacking.applies(kind.name, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, dimensions: &[u64], kind: &str) -> TensorInfo {
        let kind = kinds::named(kind).unwrap().code;
        TensorInfo { name: name.into(), dimensions: dimensions.to_vec(), kind }
    }

    fn header(tensor_list: Vec<TensorInfo>) -> Header {
        Header { architecture: "llama".into(), tensor_list, ..Header::default() }
    }

    #[test]
    fn a_tied_table_that_is_repacked_is_held_twice_and_read_once() {
        let list = vec![tensor("token_embd.weight", &[32, 64], "q4_0")];
        let layout = Layout::default();
        let weights =
            WeightBytes::read(&header(list.clone()), &layout, Repacking::Avx2, false).unwrap();
        assert_eq!((weights.plain_bytes, weights.repacked_bytes), (64 * 18, 64 * 18));
        assert_eq!((weights.read_bytes, weights.parameters), (64 * 18, 2048));
        let untied = [list, vec![tensor("output.weight", &[32, 64], "q8_0")]].concat();
        let weights = WeightBytes::read(&header(untied), &layout, Repacking::Avx2, false).unwrap();
        assert_eq!((weights.repacked_bytes, weights.read_bytes), (0, 64 * 34));
    }

    #[test]
    fn what_is_repacked_depends_on_the_type_the_rows_and_the_machine() {
        let cases = [
            ("q4_k", 8, Repacking::Avx2, true),
            ("q4_k", 12, Repacking::Avx2, false),
            ("q6_k", 8, Repacking::Avx512, false),
            ("q2_k", 8, Repacking::Avx2, false),
            ("q2_k", 8, Repacking::Avx512, true),
            ("q8_0", 8, Repacking::Avx512, false),
            ("q8_0", 4, Repacking::Dotprod, true),
            ("q8_0", 8, Repacking::Dotprod, false),
            ("q6_k", 8, Repacking::Dotprod, false),
            ("q4_k", 8, Repacking::Dotprod, true),
            ("q4_0", 4, Repacking::Dotprod, true),
            ("q4_0", 4, Repacking::Neon, false),
            ("q4_0", 8, Repacking::Neon, true),
            ("q1_0", 8, Repacking::Neon, false),
            ("q4_0", 8, Repacking::Off, false),
        ];
        for (kind, rows, repacking, expected) in cases {
            let tensor = tensor("blk.0.ffn_up.weight", &[256, rows], kind);
            assert_eq!(is_repacked(&tensor, repacking), expected, "{kind} {rows} {repacking:?}");
        }
    }

    #[test]
    fn a_token_reads_the_experts_that_it_uses() {
        let list = vec![tensor("blk.0.ffn_up_exps.weight", &[32, 8, 64], "q8_0")];
        let layout = Layout { experts: 64, experts_used: 8, ..Layout::default() };
        let weights = WeightBytes::read(&header(list), &layout, Repacking::Avx2, false).unwrap();
        assert_eq!((weights.file_bytes, weights.read_bytes), (64 * 8 * 34, 8 * 8 * 34));
    }

    #[test]
    fn a_type_that_nobody_knows_is_an_error_with_the_tensors_name() {
        let mut odd = tensor("blk.0.odd.weight", &[32, 8], "q8_0");
        odd.kind = 77;
        let error =
            WeightBytes::read(&header(vec![odd]), &Layout::default(), Repacking::Off, false);
        let text = error.unwrap_err().to_string();
        assert!(text.contains("blk.0.odd.weight") && text.contains("77"), "{text}");
        let broken = tensor("w.weight", &[33, 8], "q8_0");
        assert!(
            WeightBytes::read(&header(vec![broken]), &Layout::default(), Repacking::Off, false)
                .is_err()
        );
    }
}
