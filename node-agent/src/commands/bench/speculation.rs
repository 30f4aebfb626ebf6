//! Measures what speculation gains on text that repeats its prompt or that a draft model knows, and
//! what it costs on text of which neither is true.

use inference_core::tools::bench::Bench;
use inference_core::tools::bench::echo::EchoModel;
use inference_core::types::model::Model;
use inference_core::types::request::{RequestId, Sampling};

/// Clients at a time.
pub(super) const CLIENTS: [u32; 3] = [1, 2, 4];
/// How many of a thousand tokens are copied from the prompt, and what such text is called.
pub(super) const TEXTS: [(u64, &str); 3] = [(0, "new_text"), (800, "loose_copy"), (950, "copy")];
/// How many of a thousand tokens of a new text a draft model knows.
pub(super) const AGREED: [u64; 3] = [0, 700, 850];
/// Tokens of a prompt, and of a response.
const PROMPT: u32 = 200;
const RESPONSE: u32 = 200;

/// What drafts follow from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text<M> {
    /// How many of a thousand tokens repeat the prompt.
    pub copied: u64,
    /// A draft model, and how many of a thousand tokens it knows.
    pub draft: Option<(M, u64)>,
}

/// Tokens per second of `clients` clients for a text.
pub(super) fn speed<M: Model>(model: M, clients: u32, text: Text<M>, speculation: bool) -> f64 {
    let model = EchoModel::new(model, PROMPT, text.copied);
    let mut bench = Bench::new(model).with_speculation(speculation);
    if let Some((draft, agreed)) = text.draft {
        let draft = EchoModel::new(draft, PROMPT, text.copied).with_agreed(agreed);
        bench = bench.with_draft_model(draft);
    }
    // No prompt repeats itself.
    let ask = |n| (0..PROMPT).map(|i| 100 + n * PROMPT + i).collect();
    let ids: Vec<RequestId> =
        (0..clients).map(|n| bench.submit(ask(n), RESPONSE, Sampling::GREEDY)).collect();
    bench.finish(&ids);
    let all = ids.iter().map(|id| &bench.timing(*id).tokens);
    // While all of them decode.
    let begun = all.clone().filter_map(|tokens| tokens.first()).max();
    let ended = all.clone().filter_map(|tokens| tokens.last()).min();
    let (Some(begun), Some(ended)) = (begun, ended) else { return f64::NAN };
    let count = all.flatten().filter(|at| (begun..ended).contains(at)).count();
    count as f64 / (*ended - *begun).as_secs_f64()
}
