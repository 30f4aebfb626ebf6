//! PURE. The notations of tool calls, and which of them a chat template uses. The rules are tried
//! in order, from what only one family writes to what several do.

use serde::{Deserialize, Serialize};

/// Model families by their notation of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen 2.5 and 3.
    #[default]
    Hermes,
    /// `<tool_call><function=name><parameter=key>value`: Qwen3-Coder, Qwen 3.5, Nemotron 3.
    QwenXml,
    /// Like [`Self::QwenXml`], with other tags around it: Seed-OSS.
    Seed,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>`: GLM 4.5 and later.
    Glm,
    /// `<invoke name="name"><parameter name="key">value`: MiniMax M2.
    MiniMax,
    /// `]<]minimax[>[<invoke name="name">]<]minimax[>[<key>value]<]minimax[>[</key>`: MiniMax M3.
    MiniMaxM3,
    /// `<｜DSML｜invoke name="name"><｜DSML｜parameter name="key" string="true">value`: DeepSeek V3.2.
    Dsml,
    /// Like [`Self::Dsml`], with other tags around it: DeepSeek V4.
    DsmlV4,
    /// `<function name="name"><param name="key">value`: MiniCPM 5.
    MiniCpm,
    /// `<tool_call>name<tool_sep>`, then like [`Self::Glm`]: Hunyuan 3 (Hy3).
    Hy3,
    /// Like [`Self::Hy3`], each tag with the suffix `:opensource`.
    Hy3Suffixed,
    /// `<function=name>{..}</function>`: Functionary 3.1.
    Functionary,
    /// `>>>name` and JSON in the next line, or `>>>all` and text: Functionary 3.2.
    FunctionaryLines,
    /// `{"name": .., "parameters": {..}}`, optionally after `<|python_tag|>`: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{..}]`: Mistral until 2025.
    MistralArray,
    /// `[TOOL_CALLS]name[ARGS]{..}`: Mistral since then.
    Mistral,
    /// `[TOOL_CALLS]name[CALL_ID]id[ARGS]{..}`: Mistral Small 3.2.
    MistralIds,
    /// `<｜tool▁calls▁begin｜>` and so on, arguments in a code fence: DeepSeek V3, R1.
    DeepSeek,
    /// Like [`Self::DeepSeek`], without the fence: DeepSeek V3.1.
    DeepSeekPlain,
    /// `<|tool_calls_section_begin|>` and so on: Kimi K2.
    Kimi,
    /// `<|open|>call tool="name"<|sep|>`, `<|open|>argument key="k" type="string"<|sep|>value`:
    /// Kimi K3.
    KimiK3,
    /// `<|tool_call|>` before an object or an array, or `functools`: Granite 3, Phi-4-mini.
    Pipes,
    /// `functools[{..}]`: Phi-4-mini with its older template.
    Functools,
    /// `<tool_calls>[{..}]</tool_calls>`: Apriel.
    ToolCalls,
    /// `<tool_calls>[{..}]</tool_calls>`, and content in `<answer>`: Hunyuan A13B.
    Hunyuan,
    /// `<tool_calls>` and one object in each line: MiniMax M1.
    ToolCallLines,
    /// `<|tools_prefix|>[{"name": {..}}]<|tools_suffix|>`: Apertus.
    Apertus,
    /// `function call<|role_sep|>` and an object in the next line: GigaChat 3.
    GigaChat,
    /// `<|function_call|>` and an object: GigaChat 3.1.
    GigaChatToken,
    /// `<|tool_call:begin|>id<|tool_call:name|>name<|tool_call:args|>{..}`: Solar Open.
    Solar,
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
    /// A JSON object with a name and arguments: templates whose notation is unknown.
    Generic,
    /// [`Self::Hermes`] as we describe it to models whose templates describe no tools. Some write
    /// an object without tags, or in a code fence.
    Described,
}

impl CallFormat {
    /// All notations.
    pub const ALL: [Self; 40] = [
        Self::Hermes,
        Self::QwenXml,
        Self::Seed,
        Self::Glm,
        Self::MiniMax,
        Self::MiniMaxM3,
        Self::Dsml,
        Self::DsmlV4,
        Self::MiniCpm,
        Self::Hy3,
        Self::Hy3Suffixed,
        Self::Functionary,
        Self::FunctionaryLines,
        Self::Llama,
        Self::MistralArray,
        Self::Mistral,
        Self::MistralIds,
        Self::DeepSeek,
        Self::DeepSeekPlain,
        Self::Kimi,
        Self::KimiK3,
        Self::Pipes,
        Self::Functools,
        Self::ToolCalls,
        Self::Hunyuan,
        Self::ToolCallLines,
        Self::Apertus,
        Self::GigaChat,
        Self::GigaChatToken,
        Self::Solar,
        Self::ToolCallUpper,
        Self::Cohere,
        Self::CommandR,
        Self::Gemma,
        Self::Lfm,
        Self::Pythonic,
        Self::Harmony,
        Self::Fenced,
        Self::Generic,
        Self::Described,
    ];

    /// The notation in which tools are described if the chat template does not describe them: the
    /// family's own, if this is one that writes it anyway.
    pub(crate) fn described(self) -> Self {
        match self {
            Self::DeepSeek | Self::DeepSeekPlain | Self::Hunyuan | Self::Lfm => self,
            _ => Self::Described,
        }
    }

    /// Detects the notation that a chat template uses.
    pub fn detect(source: &str) -> Self {
        let has = |delimiter: &str| source.contains(delimiter);
        let rules = [
            (has("<|channel|>") && has("<|message|>"), Self::Harmony),
            (has("]<]minimax[>["), Self::MiniMaxM3),
            (has("<|open|>") && has("<|sep|>"), Self::KimiK3),
            (has("｜DSML｜") && has("function_calls>"), Self::Dsml),
            (has("｜DSML｜"), Self::DsmlV4),
            (has("<|tools_prefix|>"), Self::Apertus),
            (has("<|tool_call:begin|>"), Self::Solar),
            (has("<|function_call|>") && has("<|role_sep|>"), Self::GigaChatToken),
            (has("function call") && has("<|role_sep|>"), Self::GigaChat),
            (
                has("<tool_sep:opensource>") || has(":opensource") && has("tool_sep"),
                Self::Hy3Suffixed,
            ),
            (has("<tool_sep>"), Self::Hy3),
            (has("<function name=") && has("<param name="), Self::MiniCpm),
            (has(">>>all"), Self::FunctionaryLines),
            (has("tool_setting=tools"), Self::ToolCallLines),
            (has("<answer>") && has("<|extra_0|>"), Self::Hunyuan),
            (has("<｜tool▁calls▁begin｜>") && has("```json"), Self::DeepSeek),
            (has("<｜tool▁calls▁begin｜>"), Self::DeepSeekPlain),
            (has("<|tool_call_begin|>") || has("<|im_middle|>"), Self::Kimi),
            (has("[TOOL_CALLS]") && has("[CALL_ID]"), Self::MistralIds),
            (has("[TOOL_CALLS]") && has("[ARGS]"), Self::Mistral),
            (has("[TOOL_CALLS]"), Self::MistralArray),
            (has("<|START_ACTION|>"), Self::Cohere),
            (has("<|CHATBOT_TOKEN|>") && has("Action:"), Self::CommandR),
            (has("<|tool_call>call:"), Self::Gemma),
            (has("<|tool_call_start|>") || has("<|tool_list_start|>"), Self::Lfm),
            (has("List of tools: ") && !has("<tool_call>"), Self::Lfm),
            (has("func_name1("), Self::Pythonic),
            (has("<seed:tool_call>"), Self::Seed),
            (has("<minimax:tool_call>"), Self::MiniMax),
            (has("<arg_key>"), Self::Glm),
            (has("<function=") && has("<parameter="), Self::QwenXml),
            (has("<function="), Self::Functionary),
            (has("<|python_tag|>"), Self::Llama),
            (has("<|start_header_id|>") && has("\"parameters\": "), Self::Llama),
            (has("functools["), Self::Functools),
            (has("<|tool_call|>") || has("<|/tool|>"), Self::Pipes),
            (has("<tool_calls>"), Self::ToolCalls),
            (has("<TOOLCALL>"), Self::ToolCallUpper),
            (has("<tool_call>"), Self::Hermes),
            (has("```tool_co") || has("```tool_call"), Self::Fenced),
        ];
        rules.iter().find(|(met, _)| *met).map_or(Self::Generic, |(_, format)| *format)
    }
}
