//! Embedding and reranking models on llama.cpp.

use llama_cpp_sys_2 as sys;

use super::batch::Batch;
use super::context::POLL;
use super::stop::{STOPPED, run_stoppable};
use super::threads::ThreadPool;
use super::weights::Pooling;
use super::{LoadError, Weights, log};
use crate::model_file::memory_plan::{
    EMBED_BATCH_INPUTS as BATCH_INPUTS, EMBED_BATCH_ROWS as BATCH_ROWS,
};
use crate::types::embedder::{EmbedShape, Embedder, Embeddings, normalise};
use crate::types::model::{DecodeError, Row, Stop};
use crate::types::request::Token;

/// Parameters of a context for embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedOptions {
    /// Number of parallel requests to advertise.
    pub slots: u32,
    /// Maximum tokens of one input.
    pub context_tokens: u32,
    /// How the token embeddings of a text are pooled into one.
    pub pooling: Pooling,
    /// Number of compute threads.
    pub threads: u32,
}

/// The [`Embedder`] that runs on llama.cpp.
#[derive(Debug)]
pub struct LlamaEmbedder {
    context: *mut sys::llama_context,
    batch: Batch,
    shape: EmbedShape,
    /// Elements of one result.
    width: usize,
    /// Index of the score among them, for a reranking model.
    score: usize,
    pooling: Pooling,
    /// Dropped after the context, which uses it.
    _threads: ThreadPool,
    weights: Weights,
}

// SAFETY: the context has no ties to the thread that created it; one thread owns it at a time.
unsafe impl Send for LlamaEmbedder {}

impl Drop for LlamaEmbedder {
    fn drop(&mut self) {
        // SAFETY: freed once, before the threads and weights (fields drop after this).
        unsafe { sys::llama_free(self.context) };
    }
}

impl LlamaEmbedder {
    /// Creates a context and embeds one token, so that the first request does not pay for the
    /// warm-up.
    pub fn new(weights: Weights, options: EmbedOptions) -> Result<Self, LoadError> {
        Self::in_parts(weights, options, BATCH_ROWS)
    }

    /// Like [`LlamaEmbedder::new`], but splits long texts into ubatches of `part` rows where
    /// possible.
    fn in_parts(weights: Weights, options: EmbedOptions, part: u32) -> Result<Self, LoadError> {
        if options.pooling == Pooling::Rank {
            weights.check_ranking()?;
        }
        let rows = options.context_tokens.max(BATCH_ROWS);
        let threads = i32::try_from(options.threads.clamp(1, 512)).unwrap_or(1);
        let pool = ThreadPool::new(threads, POLL)?;
        let part = match options.pooling {
            // Only the last token's embedding counts, and it comes with the last ubatch.
            Pooling::Last if !weights.is_bidirectional() => part.min(rows),
            _ => rows,
        };
        let context = new_context(&weights, [rows, part], threads, options.pooling)?;
        // SAFETY: the context is valid, and freed in Drop before the pool field.
        unsafe { pool.attach(context) };
        let shape = EmbedShape {
            slots: options.slots.max(1),
            batch_inputs: BATCH_INPUTS,
            batch_rows: BATCH_ROWS,
            input_rows: rows,
        };
        let width = match options.pooling {
            Pooling::Rank => weights.labels().max(1) as usize,
            _ => weights.embedding_width() as usize,
        };
        let score = weights.score_label();
        let (batch, pooling) = (Batch::new(rows), options.pooling);
        let mut embedder =
            Self { context, batch, shape, width, score, pooling, _threads: pool, weights };
        embedder.embed(&[&[0]], &|| false).map_err(|e| LoadError::WarmUp(e.0))?;
        Ok(embedder)
    }

    fn fill(&mut self, inputs: &[&[Token]]) {
        let rows: Vec<Row> = (0u32..)
            .zip(inputs)
            .flat_map(|(seq, tokens)| {
                (0u32..).zip(*tokens).map(move |(position, token)| {
                    // Pooling needs the output of every row.
                    Row { seq, position, token: *token, logits: true }
                })
            })
            .collect();
        self.batch.fill(&rows);
    }

    fn run(&mut self, stop: Stop<'_>) -> i32 {
        let (context, batch, is_encoder) =
            (self.context, self.batch.raw(), self.weights.is_encoder());
        // SAFETY: the batch was filled within its capacity; the context is valid. Memory is
        // null for models without one.
        unsafe {
            let code = run_stoppable(context, stop, || match is_encoder {
                true => sys::llama_encode(context, batch),
                false => sys::llama_decode(context, batch),
            });
            let memory = sys::llama_get_memory(self.context);
            if !memory.is_null() {
                sys::llama_memory_clear(memory, false);
            }
            code
        }
    }

    fn embedding(&self, seq: usize) -> Result<Vec<f32>, DecodeError> {
        // SAFETY: `seq` was part of the last batch; null is checked; pooled results have as many
        // elements as the model reports.
        let values = unsafe {
            let values = sys::llama_get_embeddings_seq(self.context, seq as i32);
            if values.is_null() {
                return Err(DecodeError("the model made no vector".into()));
            }
            std::slice::from_raw_parts(values, self.width)
        };
        Ok(values.to_vec())
    }
}

impl Embedder for LlamaEmbedder {
    fn shape(&self) -> EmbedShape {
        self.shape
    }

    fn embed(
        &mut self,
        inputs: &[&[Token]],
        stop: Stop<'_>,
    ) -> Result<Option<Embeddings>, DecodeError> {
        let rows: usize = inputs.iter().map(|tokens| tokens.len()).sum();
        if rows > self.shape.input_rows as usize || inputs.len() > BATCH_INPUTS as usize {
            return Err(DecodeError("the inputs do not fit into a batch".into()));
        }
        self.fill(inputs);
        match self.run(stop) {
            0 => {}
            STOPPED => return Ok(None),
            code => return Err(DecodeError(format!("llama_decode returned {code}"))),
        }
        let one_label = self.weights.labels() <= 1;
        let embeddings = (0..inputs.len()).map(|seq| {
            let mut values = self.embedding(seq)?;
            match self.pooling {
                // A classifier with one label outputs a logit; one with more outputs probabilities.
                Pooling::Rank => {
                    let score = values.get(self.score).copied().unwrap_or_default();
                    values = vec![if one_label { 1.0 / (1.0 + (-score).exp()) } else { score }];
                }
                _ => normalise(&mut values),
            }
            Ok(values)
        });
        embeddings.collect::<Result<_, _>>().map(Some)
    }
}

fn new_context(
    weights: &Weights,
    [rows, part]: [u32; 2],
    threads: i32,
    pooling: Pooling,
) -> Result<*mut sys::llama_context, LoadError> {
    // SAFETY: the weights are valid and outlive the context; null is checked.
    let context = unsafe {
        let mut params = sys::llama_context_default_params();
        params.embeddings = true;
        params.pooling_type = pooling.raw();
        params.kv_unified = true;
        params.n_ctx = rows;
        params.n_seq_max = BATCH_INPUTS;
        // Most of these models process a text at once, because their attention is bidirectional.
        params.n_batch = rows;
        params.n_ubatch = part;
        params.swa_full = false;
        params.n_threads = threads;
        params.n_threads_batch = threads;
        params.no_perf = true;
        sys::llama_init_from_model(weights.as_ptr(), params)
    };
    if context.is_null() { Err(LoadError::Context(log::take_first_error())) } else { Ok(context) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llama::context::tests::{distance, weights};

    const NEVER: Stop<'static> = &|| false;

    fn embed(shape: &str, part: u32, inputs: &[&[Token]]) -> Embeddings {
        let options =
            EmbedOptions { slots: 1, context_tokens: 600, pooling: Pooling::Last, threads: 1 };
        let mut embedder = LlamaEmbedder::in_parts(weights(shape), options, part).unwrap();
        embedder.embed(inputs, NEVER).unwrap().unwrap()
    }

    fn text(number: u32, tokens: u32) -> Vec<Token> {
        let token = |i| 33 + if i + 1 == tokens { 5 } else { (number * 7 + i * (3 + number)) % 90 };
        (0..tokens).map(token).collect()
    }

    #[test]
    fn a_text_that_is_read_in_parts_gets_the_embedding_of_the_whole() {
        let texts = [text(0, 250), text(1, 30), text(2, 200), text(3, 120)];
        let inputs: Vec<&[Token]> = texts.iter().map(Vec::as_slice).collect();
        for shape in ["tiny", "tiny-window", "tiny-hybrid"] {
            let (whole, parts) = (embed(shape, 600, &inputs), embed(shape, 64, &inputs));
            let apart = distance(&whole[0], &whole[2]);
            for (i, (a, b)) in whole.iter().zip(&parts).enumerate() {
                let off = distance(a, b);
                assert!(off < 0.1 * apart, "{shape}, {i}: {off} where texts are {apart} apart");
            }
        }
    }
}
