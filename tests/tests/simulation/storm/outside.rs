//! External endpoints of a storm: they write text without marks, refuse, break off, and lie about
//! what they used.

use flotilla_gateway::scheduler::attempts::AttemptId;
use flotilla_gateway::types::error::Error;
use flotilla_gateway::types::external::PREFIX;
use inference_protocol::fleet::{ModelStatus, NodeState, NodeStatus, VERSION};
use serde_json::json;

use super::world::{Happening, World};

/// Requests side by side.
const SLOTS: u32 = 2;
/// Seconds between two events.
const PACE: f64 = 0.05;

/// A job at an external endpoint.
pub(super) struct Outside {
    request: usize,
    attempt: AttemptId,
    /// What is left of its text, the next piece last.
    rest: Vec<String>,
    fate: Fate,
}

/// How it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Complete,
    /// Complete, and it says that it used more than can be.
    Lie,
    /// The connection breaks in the middle.
    Break,
    /// It reports an error in the middle.
    Error,
    /// It never says anything.
    Silent,
}

/// What the gateway knows about an external endpoint.
pub(super) fn status(number: usize) -> NodeStatus {
    let name = format!("{PREFIX}e{number}");
    let (digest, context_tokens) = (name.clone(), u32::MAX);
    NodeStatus {
        version: VERSION,
        node: name,
        epoch: 0,
        state: NodeState::Ready,
        models: vec![ModelStatus {
            id: "m".into(),
            digest,
            context_tokens,
            ..ModelStatus::default()
        }],
        slots: SLOTS,
        slots_busy_elsewhere: 0,
        queued: 0,
        engine_restarts: 0,
        prefill_tokens_per_second: None,
        decode_tokens_per_second: None,
        vitals: None,
        prefixes: None,
    }
}

impl World {
    /// A request arrives at an external endpoint.
    pub(super) fn asks_outside(&mut self, request: usize, attempt: AttemptId, job: u64) {
        let fate = match self.pick(20) {
            0 => return self.refuses(request, attempt, Error::NodeRefused(503)),
            1 => return self.refuses(request, attempt, Error::NodeLost),
            2 => {
                return self.refuses(
                    request,
                    attempt,
                    Error::ExternalRefused { status: 400, param: None },
                );
            }
            3 => Fate::Break,
            4 => Fate::Error,
            5 => Fate::Silent,
            6..=8 => Fate::Lie,
            _ => Fate::Complete,
        };
        self.gateway.outside_begins(request, attempt, true);
        let text = self.gateway.requests[request].expected();
        let mut rest: Vec<String> = text.split_inclusive(' ').map(String::from).collect();
        rest.reverse();
        self.outside.insert(job, Outside { request, attempt, rest, fate });
        self.at(self.now + PACE, Happening::Outside(job));
    }

    fn refuses(&mut self, request: usize, attempt: AttemptId, error: Error) {
        self.gateway.outside_begins(request, attempt, false);
        self.gateway.fails(request, attempt, error, self.now);
    }

    /// It writes its next event.
    pub(super) fn goes_on_outside(&mut self, job: u64) {
        let now = self.now;
        let Some(outside) = self.outside.get_mut(&job) else { return };
        let (request, attempt, fate) = (outside.request, outside.attempt, outside.fate);
        if fate == Fate::Silent {
            return;
        }
        let is_half = outside.rest.len() <= 1;
        let event = match outside.rest.pop() {
            Some(_) if is_half && fate == Fate::Break => {
                self.outside.remove(&job);
                return self.gateway.fails(request, attempt, Error::NodeLost, now);
            }
            Some(_) if is_half && fate == Fate::Error => {
                json!({"error": {"message": "the key sk-1 is over its limit"}}).to_string()
            }
            Some(text) => {
                json!({"choices": [{"index": 0, "delta": {"content": text}}]}).to_string()
            }
            None => {
                self.outside.remove(&job);
                let used = if fate == Fate::Lie { u64::MAX / 4 } else { 7 };
                let usage = json!({"prompt_tokens": 9, "completion_tokens": used});
                let told = json!({"choices": [], "usage": usage});
                let end = format!("data: {told}\n\ndata: [DONE]\n\n");
                return self.gateway.hear(request, job, &end, now);
            }
        };
        self.gateway.hear(request, job, &format!("data: {event}\n\n"), now);
        self.at(now + PACE, Happening::Outside(job));
    }
}
