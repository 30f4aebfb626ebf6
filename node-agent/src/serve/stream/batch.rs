//! The choices of a request. Many prompts take turns: the engine works on some of them at a time,
//! so that one request does not fill its queue.

use std::collections::VecDeque;

use inference_core::types::request::GenerateRequest;

use super::choice::Choice;
use crate::engine::client::{EngineClient, Via};
use crate::types::error::Error;

/// Most choices of a request that are in the engine at the same time; at least `n`.
const CONCURRENT_MAX: usize = 16;

/// All choices of a request, and those of its prompts that wait.
#[derive(Debug)]
pub(crate) struct Batch {
    pub choices: Vec<Choice>,
    engine: EngineClient,
    via: Via,
    /// Each with the index of its first choice.
    waiting: VecDeque<(usize, GenerateRequest)>,
}

impl Batch {
    /// Creates a batch without choices.
    pub(crate) fn new(engine: EngineClient, via: Via) -> Self {
        Self { choices: Vec::new(), engine, via, waiting: VecDeque::new() }
    }

    /// Adds a prompt and its choices, which wait for [`Batch::start`].
    pub(crate) fn push(&mut self, request: GenerateRequest, choices: impl Iterator<Item = Choice>) {
        self.waiting.push_back((self.choices.len(), request));
        self.choices.extend(choices);
    }

    /// Submits prompts as far as others have made room. True if there were any.
    ///
    /// # Errors
    /// The engine accepts no requests.
    pub(crate) fn start(&mut self) -> Result<bool, Error> {
        let mut is_started = false;
        while let Some((first, request)) = self.waiting.pop_front() {
            let running = self.choices.iter().filter(|choice| choice.is_running()).count();
            if running > 0 && running + 1 + request.siblings.len() > CONCURRENT_MAX {
                self.waiting.push_front((first, request));
                break;
            }
            let generations = self.engine.submit(request, self.via)?;
            for (choice, generation) in self.choices[first..].iter_mut().zip(generations) {
                choice.generation = Some(generation);
            }
            is_started = true;
        }
        Ok(is_started)
    }

    /// True if all choices are done.
    pub(crate) fn is_done(&self) -> bool {
        self.choices.iter().all(Choice::is_done)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use inference_core::text::output::Format;
    use inference_core::types::request::{
        Event, FinishReason, Options, Prompt, ResponseTimes, Sibling, Tenant,
    };

    use super::*;
    use crate::engine::ipc::EngineFacts;
    use crate::serve::stream::Reading;

    fn request(n: usize) -> GenerateRequest {
        let sibling = || Sibling { seed: 0, resume_tokens: Vec::new() };
        GenerateRequest {
            tenant: Tenant(0),
            prompt: Prompt::Text("x".into()),
            options: Options::GREEDY,
            constraint: None,
            calls: None,
            show_delimiters: false,
            resume_tokens: Vec::new(),
            now: 0,
            siblings: (1..n).map(|_| sibling()).collect(),
        }
    }

    #[test]
    fn prompts_beyond_a_bound_wait_until_others_are_done() {
        let engine = EngineClient::default();
        engine.set_ready(EngineFacts::made_up(Format::detect("")));
        let mut batch = Batch::new(engine.clone(), Via { link: 1, digest: None });
        for _ in 0..12 {
            let choices = [0, 1].map(|index| Choice::new(index, Reading::Plain));
            batch.push(request(2), choices.into_iter());
        }
        assert!(batch.start().unwrap());
        assert_eq!(engine.figures().in_flight, CONCURRENT_MAX);
        assert!(!batch.start().unwrap(), "there is no room");
        let finished = || Event::Finished {
            reason: FinishReason::Stop,
            completion_tokens: 1,
            cached_tokens: 0,
            tokens: Vec::new(),
            times: ResponseTimes::default(),
        };
        let cx = &mut Context::from_waker(Waker::noop());
        for id in 1..=24 {
            engine.deliver(id, finished());
            assert!(batch.choices[id as usize - 1].poll(cx).is_ready());
            batch.start().unwrap();
            let started = batch.choices.iter().filter(|choice| choice.generation.is_some()).count();
            assert_eq!(started, (16 + id as usize / 2 * 2).min(24), "after {id}");
        }
        assert!(batch.is_done());
    }

    #[test]
    fn a_batch_fails_with_its_engine() {
        let engine = EngineClient::default();
        let mut batch = Batch::new(engine, Via { link: 1, digest: None });
        batch.push(request(1), [Choice::new(0, Reading::Plain)].into_iter());
        assert!(batch.start().is_err(), "the model is loading");
    }
}
