//! The baseline kernels generate with the demo model. `make avx2` runs this test a second
//! time on an emulated CPU that has AVX2 and nothing newer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use inference_core::hardware::Kernel;
use inference_core::llama::{ContextOptions, LlamaModel, LlamaTokenizer, Weights, register, trial};
use inference_core::model_file::memory_plan::LoadMode;
use inference_core::prepare::Preparer;
use inference_core::scheduler::engine_thread::{self, Listener};
use inference_core::scheduler::sequence::Job;
use inference_core::scheduler::step::Engine;
use inference_core::text::chat_template::{ChatTemplate, SpecialTokens};
use inference_core::types::request::{
    Chat, EngineStats, Event, FinishReason, GenerateRequest, Options, Prompt, RequestId, Tenant,
};

/// Longer than an emulated CPU needs for one token.
const EVENT_WAIT: Duration = Duration::from_secs(300);

struct Events(SyncSender<(RequestId, Event)>);

impl Listener for Events {
    fn event(&mut self, id: RequestId, event: Event) {
        self.0.send((id, event)).expect("the test listens");
    }

    fn stats(&mut self, _: EngineStats) {}
}

fn ask(preparer: &Preparer, id: RequestId, question: &str) -> Job {
    let messages = serde_json::json!([{"role": "user", "content": question}]).to_string();
    let request = GenerateRequest {
        tenant: Tenant::default(),
        prompt: Prompt::Chat(Chat::new(messages)),
        options: Options::GREEDY,
        constraint: None,
        calls: None,
        show_delimiters: false,
        resume_tokens: Vec::new(),
        now: 0,
        siblings: Vec::new(),
    };
    Job {
        id,
        tenant: Tenant::default(),
        tokens: preparer.prepare(&request, &|| true).unwrap().remove(0).tokens,
        resumed_len: 0,
        options: Options::GREEDY,
        visible: Vec::new(),
        grammar: None,
        in_reasoning: false,
        resolved: Default::default(),
        cancel: inference_core::scheduler::sequence::CancelFlag::default(),
    }
}

#[test]
fn two_chats_are_answered_in_one_batch_by_the_baseline_kernels() {
    trial(Kernel::Baseline).unwrap();
    register(Kernel::Baseline);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo-model/flotilla-demo.gguf");
    let weights = Weights::load(&[path], LoadMode::Mmap).unwrap();
    let options = ContextOptions {
        slots: 2,
        context_tokens: 256,
        kv_cells: 512,
        prefix_cache: true,
        saved_prefix_bytes: 0,
        threads: 2,
        ..ContextOptions::default()
    };
    let model = LlamaModel::new(weights.clone(), options).unwrap();
    let (bos, eos) = weights.bos_eos();
    let tokens = SpecialTokens { bos, eos, control: weights.control_texts() };
    let template = ChatTemplate::new(weights.chat_templates().unwrap(), tokens);
    let preparer = Preparer::new(Box::new(LlamaTokenizer(weights)), Some(template), 256);
    let (sender, events) = sync_channel(1024);
    let engine = engine_thread::start(Engine::new(model, 2), Events(sender)).unwrap();
    engine.submit(ask(&preparer, 0, "What is the capital of France?")).unwrap();
    engine.submit(ask(&preparer, 1, "What is the capital of Peru?")).unwrap();

    let mut said = [String::new(), String::new()];
    let mut finished = 0;
    while finished < 2 {
        match events.recv_timeout(EVENT_WAIT).unwrap() {
            (id, Event::Text(shown)) => said[id as usize] += &shown.text,
            (_, Event::Finished { reason, .. }) => {
                assert_eq!(reason, FinishReason::Stop);
                finished += 1;
            }
            (_, Event::Started { .. }) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
    engine.close();
    assert_eq!(said, ["The capital of France is Paris.", "The capital of Peru is Lima."]);
}
