//! A node: the engine's own scheduler on the fake model, stepped in simulated time.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use inference_core::scheduler::engine_thread::StepEngine;
use inference_core::scheduler::fake::{FakeModel, FakeTokenizer};
use inference_core::scheduler::sequence::{CancelFlag, Job};
use inference_core::scheduler::step::Engine;
use inference_core::types::model::Tokenizer;
use inference_core::types::request::{Event, Options, RequestId, Tenant, TextChunk};
use inference_protocol::fleet::{ModelStatus, NodeState, NodeStatus, VERSION};
use inference_protocol::resume::{Mark, Resume, Usage};

/// Tokens of a context: prompts and answers are shorter.
pub const CONTEXT: u32 = 160;

/// How long the engine thinks that a batch takes.
const STEP_TIME: Duration = Duration::from_millis(10);

/// A job of a gateway's.
struct Work {
    cancel: CancelFlag,
    /// Events that the client has.
    skip: u64,
}

/// See the module.
pub struct Node {
    pub name: String,
    /// Seconds of a step.
    pub pace: f64,
    pub slots: u32,
    /// Which of its lives this is: everything that belongs to an older one is void.
    pub life: u64,
    pub state: NodeState,
    /// Its engine's restarts.
    pub restarts: u64,
    /// Neither steps nor says anything.
    pub is_frozen: bool,
    /// Says that so many slots are busy that are not.
    pub lie: u32,
    engine: Engine<FakeModel>,
    jobs: HashMap<RequestId, Work>,
}

fn engine(slots: u32) -> Engine<FakeModel> {
    // Too few cells for all at their longest: some give theirs up.
    let model = FakeModel::with_cells(slots, CONTEXT, 64, CONTEXT + slots * 64);
    let engine = Engine::new(model, 256).with_speculation(true);
    // Responses go on at nodes with another draft model, or none.
    match slots % 3 {
        0 => engine,
        mistakes => {
            let draft = FakeModel::new(4, CONTEXT, 64);
            engine.with_draft_model(draft.with_mistakes(mistakes * 3))
        }
    }
}

impl Node {
    pub fn new(name: String, slots: u32, pace: f64) -> Self {
        Self {
            name,
            pace,
            slots,
            life: 0,
            state: NodeState::Ready,
            restarts: 0,
            is_frozen: false,
            lie: 0,
            engine: engine(slots),
            jobs: HashMap::new(),
        }
    }

    /// What it says about itself.
    pub fn status(&self) -> NodeStatus {
        let model = ModelStatus {
            id: "m".into(),
            digest: "d".into(),
            context_tokens: CONTEXT,
            ..ModelStatus::default()
        };
        let is_ready = self.state == NodeState::Ready;
        NodeStatus {
            version: VERSION,
            node: self.name.clone(),
            epoch: self.life,
            state: self.state,
            models: if is_ready { vec![model] } else { Vec::new() },
            slots: if is_ready { self.slots } else { 0 },
            slots_busy_elsewhere: self.lie,
            queued: 0,
            engine_restarts: self.restarts,
            prefill_tokens_per_second: None,
            decode_tokens_per_second: None,
            vitals: None,
            prefixes: None,
        }
    }

    /// Begins an answer, or goes on with one.
    pub fn submit(&mut self, id: RequestId, prompt: &str, resume: &Resume) {
        let said = resume.choices.first().cloned().unwrap_or_default();
        let mut tokens = FakeTokenizer.tokenize(prompt, false).unwrap();
        tokens.extend(&said.tokens);
        let cancel = CancelFlag::default();
        self.jobs.insert(id, Work { cancel: cancel.clone(), skip: said.events });
        let job = Job {
            id,
            tenant: Tenant(0),
            tokens,
            resumed_len: said.tokens.len(),
            options: Options::GREEDY,
            visible: Vec::new(),
            in_reasoning: false,
            resolved: Default::default(),
            grammar: None,
            cancel,
        };
        // The gateway binds to free slots, and the queue has room for all of them.
        self.engine.submit(job, &mut |_, event| assert!(!event.is_last(), "{event:?}"));
    }

    /// The gateway has reset a stream.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(work) = self.jobs.get(&id) {
            work.cancel.set();
        }
    }

    pub fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    /// One step; what it writes into which streams.
    pub fn step(&mut self) -> Vec<(RequestId, String)> {
        let mut events = Vec::new();
        // Batches take the same time whatever their rows, so that drafts are worth it.
        let now = Cell::new(Duration::ZERO);
        let clock = || {
            now.update(|now| now + STEP_TIME);
            now.get()
        };
        self.engine.step(&clock, &mut |id, event| events.push((id, event)));
        events.into_iter().filter_map(|(id, event)| Some((id, self.write(id, event)?))).collect()
    }

    fn write(&mut self, id: RequestId, event: Event) -> Option<String> {
        let is_last = event.is_last();
        let work = self.jobs.get_mut(&id)?;
        let mut out = String::new();
        match event {
            // Their tokens are known where the answer goes on.
            Event::Replayed(all) => all.into_iter().for_each(|shown| {
                work.show(TextChunk { tokens: Vec::new(), ..shown }, &mut out);
            }),
            Event::Text(shown) => work.show(shown, &mut out),
            Event::Finished { completion_tokens, tokens, .. } => {
                if !tokens.is_empty() {
                    Mark::Tokens { choice: 0, tokens }.write(&mut out);
                    out.push('\n');
                }
                let completion = completion_tokens.into();
                Mark::Usage(Usage { prompt: 0, completion, cached: 0 }).write(&mut out);
                out.push_str("data: [DONE]\n\n");
            }
            Event::Cancelled | Event::Started { .. } => {}
            other => panic!("{other:?}"),
        }
        if is_last {
            self.jobs.remove(&id);
        }
        Some(out).filter(|out| !out.is_empty())
    }

    /// Its engine, and what that had, is gone. The streams that end so.
    pub fn lose_engine(&mut self) -> Vec<RequestId> {
        self.restarts += 1;
        self.engine = engine(self.slots);
        let mut ids: Vec<RequestId> = self.jobs.drain().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// A new life: everything of the last one is void.
    pub fn live_again(&mut self) {
        self.life += 1;
        self.engine = engine(self.slots);
        self.jobs.clear();
        (self.state, self.is_frozen, self.restarts) = (NodeState::Ready, false, 0);
    }

    /// Its connection is gone, and with it all streams.
    pub fn lose_link(&mut self) {
        self.jobs.values().for_each(|work| work.cancel.set());
    }
}

impl Work {
    fn show(&mut self, shown: TextChunk, out: &mut String) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        Mark::Tokens { choice: 0, tokens: shown.tokens }.write(out);
        out.push_str(&format!("data: {}\n\n", serde_json::json!(shown.text)));
    }
}
