//! The narrow view of an embedding model that [`crate::scheduler::embed`] steps.

use crate::types::model::{DecodeError, Stop};
use crate::types::request::Token;

/// Sizes that are fixed while a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedShape {
    /// Number of parallel requests to advertise.
    pub slots: u32,
    /// Maximum inputs in one batch.
    pub(crate) batch_inputs: u32,
    /// Maximum tokens in a batch of several inputs.
    pub batch_rows: u32,
    /// Maximum tokens of one input; one that is longer than a batch is computed alone.
    pub(crate) input_rows: u32,
}

/// One embedding per input.
pub(crate) type Embeddings = Vec<Vec<f32>>;

/// Runs batches of inputs.
pub trait Embedder {
    /// The sizes of this model.
    fn shape(&self) -> EmbedShape;
    /// Computes the embedding of each input, in order; all inputs together fit into a batch.
    /// Returns `None` if `stop` reported in the middle that no one wants them any more.
    fn embed(
        &mut self,
        inputs: &[&[Token]],
        stop: Stop<'_>,
    ) -> Result<Option<Embeddings>, DecodeError>;
}

/// Scales an embedding to length 1; leaves a zero vector unchanged.
pub(crate) fn normalise(values: &mut [f32]) {
    let length = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt() as f32;
    if length > 0.0 && length.is_finite() {
        values.iter_mut().for_each(|v| *v /= length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_normalised_vector_has_length_one() {
        let mut values = [3.0, 4.0];
        normalise(&mut values);
        assert_eq!(values, [0.6, 0.8]);
        let mut zeros = [0.0; 3];
        normalise(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
    }
}
