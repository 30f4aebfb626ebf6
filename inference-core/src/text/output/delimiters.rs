//! PURE. The delimiters of each model family.

use super::call_format::CallFormat;

pub(super) mod namespaced;
mod tags;

pub(super) use tags::{
    Attributes, DSML_STYLE, DSML_V4_STYLE, GLM_STYLE, HY3_STYLE, HY3_SUFFIXED_STYLE, KIMI_K3_STYLE,
    MINICPM_STYLE, MINIMAX_STYLE, QWEN_STYLE, SEED_STYLE, Tags,
};

/// Where an opening delimiter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DelimiterScope {
    /// Anywhere in content.
    Anywhere,
    /// At the start of a line of content; it is the call's first bracket, not a delimiter.
    LineStart,
    AfterCall,
    /// At the start of the response.
    First,
    /// Anywhere, including in reasoning and without tools.
    Always,
}

/// What follows an opening delimiter.
#[derive(Debug, Clone, Copy)]
pub(super) enum Syntax {
    /// An object or an array.
    Json,
    /// A name, then JSON.
    Named(&'static NamedDelimiters),
    Xml(&'static Tags),
    /// Tags in tags, named after keys.
    Nested,
    /// An array of objects whose only key is the name.
    Keyed,
    /// A name or `all`, a line break, then JSON or text.
    Recipient,
    /// A function call as in a programming language.
    Function(&'static LiteralDelimiters),
    /// A harmony header.
    Header,
}

/// Delimiters of a notation like a programming language's.
#[derive(Debug)]
pub(super) struct LiteralDelimiters {
    pub(crate) before_name: &'static str,
    /// Brackets around the arguments.
    pub(crate) open: char,
    pub(crate) close: char,
    /// Separator of a key and its value.
    pub(crate) assign: char,
    /// Words for true and false.
    pub(crate) truth: [&'static str; 2],
}

pub(super) static PYTHON_STYLE: LiteralDelimiters = LiteralDelimiters {
    before_name: "",
    open: '(',
    close: ')',
    assign: '=',
    truth: ["True", "False"],
};
pub(super) static GEMMA_STYLE: LiteralDelimiters = LiteralDelimiters {
    before_name: "call:",
    open: '{',
    close: '}',
    assign: ':',
    truth: ["true", "false"],
};

#[derive(Debug, Clone, Copy)]
pub(super) struct OpeningDelimiter {
    pub(crate) text: &'static str,
    pub(crate) scope: DelimiterScope,
    pub(crate) syntax: Syntax,
}

impl OpeningDelimiter {
    /// True if only what follows marks this as a call, not a delimiter of the family's own.
    pub(crate) fn is_bare(&self) -> bool {
        self.scope == DelimiterScope::LineStart || self.text == "```json"
    }
}

/// Delimiters of a notation with a name before the arguments.
#[derive(Debug)]
pub(super) struct NamedDelimiters {
    /// Precedes a call, if calls are in a section; else empty.
    pub(crate) open: &'static str,
    /// Between name and arguments.
    pub(crate) separator: &'static str,
    pub(crate) separator_optional: bool,
    /// JSON may also follow the opening delimiter.
    pub(crate) json_too: bool,
    /// Between an ID and the name; empty if no ID comes first.
    pub(crate) id_end: &'static str,
}

#[derive(Debug)]
pub(super) struct DelimiterTable {
    pub(crate) opens: &'static [OpeningDelimiter],
    /// Dropped after a call.
    pub(crate) after: &'static [&'static str],
    /// Dropped anywhere.
    pub(crate) drops: &'static [&'static str],
    /// Delimiters inside calls, and parts of delimiters, that may be control tokens.
    pub(crate) inner: &'static [&'static str],
}

const fn json(text: &'static str) -> OpeningDelimiter {
    OpeningDelimiter { text, scope: DelimiterScope::Anywhere, syntax: Syntax::Json }
}

const fn bare(text: &'static str) -> OpeningDelimiter {
    OpeningDelimiter { text, scope: DelimiterScope::LineStart, syntax: Syntax::Json }
}

const fn xml(text: &'static str, tags: &'static Tags) -> OpeningDelimiter {
    OpeningDelimiter { text, scope: DelimiterScope::Anywhere, syntax: Syntax::Xml(tags) }
}

const fn nested(text: &'static str) -> OpeningDelimiter {
    OpeningDelimiter { text, scope: DelimiterScope::Anywhere, syntax: Syntax::Nested }
}

const fn named(
    text: &'static str,
    scope: DelimiterScope,
    delimiters: &'static NamedDelimiters,
) -> OpeningDelimiter {
    OpeningDelimiter { text, scope, syntax: Syntax::Named(delimiters) }
}

const fn function(
    text: &'static str,
    scope: DelimiterScope,
    delimiters: &'static LiteralDelimiters,
) -> OpeningDelimiter {
    OpeningDelimiter { text, scope, syntax: Syntax::Function(delimiters) }
}

const fn header(text: &'static str, scope: DelimiterScope) -> OpeningDelimiter {
    OpeningDelimiter { text, scope, syntax: Syntax::Header }
}

pub(super) static MISTRAL_STYLE: NamedDelimiters = NamedDelimiters {
    open: "",
    separator: "[ARGS]",
    separator_optional: true,
    json_too: true,
    id_end: "",
};
pub(super) static DEEPSEEK_STYLE: NamedDelimiters = NamedDelimiters {
    open: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    separator_optional: false,
    json_too: false,
    id_end: "",
};
pub(super) static KIMI_STYLE: NamedDelimiters = NamedDelimiters {
    open: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    separator_optional: false,
    json_too: false,
    id_end: "",
};
// Solar Open:
// https://github.com/vllm-project/vllm/blob/main/tests/tool_parsers/test_solar_open_tool_parser.py
pub(super) static SOLAR_STYLE: NamedDelimiters = NamedDelimiters {
    open: "",
    separator: "<|tool_call:args|>",
    separator_optional: false,
    json_too: false,
    id_end: "<|tool_call:name|>",
};

const NONE: DelimiterTable = DelimiterTable { opens: &[], after: &[], drops: &[], inner: &[] };
const AGAIN: OpeningDelimiter =
    OpeningDelimiter { text: "{", scope: DelimiterScope::AfterCall, syntax: Syntax::Json };
static HERMES: DelimiterTable =
    DelimiterTable { opens: &[json("<tool_call>"), AGAIN], after: &["</tool_call>"], ..NONE };
static QWEN_XML: DelimiterTable = DelimiterTable {
    opens: &[xml("<tool_call>", &QWEN_STYLE), xml("<function=", &QWEN_STYLE)],
    after: &["</tool_call>"],
    ..NONE
};
static SEED: DelimiterTable = DelimiterTable {
    opens: &[xml("<seed:tool_call>", &SEED_STYLE), xml("<function=", &SEED_STYLE)],
    after: &["</seed:tool_call>"],
    ..NONE
};
static GLM: DelimiterTable = DelimiterTable { opens: &[xml("<tool_call>", &GLM_STYLE)], ..NONE };
static MINI_MAX: DelimiterTable = DelimiterTable {
    opens: &[xml("<minimax:tool_call>", &MINIMAX_STYLE), xml("<invoke name=\"", &MINIMAX_STYLE)],
    after: &["</minimax:tool_call>"],
    ..NONE
};
// MiniMax M3:
// https://github.com/vllm-project/vllm/blob/main/vllm/tool_parsers/minimax_m3_tool_parser.py
static MINI_MAX_M3: DelimiterTable = DelimiterTable {
    opens: &[nested(namespaced::SECTION), nested(namespaced::CALL)],
    after: &[namespaced::SECTION_END],
    inner: &[namespaced::NAMESPACE],
    ..NONE
};
static DSML: DelimiterTable = DelimiterTable {
    opens: &[
        xml("<｜DSML｜function_calls>", &DSML_STYLE),
        xml("<｜DSML｜invoke name=\"", &DSML_STYLE),
    ],
    after: &["</｜DSML｜function_calls>"],
    inner: &["｜DSML｜"],
    ..NONE
};
static DSML_V4: DelimiterTable = DelimiterTable {
    opens: &[
        xml("<｜DSML｜tool_calls>", &DSML_V4_STYLE),
        xml("<｜DSML｜invoke name=\"", &DSML_V4_STYLE),
    ],
    after: &["</｜DSML｜tool_calls>"],
    inner: &["｜DSML｜"],
    ..NONE
};
static MINI_CPM: DelimiterTable =
    DelimiterTable { opens: &[xml("<function name=\"", &MINICPM_STYLE)], ..NONE };
static HY3: DelimiterTable = DelimiterTable {
    opens: &[xml("<tool_calls>", &HY3_STYLE), xml("<tool_call>", &HY3_STYLE)],
    after: &["</tool_calls>", "<end_of_tool_call>"],
    inner: &[
        "<tool_sep>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ],
    ..NONE
};
static HY3_SUFFIXED: DelimiterTable = DelimiterTable {
    opens: &[
        xml("<tool_calls:opensource>", &HY3_SUFFIXED_STYLE),
        xml("<tool_call:opensource>", &HY3_SUFFIXED_STYLE),
    ],
    after: &["</tool_calls:opensource>", "<end_of_tool_call:opensource>"],
    inner: &[
        "<tool_sep:opensource>",
        "</tool_call:opensource>",
        "<arg_key:opensource>",
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
    ],
    ..NONE
};
// The prompt ends with the first delimiter; see Functionary v3.2 in
// https://github.com/ggml-org/llama.cpp/blob/master/common/chat.cpp
static FUNCTIONARY_LINES: DelimiterTable = DelimiterTable { opens: &[FUNCTIONARY_LINE], ..NONE };
pub(super) const FUNCTIONARY_LINE: OpeningDelimiter =
    OpeningDelimiter { text: ">>>", scope: DelimiterScope::Always, syntax: Syntax::Recipient };
static FUNCTIONARY: DelimiterTable =
    DelimiterTable { opens: &[xml("<function=", &QWEN_STYLE)], after: &["</function>"], ..NONE };
static LLAMA: DelimiterTable = DelimiterTable {
    opens: &[json("<|python_tag|>"), bare("{"), bare("[")],
    after: &[";", ",", "<|eom_id|>"],
    ..NONE
};
static MISTRAL: DelimiterTable = DelimiterTable {
    opens: &[named("[TOOL_CALLS]", DelimiterScope::Anywhere, &MISTRAL_STYLE)],
    inner: &["[ARGS]", "[CALL_ID]"],
    ..NONE
};
static DEEP_SEEK: DelimiterTable = DelimiterTable {
    opens: &[
        json("<tool_call>"),
        named("<｜tool▁calls▁begin｜>", DelimiterScope::Anywhere, &DEEPSEEK_STYLE),
        named("<｜tool▁call▁begin｜>", DelimiterScope::Anywhere, &DEEPSEEK_STYLE),
    ],
    after: &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "</tool_call>"],
    inner: &["<｜tool▁sep｜>"],
    ..NONE
};
static KIMI: DelimiterTable = DelimiterTable {
    opens: &[
        named("<|tool_calls_section_begin|>", DelimiterScope::Anywhere, &KIMI_STYLE),
        named("<|tool_call_begin|>", DelimiterScope::Anywhere, &KIMI_STYLE),
    ],
    after: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
    inner: &["<|tool_call_argument_begin|>"],
    ..NONE
};
static KIMI_K3: DelimiterTable = DelimiterTable {
    opens: &[
        xml("<|open|>tools<|sep|>", &KIMI_K3_STYLE),
        xml("<|open|>call tool=\"", &KIMI_K3_STYLE),
    ],
    after: &["<|close|>json<|sep|>", "<|close|>call<|sep|>", "<|close|>tools<|sep|>"],
    drops: &[K3_RESPONSE, K3_RESPONSE_END, K3_MESSAGE_END, "<|end_of_msg|>"],
    inner: &["<|open|>", "<|close|>", "<|sep|>"],
};
/// Around the content of Kimi K3's messages, even if it is empty.
pub(super) const K3_RESPONSE: &str = "<|open|>response<|sep|>";
pub(super) const K3_RESPONSE_END: &str = "<|close|>response<|sep|>";
pub(super) const K3_MESSAGE_END: &str = "<|close|>message<|sep|>";
static PIPES: DelimiterTable = DelimiterTable {
    opens: &[json("<|tool_call|>"), json("<tool_call>"), json("functools[")],
    after: &["<|/tool_call|>", "</tool_call>"],
    drops: &["<response>", "</response>"],
    ..NONE
};
static FUNCTOOLS: DelimiterTable = DelimiterTable { opens: &[json("functools[")], ..NONE };
const TOOL_CALLS_TABLE: DelimiterTable = DelimiterTable {
    opens: &[json("<tool_calls>"), json("<tool_call>")],
    after: &["</tool_calls>", "</tool_call>", "[END FINAL RESPONSE]"],
    drops: &["[END FINAL RESPONSE]"],
    ..NONE
};
static TOOL_CALLS: DelimiterTable = TOOL_CALLS_TABLE;
// Hunyuan A13B:
// https://github.com/vllm-project/vllm/blob/main/vllm/tool_parsers/hunyuan_a13b_tool_parser.py
static HUNYUAN: DelimiterTable =
    DelimiterTable { drops: &["<answer>", "</answer>"], ..TOOL_CALLS_TABLE };
// MiniMax M1, from its model card.
static TOOL_CALL_LINES: DelimiterTable =
    DelimiterTable { opens: &[json("<tool_calls>"), AGAIN], after: &["</tool_calls>"], ..NONE };
// Apertus:
// https://github.com/vllm-project/vllm/blob/main/tests/tool_parsers/test_apertus_tool_parser.py
static APERTUS: DelimiterTable = DelimiterTable {
    opens: &[OpeningDelimiter {
        text: "<|tools_prefix|>",
        scope: DelimiterScope::Anywhere,
        syntax: Syntax::Keyed,
    }],
    after: &["<|tools_suffix|>"],
    ..NONE
};
// GigaChat 3, from its template:
// https://github.com/ggml-org/llama.cpp/blob/master/models/templates/GigaChat3-10B-A1.8B.jinja
static GIGA_CHAT: DelimiterTable = DelimiterTable {
    opens: &[json("function call<|role_sep|>")],
    drops: &["<|message_sep|>"],
    inner: &["<|role_sep|>"],
    ..NONE
};
// GigaChat 3.1: https://github.com/vllm-project/vllm/pull/36664
static GIGA_CHAT_TOKEN: DelimiterTable =
    DelimiterTable { opens: &[json("<|function_call|>")], drops: &["<|message_sep|>"], ..NONE };
static SOLAR: DelimiterTable = DelimiterTable {
    opens: &[named("<|tool_call:begin|>", DelimiterScope::Anywhere, &SOLAR_STYLE)],
    after: &["<|tool_call:end|>"],
    drops: &[
        "<|begin|>assistant",
        "<|content|>",
        "<|tool_calls|>",
        "<|end|>",
        "<|flush|>",
        "<|calls|>",
    ],
    inner: &["<|begin|>", "<|tool_call:name|>", "<|tool_call:args|>"],
};
static TOOL_CALL_UPPER: DelimiterTable =
    DelimiterTable { opens: &[json("<TOOLCALL>")], after: &["</TOOLCALL>"], ..NONE };
static COHERE: DelimiterTable = DelimiterTable {
    opens: &[json("<|START_ACTION|>")],
    after: &["<|END_ACTION|>"],
    drops: &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    ..NONE
};
static COMMAND_R: DelimiterTable =
    DelimiterTable { opens: &[json("Action:")], after: &["```"], ..NONE };
static HARMONY: DelimiterTable = DelimiterTable {
    opens: &[
        header("<|channel|>", DelimiterScope::Always),
        header("<|start|>", DelimiterScope::Always),
        header(" to=functions.", DelimiterScope::First),
        header("to=functions.", DelimiterScope::First),
    ],
    drops: &["<|end|>", "<|return|>", "<|call|>"],
    inner: &["<|message|>", "<|constrain|>"],
    ..NONE
};
static FENCED: DelimiterTable = DelimiterTable {
    opens: &[
        function("```tool_code", DelimiterScope::Anywhere, &PYTHON_STYLE),
        json("```tool_call"),
        json("```json"),
        bare("{"),
        bare("["),
    ],
    after: &["```"],
    ..NONE
};
static GENERIC: DelimiterTable = DelimiterTable {
    opens: &[json("<tool_call>"), json("```tool_call"), json("```json"), bare("{"), bare("[")],
    after: &["```", "</tool_call>"],
    ..NONE
};
static GEMMA: DelimiterTable = DelimiterTable {
    opens: &[function("<|tool_call>", DelimiterScope::Anywhere, &GEMMA_STYLE)],
    after: &["<tool_call|>"],
    inner: &["<|\"|>"],
    ..NONE
};
static LFM: DelimiterTable = DelimiterTable {
    opens: &[function("<|tool_call_start|>", DelimiterScope::Anywhere, &PYTHON_STYLE)],
    after: &["<|tool_call_end|>"],
    ..NONE
};
static PYTHONIC: DelimiterTable = DelimiterTable {
    opens: &[
        function("<|python_start|>", DelimiterScope::Anywhere, &PYTHON_STYLE),
        function("[", DelimiterScope::LineStart, &PYTHON_STYLE),
    ],
    after: &["<|python_end|>"],
    ..NONE
};

pub(super) fn delimiter_table(format: CallFormat) -> &'static DelimiterTable {
    match format {
        CallFormat::Hermes => &HERMES,
        CallFormat::QwenXml => &QWEN_XML,
        CallFormat::Seed => &SEED,
        CallFormat::Glm => &GLM,
        CallFormat::MiniMax => &MINI_MAX,
        CallFormat::MiniMaxM3 => &MINI_MAX_M3,
        CallFormat::Dsml => &DSML,
        CallFormat::DsmlV4 => &DSML_V4,
        CallFormat::MiniCpm => &MINI_CPM,
        CallFormat::Hy3 => &HY3,
        CallFormat::Hy3Suffixed => &HY3_SUFFIXED,
        CallFormat::FunctionaryLines => &FUNCTIONARY_LINES,
        CallFormat::Hunyuan => &HUNYUAN,
        CallFormat::ToolCallLines => &TOOL_CALL_LINES,
        CallFormat::Apertus => &APERTUS,
        CallFormat::GigaChat => &GIGA_CHAT,
        CallFormat::GigaChatToken => &GIGA_CHAT_TOKEN,
        CallFormat::Solar => &SOLAR,
        CallFormat::Functionary => &FUNCTIONARY,
        CallFormat::Llama => &LLAMA,
        CallFormat::Mistral | CallFormat::MistralIds | CallFormat::MistralArray => &MISTRAL,
        CallFormat::DeepSeek | CallFormat::DeepSeekPlain => &DEEP_SEEK,
        CallFormat::Kimi => &KIMI,
        CallFormat::KimiK3 => &KIMI_K3,
        CallFormat::Pipes => &PIPES,
        CallFormat::Functools => &FUNCTOOLS,
        CallFormat::ToolCalls => &TOOL_CALLS,
        CallFormat::ToolCallUpper => &TOOL_CALL_UPPER,
        CallFormat::Cohere => &COHERE,
        CallFormat::CommandR => &COMMAND_R,
        CallFormat::Gemma => &GEMMA,
        CallFormat::Lfm => &LFM,
        CallFormat::Pythonic => &PYTHONIC,
        CallFormat::Harmony => &HARMONY,
        CallFormat::Fenced => &FENCED,
        CallFormat::Generic | CallFormat::Described => &GENERIC,
    }
}
