//! Frames between agent and engine: a 4-byte little-endian length, then postcard.
//!
//! Both ends are the same executable, so frames carry no version. The engine's end of the
//! socketpair is its standard input: end-of-file tells either side that the other is gone.

use std::io::{self, Read};
use std::time::Duration;

use inference_core::scheduler::prefix_disk::Key;
use inference_core::text::output::Format;
use inference_core::types::model::ModelSizes;
use inference_core::types::request::{
    EngineStats, Event, RequestId, SamplingDefaults, SlotRequest, Work,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::model_files::digest::Fingerprint;
use crate::engine::sandbox::Sandbox;

/// Maximum frame size in bytes: a request body of maximum size plus its envelope.
pub(crate) const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Commands from the agent to the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Submits work; its events carry this id.
    Submit(RequestId, Work),
    Cancel(RequestId),
    /// Does something with what a slot holds; its event carries this id.
    Slot(RequestId, SlotRequest),
    /// Take the file with a prefix that came in under this number.
    TakePrefix(u64),
    /// Write what should survive a restart, as soon as there is nothing else to do.
    WritePrefixes,
    /// Write what should survive a restart, for no longer than this, and exit.
    Stop(Duration),
}

/// Reports from the engine to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The model is loaded and has decoded its warm-up batches.
    Ready(EngineFacts),
    /// The model cannot be loaded, or its file has changed; the engine exits.
    LoadFailed(String),
    /// An event of a request.
    Event(RequestId, Event),
    Stats(EngineStats),
    /// Prefixes are not saved on disk, with the reason.
    PrefixesNotSaved(String),
    /// How many NUMA nodes its memory is spread over, or why it is not.
    MemoryNodes(Result<usize, String>),
}

/// Properties of a running engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EngineFacts {
    pub slots: u32,
    /// Maximum tokens of prompt and response together.
    pub context_tokens: u32,
    pub threads: u32,
    /// The model's notation of reasoning and tool calls.
    pub format: Format,
    pub template: Box<TemplateFacts>,
    pub kernel: String,
    /// Fingerprint of the loaded weights.
    pub digest: Fingerprint,
    /// The sandbox in force.
    pub sandbox: Sandbox,
    /// Sampling parameters that the model file recommends; part of the fingerprint.
    pub sampling: Box<SamplingDefaults>,
    /// Sizes of the model file.
    pub sizes: Box<ModelSizes>,
    /// True if it may compute several tokens of a response at once.
    pub speculates: bool,
    pub model: Box<ModelFacts>,
    /// The key of its files of saved prefixes, if it has any.
    pub prefix_key: Option<Box<Key>>,
}

/// What the model is and can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelFacts {
    /// Its architecture, such as `llama`.
    pub family: String,
    /// True if it embeds or ranks texts and generates none.
    pub embeds: bool,
    /// True if it can fill gaps in a text.
    pub fills: bool,
}

/// What the chat template does not do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TemplateFacts {
    /// True if it does not describe tools to the model, so that we do.
    pub lacks_tools: bool,
    /// Parts of messages that it leaves out.
    pub dropped_parts: Vec<String>,
    /// Why it cannot be used, if it cannot.
    pub error: Option<String>,
}

/// Encodes one frame, including its length.
pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    finish_frame(frame)
}

fn finish_frame(mut frame: Vec<u8>) -> io::Result<Vec<u8>> {
    let bytes = frame.len() - 4;
    if bytes > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "frame too large"));
    }
    frame[..4].copy_from_slice(&(bytes as u32).to_le_bytes());
    Ok(frame)
}

/// Decodes a frame's length and checks it against [`FRAME_BYTES_MAX`].
pub(crate) fn frame_length(header: [u8; 4]) -> io::Result<usize> {
    let bytes = u32::from_le_bytes(header) as usize;
    if bytes > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too large"));
    }
    Ok(bytes)
}

/// Decodes a frame's payload; leftover bytes are an error.
pub(crate) fn decode<T: DeserializeOwned>(payload: &[u8]) -> io::Result<T> {
    let (message, rest) = postcard::take_from_bytes(payload)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    if rest.is_empty() {
        Ok(message)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidData, "frame with trailing bytes"))
    }
}

/// Reads one frame, blocking, on the engine's side. `None` if the other side is gone.
pub(crate) fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut header = [0; 4];
    match from.read_exact(&mut header) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let mut payload = vec![0; frame_length(header)?];
    from.read_exact(&mut payload)?;
    decode(&payload).map(Some)
}

#[cfg(test)]
impl EngineFacts {
    /// Facts of a fake engine, for tests.
    pub(crate) fn made_up(format: Format) -> Self {
        Self {
            slots: 1,
            context_tokens: 8,
            threads: 1,
            format,
            template: Box::new(TemplateFacts {
                lacks_tools: false,
                dropped_parts: vec!["name".into()],
                error: None,
            }),
            kernel: "baseline".into(),
            digest: "0".repeat(64).parse().unwrap(),
            sandbox: Sandbox::OFF,
            sampling: Box::default(),
            sizes: Box::default(),
            speculates: false,
            model: Box::new(ModelFacts { family: "llama".into(), embeds: false, fills: false }),
            prefix_key: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use inference_core::types::constraint::Constraint;
    use inference_core::types::request::{
        CallRules, Chat, FinishReason, GenerateRequest, LineRules, Options, Prompt, Sampling,
        Sibling, SlotAction, SlotName, Tenant,
    };
    use inference_core::types::tool_choice::ToolChoice;

    #[test]
    fn frames_survive_the_way() {
        let bias = vec![(3, f32::NEG_INFINITY)];
        let request = GenerateRequest {
            tenant: Tenant(7),
            prompt: Prompt::Chat(Chat::new("[]".into())),
            options: Options {
                sampling: Sampling { bias, allowed: Some(vec![4]), ..Sampling::GREEDY },
                max_tokens: Some(3),
                stop: vec!["x".into()],
                stop_tokens: vec![9],
                lines: LineRules { indent_min: 4, time_max: Some(Duration::from_millis(5)) },
                logprobs: Some(2),
                prompt_logprobs: true,
                reports_prefill: true,
                usage_max: Some(70),
                reasoning_max: Some(0),
                prediction: Some("y".into()),
                uses_cache: false,
                prefix_group: Some(Tenant(8)),
                slot: Some(SlotName::Number(3)),
            },
            constraint: Some(Constraint::JsonSchema("{}".into())),
            calls: Some(CallRules { choice: ToolChoice::Function("f".into()), calls_max: 1 }),
            show_delimiters: true,
            resume_tokens: vec![1, 70_000],
            now: -1,
            siblings: vec![Sibling { seed: u64::MAX, resume_tokens: vec![2] }],
        };
        let action = SlotAction::Save("a".into());
        let slot = SlotRequest { owner: Tenant(7), slot: 1, action };
        let work = Work::Generate(Box::new(request));
        let sent = [Command::Submit(7, work), Command::Cancel(7), Command::Slot(8, slot)];
        let mut wire = Vec::new();
        sent.iter().for_each(|c| wire.extend(encode(c).unwrap()));
        let mut reader = wire.as_slice();
        for command in sent {
            assert_eq!(read_frame::<Command>(&mut reader).unwrap(), Some(command));
        }
        assert_eq!(read_frame::<Command>(&mut reader).unwrap(), None, "end of file");
    }

    #[test]
    fn every_format_survives_the_way() {
        for source in ["", "<think>", "<|channel|><|message|>", "[THINK] [TOOL_CALLS] [ARGS]"] {
            let format = Format::detect(source);
            let facts = EngineFacts::made_up(format);
            let wire = encode(&Report::Ready(facts.clone())).unwrap();
            assert_eq!(decode::<Report>(&wire[4..]).unwrap(), Report::Ready(facts));
        }
    }

    #[test]
    fn broken_frames_are_errors() {
        let event = Report::Event(
            1,
            Event::Finished {
                reason: FinishReason::Stop,
                completion_tokens: 5,
                cached_tokens: 0,
                times: Default::default(),
                tokens: vec![9],
            },
        );
        let wire = encode(&event).unwrap();
        assert!(read_frame::<Report>(&mut &wire[..wire.len() - 1]).is_err());
        assert!(frame_length(u32::MAX.to_le_bytes()).is_err());
        assert!(decode::<Report>(&[&wire[4..], &[0]].concat()).is_err());
        assert!(decode::<Report>(&[250]).is_err());
    }
}
