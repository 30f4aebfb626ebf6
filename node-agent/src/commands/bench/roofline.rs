//! How fast a model could be decoded on this machine, by what it must read and multiply: bytes of
//! weights per step over the speed of memory, or products per token over the speed of its
//! arithmetic, whichever takes longer (Williams, Waterman and Patterson, "Roofline", 2009).
//!
//! Attention and activations are left out: with short contexts they are small beside the weights.

use inference_core::hardware::bandwidth;
use inference_core::hardware::report::Machine;
use inference_core::llama::products_per_second;
use inference_core::model_file::gguf::{Header, TensorInfo};

use super::Setup;
use super::report::{Figure, Step};
use crate::commands::hardware;
use crate::types::exit::Failed;

/// What this machine can do at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Peaks {
    /// Bytes read per second; `None` if there is too little memory to measure it.
    pub bytes: Option<f64>,
    /// Products of 8-bit integers per second.
    pub products: f64,
}

/// What a model's weights ask for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Work {
    /// Bytes that every step reads.
    dense_bytes: f64,
    /// Bytes of all experts.
    expert_bytes: f64,
    /// The part of the experts that a token uses.
    share: f64,
    /// Products of a token in the layers.
    layer_products: f64,
    /// Products of a token whose successor is wanted, in the output matrix.
    output_products: f64,
}

impl Peaks {
    /// Measures them.
    pub(crate) fn measure(setup: Setup, machine: &Machine) -> Result<Self, Failed> {
        let threads = setup.threads as usize;
        let measured = hardware::measure(machine).map_err(Failed::software)?;
        let products = products_per_second(setup.kernel, threads).map_err(Failed::software)?;
        Ok(Self { bytes: measured.map(|bandwidth: bandwidth::Bandwidth| bandwidth.best), products })
    }

    pub(crate) fn figures(&self) -> Vec<Figure> {
        let products = self.products / 1e9;
        let how = "10^9 products of 8-bit integers per second, at most";
        let products = Figure::new("peak_products", products, None, how);
        let bytes = |bytes| Figure::new("peak_memory", bytes / 1e9, None, "GB/s of reads, at most");
        self.bytes.map(bytes).into_iter().chain([products]).collect()
    }
}

impl Work {
    /// The work of a model file. Embeddings of tokens are looked up, unless they are the output
    /// matrix, too.
    pub(crate) fn of(header: &Header) -> Self {
        let has_output = header.tensor_list.iter().any(|tensor| tensor.name == "output.weight");
        let number = |key| header.number(key).filter(|n| *n > 0).map(|n| n as f64);
        let share = match (number("expert_used_count"), number("expert_count")) {
            (Some(used), Some(all)) => (used / all).min(1.0),
            _ => 1.0,
        };
        let mut work = Self { share, ..Self::default() };
        for tensor in &header.tensor_list {
            if is_product(tensor, has_output) {
                work.add(tensor);
            }
        }
        work
    }

    fn add(&mut self, tensor: &TensorInfo) {
        let (elements, bytes) = (tensor.elements() as f64, tensor.bytes().unwrap_or(0) as f64);
        if tensor.dimensions.len() > 2 {
            self.expert_bytes += bytes;
            self.layer_products += elements * self.share;
            return;
        }
        self.dense_bytes += bytes;
        match tensor.name.as_str() {
            "output.weight" | "token_embd.weight" => self.output_products += elements,
            _ => self.layer_products += elements,
        }
    }

    /// Bytes that a step reads which makes a token for each of `rows` sequences. Tokens choose
    /// their experts as if by chance.
    fn bytes(&self, rows: f64) -> f64 {
        self.dense_bytes + self.expert_bytes * (1.0 - (1.0 - self.share).powf(rows))
    }

    /// Tokens per second of such steps, at most.
    pub(crate) fn limit(&self, Step { rows, outputs }: Step, peaks: Peaks) -> Option<f64> {
        let (rows, outputs) = (f64::from(rows), f64::from(outputs));
        let reading = self.bytes(rows) / peaks.bytes?;
        let products = rows * self.layer_products + outputs * self.output_products;
        let multiplying = products / peaks.products;
        let limit = rows / reading.max(multiplying);
        limit.is_finite().then_some(limit)
    }
}

/// True for matrices that tokens are multiplied by.
fn is_product(tensor: &TensorInfo, has_output: bool) -> bool {
    let name = &tensor.name;
    let is_matrix = tensor.dimensions.len() >= 2 && name.ends_with(".weight");
    let is_looked_up = match name.as_str() {
        "token_embd.weight" => has_output,
        name => name.contains("position_embd") || name.contains("token_types"),
    };
    is_matrix && !is_looked_up
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F32.
    const KIND: u32 = 0;

    fn tensor(name: &str, dimensions: &[u64]) -> TensorInfo {
        TensorInfo { name: name.into(), dimensions: dimensions.into(), kind: KIND }
    }

    fn header(tensors: Vec<TensorInfo>, experts: &[(&str, u64)]) -> Header {
        let numbers = experts.iter().map(|(key, n)| (format!("llama.{key}"), vec![*n]));
        Header {
            architecture: "llama".into(),
            tensor_list: tensors,
            numbers: numbers.collect(),
            ..Header::default()
        }
    }

    const PEAKS: Peaks = Peaks { bytes: Some(1e9), products: 1e9 };

    #[test]
    fn few_rows_are_limited_by_reading_and_many_by_multiplying() {
        let work = Work::of(&header(
            vec![
                tensor("token_embd.weight", &[100, 5000]),
                tensor("output.weight", &[100, 5000]),
                tensor("blk.0.attn_norm.weight", &[100]),
            ],
            &[],
        ));
        // 500,000 products and 2,000,000 bytes.
        let limit = |rows, outputs| work.limit(Step { rows, outputs }, PEAKS);
        assert_eq!(
            [limit(1, 1), limit(4, 4), limit(16, 16)].map(Option::unwrap),
            [500.0, 2e3, 2e3]
        );
        assert_eq!(limit(16, 1), Some(8000.0), "one output");
        let step = Step { rows: 1, outputs: 1 };
        assert_eq!(work.limit(step, Peaks { bytes: None, ..PEAKS }), None);
        let tied = Work::of(&header(vec![tensor("token_embd.weight", &[100, 5000])], &[]));
        assert_eq!(tied, work, "it is the output matrix, too");
    }

    #[test]
    fn a_token_uses_some_experts_and_many_tokens_use_all() {
        let experts = [("expert_count", 8), ("expert_used_count", 2)];
        let tensors = vec![tensor("blk.0.ffn_up_exps.weight", &[100, 100, 8])];
        let work = Work::of(&header(tensors, &experts));
        assert_eq!(work.bytes(1.0), 80_000.0);
        assert!((work.bytes(100.0) - 320_000.0).abs() < 1.0);
        assert_eq!(work.layer_products, 20_000.0);
    }

    #[test]
    fn a_file_without_matrices_has_no_limit() {
        assert_eq!(Work::of(&Header::default()).limit(Step { rows: 1, outputs: 1 }, PEAKS), None);
    }
}
