//! PURE. The delimiters of each model family.

use super::call_format::CallFormat;

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
}

/// Tags of a notation with one tag for each parameter.
#[derive(Debug)]
pub(super) struct Tags {
    /// Before and after the name.
    pub(crate) call: &'static str,
    pub(crate) call_close: &'static str,
    /// The next tag ends the name as well.
    pub(crate) name_ends_at_tag: bool,
    /// After the call, and after what encloses it.
    pub(crate) end: &'static str,
    pub(crate) around_end: &'static str,
    pub(crate) key: &'static str,
    pub(crate) key_close: &'static str,
    /// Between the key and the value; may be empty.
    pub(crate) value: &'static str,
    pub(crate) value_close: &'static str,
    /// Values are on separate lines.
    pub(crate) lines: bool,
}

impl Tags {
    pub(crate) fn is_call(&self, text: &str) -> bool {
        text == self.call
    }

    pub(crate) fn key_and_ends(&self) -> [&'static str; 3] {
        [self.key, self.end, self.around_end]
    }
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

const QWEN_TAGS: Tags = Tags {
    call: "<function=",
    call_close: ">",
    name_ends_at_tag: false,
    end: "</function>",
    around_end: "</tool_call>",
    key: "<parameter=",
    key_close: ">",
    value: "",
    value_close: "</parameter>",
    lines: true,
};
pub(super) static QWEN_STYLE: Tags = QWEN_TAGS;
pub(super) static SEED_STYLE: Tags =
    Tags { around_end: "</seed:tool_call>", lines: false, ..QWEN_TAGS };
pub(super) static GLM_STYLE: Tags = Tags {
    call: "<tool_call>",
    call_close: "\n",
    name_ends_at_tag: true,
    end: "</tool_call>",
    around_end: "",
    key: "<arg_key>",
    key_close: "</arg_key>",
    value: "<arg_value>",
    value_close: "</arg_value>",
    lines: false,
};
pub(super) static MINIMAX_STYLE: Tags = Tags {
    call: "<invoke name=\"",
    call_close: "\">",
    name_ends_at_tag: false,
    end: "</invoke>",
    around_end: "</minimax:tool_call>",
    key: "<parameter name=\"",
    key_close: "\">",
    value: "",
    value_close: "</parameter>",
    lines: false,
};
pub(super) static MISTRAL_STYLE: NamedDelimiters =
    NamedDelimiters { open: "", separator: "[ARGS]", separator_optional: true, json_too: true };
pub(super) static DEEPSEEK_STYLE: NamedDelimiters = NamedDelimiters {
    open: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    separator_optional: false,
    json_too: false,
};
pub(super) static KIMI_STYLE: NamedDelimiters = NamedDelimiters {
    open: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    separator_optional: false,
    json_too: false,
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
        named("<｜tool▁calls▁begin｜>", DelimiterScope::Anywhere, &DEEPSEEK_STYLE),
        named("<｜tool▁call▁begin｜>", DelimiterScope::Anywhere, &DEEPSEEK_STYLE),
    ],
    after: &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
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
static PIPES: DelimiterTable = DelimiterTable {
    opens: &[json("<|tool_call|>"), json("<tool_call>")],
    after: &["<|/tool_call|>", "</tool_call>"],
    drops: &["<response>", "</response>"],
    ..NONE
};
static FUNCTOOLS: DelimiterTable = DelimiterTable { opens: &[json("functools[")], ..NONE };
static TOOL_CALLS: DelimiterTable = DelimiterTable {
    opens: &[json("<tool_calls>"), json("<tool_call>")],
    after: &["</tool_calls>", "</tool_call>"],
    ..NONE
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
        CallFormat::Functionary => &FUNCTIONARY,
        CallFormat::Llama => &LLAMA,
        CallFormat::Mistral | CallFormat::MistralArray => &MISTRAL,
        CallFormat::DeepSeek | CallFormat::DeepSeekPlain => &DEEP_SEEK,
        CallFormat::Kimi => &KIMI,
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
        CallFormat::Generic => &GENERIC,
    }
}
