//! PURE. What flags fix, and what tuning chose for the rest.

use inference_core::llama::{FlashAttention, KvType};
use inference_core::tools::tune::Candidate;
use serde::{Deserialize, Serialize};

/// What flags had fixed. `None`: it was free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names of the flags")]
pub struct Fixed {
    pub threads: Option<u32>,
    pub flash_attention: Option<FlashAttention>,
    pub batch_rows: Option<u32>,
    pub poll: Option<u32>,
    pub slots: Option<u32>,
    pub kv_type: Option<KvType>,
    pub context_tokens: Option<u32>,
    pub cpus: Option<Vec<u32>>,
}

impl Fixed {
    /// Whether what was tuned with these flags is true with `given` ones too: there may be
    /// more of them, because a flag wins over what was tuned. Other CPUs are another machine.
    pub fn holds_with(&self, given: &Self) -> bool {
        fn same<T: PartialEq>(ours: &Option<T>, given: &Option<T>) -> bool {
            ours.is_none() || ours == given
        }
        same(&self.threads, &given.threads)
            && same(&self.flash_attention, &given.flash_attention)
            && same(&self.batch_rows, &given.batch_rows)
            && same(&self.poll, &given.poll)
            && same(&self.slots, &given.slots)
            && same(&self.kv_type, &given.kv_type)
            && same(&self.context_tokens, &given.context_tokens)
            && self.cpus == given.cpus
    }

    /// How many flags are fixed.
    pub fn count(&self) -> usize {
        [
            self.threads.is_some(),
            self.flash_attention.is_some(),
            self.batch_rows.is_some(),
            self.poll.is_some(),
            self.slots.is_some(),
            self.kv_type.is_some(),
            self.context_tokens.is_some(),
        ]
        .iter()
        .filter(|fixed| **fixed)
        .count()
    }
}

/// What tuning chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuned {
    /// How the model is run.
    #[serde(flatten)]
    pub candidate: Candidate,
    /// Requests side by side.
    pub slots: u32,
}

impl Tuned {
    /// Whether the command line could say this; a file may say anything.
    pub fn is_possible(&self) -> bool {
        let Candidate { threads, batch_rows, poll, .. } = self.candidate;
        (1..=512).contains(&threads)
            && (128..=2048).contains(&batch_rows)
            && poll <= 100
            && (1..=64).contains(&self.slots)
    }
}
