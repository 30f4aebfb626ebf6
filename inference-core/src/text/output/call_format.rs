//! PURE. The notations of tool calls, and which of them a chat template uses. The rules are tried
//! in order, from what only one family writes to what several do.

use serde::{Deserialize, Serialize};

/// Model families by their notation of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// `<tool_call><function=name><parameter=key>value`: Qwen3-Coder, Qwen 3.5, Nemotron 3.
    QwenXml,
    /// Like [`Self::QwenXml`], with other tags around it: Seed-OSS.
    Seed,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>`: GLM 4.5 and later.
    Glm,
    /// `<invoke name="name"><parameter name="key">value`: MiniMax M2.
    MiniMax,
    /// `<function=name>{..}</function>`: Functionary 3.1.
    Functionary,
    /// `{"name": .., "parameters": {..}}`, optionally after `<|python_tag|>`: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{..}]`: Mistral until 2025.
    MistralArray,
    /// `[TOOL_CALLS]name[ARGS]{..}`: Mistral since then.
    Mistral,
    /// `<｜tool▁calls▁begin｜>` and so on, arguments in a code fence: DeepSeek V3, R1.
    DeepSeek,
    /// Like [`Self::DeepSeek`], without the fence: DeepSeek V3.1.
    DeepSeekPlain,
    /// `<|tool_calls_section_begin|>` and so on: Kimi K2.
    Kimi,
    /// `<|tool_call|>` before an object or an array: Granite 3, Phi-4-mini.
    Pipes,
    /// `functools[{..}]`: Phi-4-mini with its older template.
    Functools,
    /// `<tool_calls>[{..}]</tool_calls>`: Apriel.
    ToolCalls,
    /// `<TOOLCALL>[{..}]</TOOLCALL>`: Nemotron Nano 2.
    ToolCallUpper,
    /// `<|START_ACTION|>[{"tool_name": .., "parameters": {..}}]<|END_ACTION|>`: Command R7B, A.
    Cohere,
    /// `Action:` and a JSON array in a code fence: Command R.
    CommandR,
    /// `<|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<|tool_call_start|>[name(key="value")]<|tool_call_end|>`: LFM2.
    Lfm,
    /// `[name(key="value")]`: Llama 4.
    Pythonic,
    /// Channels (harmony): gpt-oss.
    Harmony,
    /// JSON or Python in a code fence labeled as such: Gemma 3 and others that were instructed to.
    Fenced,
    /// A JSON object with a name and arguments: templates without tool support.
    Generic,
}

impl CallFormat {
    /// All notations.
    pub const ALL: [Self; 24] = [
        Self::Hermes,
        Self::QwenXml,
        Self::Seed,
        Self::Glm,
        Self::MiniMax,
        Self::Functionary,
        Self::Llama,
        Self::MistralArray,
        Self::Mistral,
        Self::DeepSeek,
        Self::DeepSeekPlain,
        Self::Kimi,
        Self::Pipes,
        Self::Functools,
        Self::ToolCalls,
        Self::ToolCallUpper,
        Self::Cohere,
        Self::CommandR,
        Self::Gemma,
        Self::Lfm,
        Self::Pythonic,
        Self::Harmony,
        Self::Fenced,
        Self::Generic,
    ];

    /// Detects the notation that a chat template uses.
    pub fn detect(source: &str) -> Self {
        let has = |delimiter: &str| source.contains(delimiter);
        let rules = [
            (has("<|channel|>") && has("<|message|>"), Self::Harmony),
            (has("<｜tool▁calls▁begin｜>") && has("```json"), Self::DeepSeek),
            (has("<｜tool▁calls▁begin｜>"), Self::DeepSeekPlain),
            (has("<|tool_call_begin|>") || has("<|im_middle|>"), Self::Kimi),
            (has("[TOOL_CALLS]") && has("[ARGS]"), Self::Mistral),
            (has("[TOOL_CALLS]"), Self::MistralArray),
            (has("<|START_ACTION|>"), Self::Cohere),
            (has("<|CHATBOT_TOKEN|>") && has("Action:"), Self::CommandR),
            (has("<|tool_call>call:"), Self::Gemma),
            (has("<|tool_call_start|>"), Self::Lfm),
            (has("func_name1("), Self::Pythonic),
            (has("<seed:tool_call>"), Self::Seed),
            (has("<minimax:tool_call>"), Self::MiniMax),
            (has("<arg_key>"), Self::Glm),
            (has("<function=") && has("<parameter="), Self::QwenXml),
            (has("<function="), Self::Functionary),
            (has("<|python_tag|>"), Self::Llama),
            (has("<|start_header_id|>") && has("\"parameters\": "), Self::Llama),
            (has("<|tool_call|>"), Self::Pipes),
            (has("functools["), Self::Functools),
            (has("<tool_calls>"), Self::ToolCalls),
            (has("<TOOLCALL>"), Self::ToolCallUpper),
            (has("<tool_call>"), Self::Hermes),
            (has("```tool_co") || has("```tool_call"), Self::Fenced),
        ];
        rules.iter().find(|(met, _)| *met).map_or(Self::Generic, |(_, format)| *format)
    }
}
