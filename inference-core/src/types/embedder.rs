//! The narrow view of a model for embeddings that [`crate::scheduler::embed`] steps.

use crate::types::model::{DecodeError, Stop};
use crate::types::request::Token;

/// Sizes that never change while a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedShape {
    /// Requests that are told to be answered side by side.
    pub slots: u32,
    /// Most inputs of one batch.
    pub tracks: u32,
    /// Most tokens of a batch of several inputs.
    pub batch_rows: u32,
    /// Most tokens of an input; a longer one than a batch is computed alone.
    pub input_rows: u32,
}

/// One for each input.
pub type Vectors = Vec<Vec<f32>>;

/// Runs batches of inputs.
pub trait Embedder {
    /// Its sizes.
    fn shape(&self) -> EmbedShape;
    /// The vector of each input, in order; all inputs together fit into a batch. Nothing if
    /// `stop` said in the middle that they are not wanted any more.
    fn embed(
        &mut self,
        inputs: &[&[Token]],
        stop: Stop<'_>,
    ) -> Result<Option<Vectors>, DecodeError>;
}

/// Scales a vector to length 1; one of zeros stays.
pub fn normalise(values: &mut [f32]) {
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
