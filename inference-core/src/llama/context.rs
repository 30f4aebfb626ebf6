//! A llama.cpp context on loaded weights: the KV cells and the compute buffers.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use llama_cpp_sys_2 as sys;
use serde::{Deserialize, Serialize};

use super::batch::Batch;
use super::kv_type::KvType;
use super::mtp_head::{self, Role};
use super::output_rows::{self, OutputRows};
use super::stop::{STOPPED, run_stoppable};
use super::threads::ThreadPool;
use super::weights::Weights;
use super::workers::Workers;
use super::{LoadError, log};
use crate::model_file::memory_plan::{KEPT_SEQUENCES, LOGITS_ROWS_MIN, SEQUENCES_MAX};
use crate::types::model::SeqId;
use crate::types::model::{DecodeError, Decoded, Model, Row, Shape, Stop, Undo};
use crate::types::request::Token;
use crate::types::unknown_name::UnknownName;

/// Default maximum rows of one batch. A batch is one graph, so this limits the duration of a step.
pub const BATCH_ROWS: u32 = 512;
/// Allowed maximum rows: enough for one row per slot, and buffers stay small.
const BATCH_ROWS_RANGE: std::ops::RangeInclusive<u32> = 128..=2048;
/// Allowed maximum of compute threads.
const THREADS_MAX: u32 = 512;
/// Fewest logits that are shared out: threads take some microseconds to begin.
const SHARED_LOGITS_MIN: usize = 1 << 16;
/// How long idle threads poll before they sleep, in percent; ggml's default.
pub const POLL: u32 = 50;

/// Whether to use flash attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlashAttention {
    /// llama.cpp decides.
    Auto,
    /// Always use flash attention.
    On,
    /// Never use flash attention.
    Off,
}

impl FlashAttention {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl std::str::FromStr for FlashAttention {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(UnknownName::new("choice", name, &["auto", "on", "off"])),
        }
    }
}

/// Parameters of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOptions {
    /// Parallel sequences, 1 to 256.
    pub slots: u32,
    /// Maximum tokens of one sequence.
    pub context_tokens: u32,
    /// KV cells of all sequences, live and kept; at least `context_tokens`.
    pub kv_cells: u32,
    /// Share cached prefixes between prompts, if the model allows it.
    pub prefix_cache: bool,
    /// Memory for saved prefixes in bytes.
    pub saved_prefix_bytes: u64,
    /// Number of compute threads.
    pub threads: u32,
    /// Storage type of keys and values.
    pub kv_type: KvType,
    /// Whether to use flash attention.
    pub flash_attention: FlashAttention,
    /// Maximum rows of one batch, 128 to 2048.
    pub batch_rows: u32,
    /// How long idle threads poll before they sleep, 0 to 100.
    pub poll: u32,
    /// Keep what has left a sliding window, so that a sequence can lose any number of tokens.
    pub whole_windows: bool,
}

impl Default for ContextOptions {
    /// One small sequence.
    fn default() -> Self {
        Self {
            slots: 1,
            context_tokens: 256,
            kv_cells: 256,
            prefix_cache: true,
            saved_prefix_bytes: 0,
            threads: 1,
            kv_type: KvType::F16,
            flash_attention: FlashAttention::Auto,
            batch_rows: BATCH_ROWS,
            poll: POLL,
            whole_windows: false,
        }
    }
}

/// The [`Model`] that runs on llama.cpp.
#[derive(Debug)]
pub struct LlamaModel {
    context: *mut sys::llama_context,
    batch: Batch,
    /// Input of the rows of the next batch, in an MTP head.
    hidden_states: Vec<f32>,
    /// Tokens that have logits.
    first_logits: u32,
    shape: Shape,
    /// None with a single thread. Dropped before the threads.
    workers: Option<RefCell<Workers>>,
    /// Dropped after the context, which uses it. A model that computes holds the lock.
    threads: Arc<Mutex<ThreadPool>>,
    weights: Weights,
}

// SAFETY: the context has no ties to the thread that created it; one thread owns it at a time.
unsafe impl Send for LlamaModel {}

impl Drop for LlamaModel {
    fn drop(&mut self) {
        // SAFETY: freed once, before the threads and weights (fields drop after this).
        unsafe { sys::llama_free(self.context) };
    }
}

impl LlamaModel {
    /// Creates a context and runs one batch of every kind, so that the first request does not pay
    /// for the warm-up, an unsupported kernel crashes here, and it is known whether a sequence can
    /// lose its last token.
    pub fn new(weights: Weights, options: ContextOptions) -> Result<Self, LoadError> {
        let threads = options.threads.clamp(1, THREADS_MAX) as i32;
        let threads = ThreadPool::new(threads, options.poll)?;
        Self::on(Arc::new(Mutex::new(threads)), weights, options, Role::Model)
    }

    /// A draft model, on the threads of another model. They compute in turns.
    pub(super) fn beside(
        other: &Self,
        weights: Weights,
        options: ContextOptions,
    ) -> Result<Self, LoadError> {
        Self::on(other.threads.clone(), weights, options, Role::DraftModel)
    }

    /// The MTP head of a model, on its threads.
    pub(super) fn head_of(model: &Self, options: ContextOptions) -> Result<Self, LoadError> {
        Self::on(model.threads.clone(), model.weights.clone(), options, Role::MtpHead)
    }

    fn on(
        pool: Arc<Mutex<ThreadPool>>,
        weights: Weights,
        options: ContextOptions,
        role: Role,
    ) -> Result<Self, LoadError> {
        if weights.is_encoder() {
            return Err(LoadError::NotGenerative);
        }
        let slots = options.slots.clamp(1, SEQUENCES_MAX);
        let kv_cells = options.kv_cells.max(options.context_tokens);
        // Models that cannot share prefixes keep no finished sequences in the context: each would
        // need its own state, or cells for a window.
        let shares_prefixes = options.prefix_cache && weights.can_share_prefixes();
        let saved = if options.prefix_cache { options.saved_prefix_bytes } else { 0 };
        let kept = if shares_prefixes { KEPT_SEQUENCES } else { 0 };
        let seq_ids = (slots + kept).min(SEQUENCES_MAX);
        let threads = options.threads.clamp(1, THREADS_MAX) as i32;
        let (least, most) = BATCH_ROWS_RANGE.into_inner();
        let batch_rows = options.batch_rows.clamp(least, most);
        let sized = ContextOptions { kv_cells, batch_rows, ..options };
        // One more sequence id is for the checkpoint.
        let has_spare = role != Role::MtpHead && weights.is_recurrent() && seq_ids < SEQUENCES_MAX;
        let all = seq_ids + u32::from(has_spare);
        let context = new_context(&weights, all, threads, sized, role)?;
        let turn = pool.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the context is valid, and freed in Drop before the pool field.
        unsafe { turn.attach(context) };
        let workers = (threads > 1).then(|| Workers::new(&turn, threads)).transpose();
        drop(turn);
        let shape = Shape {
            slots,
            seq_ids,
            logits_rows: logits_rows(seq_ids, role),
            kv_cells,
            shares_prefixes,
            undo: if has_spare { Undo::WholeBatch } else { Undo::Nothing },
            saved_bytes_max: usize::try_from(saved).unwrap_or(usize::MAX),
            context_tokens: options.context_tokens,
            batch_rows,
            vocabulary: weights.vocabulary(),
            hidden_width: if weights.has_mtp_head() { weights.embedding_width() } else { 0 },
        };
        let follows = if role == Role::MtpHead { batch_rows * shape.hidden_width } else { 0 };
        let mut model = Self {
            context,
            batch: Batch::new(batch_rows),
            hidden_states: vec![0.0; follows as usize],
            first_logits: shape.vocabulary,
            shape,
            workers: None,
            threads: pool,
            weights,
        };
        model.workers = workers?.map(RefCell::new);
        model.warm_up().map_err(|e| LoadError::WarmUp(e.0))?;
        Ok(model)
    }

    pub(super) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Removes what a stopped batch left. llama.cpp removes the ubatch in which it stopped;
    /// ubatches before that remain.
    fn take_back(&mut self, rows: &[Row]) {
        let mut last = None;
        // Rows of one sequence are consecutive: the first one has its previous length.
        for row in rows.iter().filter(|row| last.replace(row.seq) != Some(row.seq)) {
            if !self.remove_from(row.seq, row.position) {
                self.clear(row.seq);
            }
        }
    }

    /// Removes a sequence's cells from a position on. False if that is impossible, because a
    /// recurrent state covers all of it.
    fn remove_from(&mut self, seq: SeqId, position: u32) -> bool {
        let (seq, position) = (seq as i32, position as i32);
        // SAFETY: the context is valid and the sequence id is below its n_seq_max.
        unsafe {
            let memory = sys::llama_get_memory(self.context);
            sys::llama_memory_seq_rm(memory, seq, position, -1)
        }
    }

    /// Makes a sequence id hold what another one does, until either of them changes: the next batch
    /// of a sequence whose state another one shares writes to a new place.
    fn copy(&mut self, from: SeqId, to: SeqId) {
        let (from, to) = (from as i32, to as i32);
        // SAFETY: the context is valid and both sequence ids are below its n_seq_max.
        unsafe {
            sys::llama_memory_seq_cp(sys::llama_get_memory(self.context), from, to, -1, -1);
        }
    }

    fn warm_up(&mut self) -> Result<(), DecodeError> {
        let row = |seq, position, logits| Row { seq, position, token: 0, logits };
        let prompt = (self.shape.context_tokens - 1).min(16);
        let rows: Vec<Row> = (0..prompt).map(|i| row(0, i, i + 1 == prompt)).collect();
        let never: Stop<'_> = &|| false;
        self.decode(&rows, never)?;
        // A recurrent state cannot lose a token. A sliding window can: a batch only takes the cells
        // of tokens that no row of it sees, and no row after the first one of it does.
        let can_truncate = self.remove_from(0, prompt - 1);
        if can_truncate {
            self.shape.undo = Undo::LastTokens;
        } else if self.shape.undo == Undo::WholeBatch {
            self.checkpoint(0, self.shape.seq_ids);
            self.decode(&[row(0, prompt, true)], never)?;
            self.roll_back(0, self.shape.seq_ids);
        }
        let prompt = if can_truncate { prompt - 1 } else { prompt };
        let side_by_side: Vec<Row> = (1..self.shape.slots)
            .map(|seq| row(seq, 0, true))
            .chain([row(0, prompt, true)])
            .collect();
        self.decode(&side_by_side, never)?;
        (0..self.shape.slots).for_each(|seq| self.clear(seq));
        self.decode(&[row(0, 0, true)], never)?;
        self.clear(0);
        Ok(())
    }
}

fn logits_rows(seq_ids: u32, role: Role) -> u32 {
    match role {
        Role::Model => seq_ids.max(LOGITS_ROWS_MIN),
        // One row of each sequence is drafted at a time, and the spare one is for a checkpoint.
        Role::DraftModel | Role::MtpHead => seq_ids + 1,
    }
}

fn new_context(
    weights: &Weights,
    seq_ids: u32,
    threads: i32,
    options: ContextOptions,
    role: Role,
) -> Result<*mut sys::llama_context, LoadError> {
    // SAFETY: the weights are valid and outlive the context; null is checked.
    let context = unsafe {
        let mut params = sys::llama_context_default_params();
        // One pool of KV cells for all sequences, managed in crate::scheduler::kv_pool.
        params.kv_unified = true;
        // Reuse cells that have left their sliding window: no sequence goes back to them, except in
        // a stopped batch, which started after them.
        params.swa_full = options.whole_windows;
        params.n_ctx = options.kv_cells;
        params.n_seq_max = seq_ids;
        params.n_batch = options.batch_rows;
        params.n_ubatch = options.batch_rows;
        // Otherwise the graph reserves logits for every row of a batch. llama.cpp requires room for
        // one row per sequence.
        params.n_outputs_max = logits_rows(seq_ids, role);
        (params.type_k, params.type_v) = options.kv_type.raw();
        params.flash_attn_type = match options.flash_attention {
            FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        params.n_threads = threads;
        params.n_threads_batch = threads;
        params.no_perf = true;
        if role == Role::MtpHead {
            params.ctx_type = sys::LLAMA_CONTEXT_TYPE_MTP;
        }
        sys::llama_init_from_model(weights.as_ptr(), params)
    };
    if context.is_null() {
        return Err(LoadError::Context(log::take_first_error()));
    }
    // SAFETY: the context is valid.
    unsafe { mtp_head::output_hidden_states(context, weights, role) };
    Ok(context)
}

impl Model for LlamaModel {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn decode(&mut self, rows: &[Row], stop: Stop<'_>) -> Result<Decoded, DecodeError> {
        self.batch.fill(rows);
        let (context, mut batch) = (self.context, self.batch.raw());
        if !self.hidden_states.is_empty() {
            // There is one for each row of the largest batch.
            batch.embd = self.hidden_states.as_mut_ptr();
        }
        let turn = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let _rows = OutputRows::limit(self.first_logits);
        // SAFETY: the batch was filled within its capacity; the context is valid and ours.
        let code = unsafe { run_stoppable(context, stop, || sys::llama_decode(context, batch)) };
        drop(turn);
        match code {
            0 => Ok(Decoded::Whole),
            STOPPED => {
                self.take_back(rows);
                Ok(Decoded::Stopped)
            }
            1 => Err(DecodeError("no free cells in the KV pool".into())),
            code => Err(DecodeError(format!("llama_decode returned {code}"))),
        }
    }

    fn logits(&self, row: usize) -> &[f32] {
        // SAFETY: `row` is a row of the last batch that asked for logits; they stay valid
        // until the next decode, which needs `&mut self`. Null is checked.
        unsafe {
            let logits = sys::llama_get_logits_ith(self.context, row as i32);
            if logits.is_null() {
                return &[];
            }
            std::slice::from_raw_parts(logits, self.shape.vocabulary as usize)
        }
    }

    fn hidden_state(&self, row: usize) -> &[f32] {
        // SAFETY: the context is valid; see `logits` for the lifetime.
        unsafe { mtp_head::hidden_state(self.context, row, self.shape.hidden_width as usize) }
    }

    fn set_hidden_states(&mut self, states: &[f32]) {
        let count = states.len().min(self.hidden_states.len());
        self.hidden_states[..count].copy_from_slice(&states[..count]);
    }

    fn compute_first_logits(&mut self, tokens: u32) {
        self.first_logits = tokens.min(self.shape.vocabulary);
        // SAFETY: the context is valid.
        unsafe { output_rows::plan_again(self.context) };
    }

    fn run_on_threads(&self, pieces: usize, work: &(dyn Fn(usize) + Sync)) {
        let is_much = pieces > 1 && pieces * self.shape.vocabulary as usize >= SHARED_LOGITS_MIN;
        match self.workers.as_ref().filter(|_| is_much) {
            None => work(0),
            Some(workers) => {
                let _turn = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                workers.borrow_mut().run(work);
            }
        }
    }

    fn share(&mut self, from: SeqId, to: SeqId, tokens: u32) {
        let (from, to, end) = (from as i32, to as i32, tokens as i32);
        // SAFETY: the context is valid and both sequence ids are below its n_seq_max.
        unsafe {
            sys::llama_memory_seq_cp(sys::llama_get_memory(self.context), from, to, 0, end);
        }
    }

    fn truncate(&mut self, seq: SeqId, tokens: u32) {
        self.remove_from(seq, tokens);
    }

    fn checkpoint(&mut self, seq: SeqId, spare: SeqId) {
        self.copy(seq, spare);
    }

    fn roll_back(&mut self, seq: SeqId, spare: SeqId) {
        self.clear(seq);
        self.copy(spare, seq);
        self.clear(spare);
    }

    fn drop_checkpoint(&mut self, spare: SeqId) {
        self.clear(spare);
    }

    fn clear(&mut self, seq: SeqId) {
        // SAFETY: the context is valid and the sequence id is below its n_seq_max.
        unsafe {
            sys::llama_memory_seq_rm(sys::llama_get_memory(self.context), seq as i32, -1, -1);
        }
    }

    fn save(&mut self, seq: SeqId, tokens: u32, bytes_max: usize) -> Option<Box<[u8]>> {
        let (context, seq) = (self.context, seq as i32);
        // SAFETY: the context is valid and the sequence id is below its n_seq_max.
        let (last, bytes) = unsafe {
            let memory = sys::llama_get_memory(context);
            let last = sys::llama_memory_seq_pos_max(memory, seq);
            (last, sys::llama_state_seq_get_size(context, seq))
        };
        let mut state = Vec::new();
        if last + 1 != tokens as i32 || bytes > bytes_max || state.try_reserve_exact(bytes).is_err()
        {
            return None;
        }
        // SAFETY: at most `bytes` bytes are written, for which there is room; only those that were
        // written count.
        unsafe {
            let out: *mut u8 = state.as_mut_ptr();
            state.set_len(sys::llama_state_seq_get_data(context, out, bytes, seq).min(bytes));
        }
        (state.len() == bytes).then(|| state.into())
    }

    fn restore(&mut self, seq: SeqId, state: &[u8]) -> bool {
        let (bytes, id) = (state.len(), seq as i32);
        // SAFETY: the context is valid, the sequence id is below its n_seq_max, and the state is
        // one that such a context wrote; llama.cpp reads no more than its length.
        let read =
            unsafe { sys::llama_state_seq_set_data(self.context, state.as_ptr(), bytes, id) };
        let is_whole = bytes > 0 && read == bytes;
        if !is_whole {
            self.clear(seq);
        }
        is_whole
    }

    fn piece(&self, token: Token, control: bool, out: &mut Vec<u8>) {
        self.weights.piece(token, control, out);
    }

    fn end_tokens(&self) -> &[Token] {
        self.weights.end_tokens()
    }
}

#[cfg(test)]
pub(super) mod tests;
