//! PURE. Settings fixed by flags, and the tuned values of the others.

use inference_core::llama::{FlashAttention, KvType};
use inference_core::tools::tune::Candidate;
use serde::{Deserialize, Serialize};

/// Values that flags had fixed. `None` if the setting was free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fixed {
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
    /// True if values tuned with these flags also apply to `given` flags. More may be given,
    /// because a flag wins over a tuned value. Other CPUs count as another machine.
    pub(crate) fn holds_with(&self, given: &Self) -> bool {
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

    /// Number of fixed flags.
    pub(crate) fn count(&self) -> usize {
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

/// Tuned settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tuned {
    /// How to run the model.
    #[serde(flatten)]
    pub candidate: Candidate,
    pub slots: u32,
}

impl Tuned {
    /// True if the command line would accept these values; a file may contain anything.
    pub(crate) fn is_possible(&self) -> bool {
        let Candidate { threads, batch_rows, poll, .. } = self.candidate;
        (1..=512).contains(&threads)
            && (128..=2048).contains(&batch_rows)
            && poll <= 100
            && (1..=64).contains(&self.slots)
    }
}
