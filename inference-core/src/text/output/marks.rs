//! PURE. The delimiters of each model family.

use super::format::CallFormat;

/// Where an opening delimiter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Anywhere in content.
    Anywhere,
    /// At the start of a line of content; it is the call's first bracket, not a delimiter.
    LineStart,
    /// After a call.
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
    Named(&'static NamedMarks),
    /// Tags.
    Xml(&'static Tags),
    /// A function call as in a programming language.
    Function(&'static LiteralMarks),
    /// A harmony header.
    Header,
}

/// Delimiters of a notation like a programming language's.
#[derive(Debug)]
pub(super) struct LiteralMarks {
    pub before_name: &'static str,
    /// Brackets around the arguments.
    pub open: char,
    pub close: char,
    /// Separator of a key and its value.
    pub assign: char,
    /// Words for true and false.
    pub truth: [&'static str; 2],
}

pub(super) static PYTHON_STYLE: LiteralMarks =
    LiteralMarks { before_name: "", open: '(', close: ')', assign: '=', truth: ["True", "False"] };
pub(super) static GEMMA_STYLE: LiteralMarks = LiteralMarks {
    before_name: "call:",
    open: '{',
    close: '}',
    assign: ':',
    truth: ["true", "false"],
};

/// An opening delimiter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    pub mark: &'static str,
    pub when: When,
    pub syntax: Syntax,
}

impl Open {
    /// True if only what follows marks this as a call, not a delimiter of the family's own.
    pub fn is_bare(&self) -> bool {
        self.when == When::LineStart || self.mark == "```json"
    }
}

/// Delimiters of a notation with a name before the arguments.
#[derive(Debug)]
pub(super) struct NamedMarks {
    /// Precedes a call, if calls are in a section; else empty.
    pub open: &'static str,
    /// Between name and arguments.
    pub separator: &'static str,
    pub separator_optional: bool,
    /// JSON may also follow the opening delimiter.
    pub json_too: bool,
}

/// Tags of a notation with one tag for each parameter.
#[derive(Debug)]
pub(super) struct Tags {
    /// Before and after the name.
    pub call: &'static str,
    pub call_close: &'static str,
    /// The next tag ends the name as well.
    pub name_ends_at_tag: bool,
    /// After the call, and after what encloses it.
    pub end: &'static str,
    pub around_end: &'static str,
    pub key: &'static str,
    pub key_close: &'static str,
    /// Between the key and the value; may be empty.
    pub value: &'static str,
    pub value_close: &'static str,
    /// Values are on separate lines.
    pub lines: bool,
}

impl Tags {
    pub fn is_call(&self, mark: &str) -> bool {
        mark == self.call
    }

    pub fn key_and_ends(&self) -> [&'static str; 3] {
        [self.key, self.end, self.around_end]
    }
}

/// The delimiters of one notation.
#[derive(Debug)]
pub(super) struct Table {
    pub opens: &'static [Open],
    /// Dropped after a call.
    pub after: &'static [&'static str],
    /// Dropped anywhere.
    pub drops: &'static [&'static str],
    /// Delimiters inside calls, and parts of delimiters, that may be control tokens.
    pub inner: &'static [&'static str],
}

const fn json(mark: &'static str) -> Open {
    Open { mark, when: When::Anywhere, syntax: Syntax::Json }
}

const fn bare(mark: &'static str) -> Open {
    Open { mark, when: When::LineStart, syntax: Syntax::Json }
}

const fn xml(mark: &'static str, tags: &'static Tags) -> Open {
    Open { mark, when: When::Anywhere, syntax: Syntax::Xml(tags) }
}

const fn named(mark: &'static str, when: When, marks: &'static NamedMarks) -> Open {
    Open { mark, when, syntax: Syntax::Named(marks) }
}

const fn function(mark: &'static str, when: When, marks: &'static LiteralMarks) -> Open {
    Open { mark, when, syntax: Syntax::Function(marks) }
}

const fn header(mark: &'static str, when: When) -> Open {
    Open { mark, when, syntax: Syntax::Header }
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
pub(super) static MISTRAL_STYLE: NamedMarks =
    NamedMarks { open: "", separator: "[ARGS]", separator_optional: true, json_too: true };
pub(super) static DEEPSEEK_STYLE: NamedMarks = NamedMarks {
    open: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    separator_optional: false,
    json_too: false,
};
pub(super) static KIMI_STYLE: NamedMarks = NamedMarks {
    open: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    separator_optional: false,
    json_too: false,
};

const NONE: Table = Table { opens: &[], after: &[], drops: &[], inner: &[] };
const AGAIN: Open = Open { mark: "{", when: When::AfterCall, syntax: Syntax::Json };
static HERMES: Table =
    Table { opens: &[json("<tool_call>"), AGAIN], after: &["</tool_call>"], ..NONE };
static QWEN_XML: Table = Table {
    opens: &[xml("<tool_call>", &QWEN_STYLE), xml("<function=", &QWEN_STYLE)],
    after: &["</tool_call>"],
    ..NONE
};
static SEED: Table = Table {
    opens: &[xml("<seed:tool_call>", &SEED_STYLE), xml("<function=", &SEED_STYLE)],
    after: &["</seed:tool_call>"],
    ..NONE
};
static GLM: Table = Table { opens: &[xml("<tool_call>", &GLM_STYLE)], ..NONE };
static MINI_MAX: Table = Table {
    opens: &[xml("<minimax:tool_call>", &MINIMAX_STYLE), xml("<invoke name=\"", &MINIMAX_STYLE)],
    after: &["</minimax:tool_call>"],
    ..NONE
};
static FUNCTIONARY: Table =
    Table { opens: &[xml("<function=", &QWEN_STYLE)], after: &["</function>"], ..NONE };
static LLAMA: Table = Table {
    opens: &[json("<|python_tag|>"), bare("{"), bare("[")],
    after: &[";", ",", "<|eom_id|>"],
    ..NONE
};
static MISTRAL: Table = Table {
    opens: &[named("[TOOL_CALLS]", When::Anywhere, &MISTRAL_STYLE)],
    inner: &["[ARGS]", "[CALL_ID]"],
    ..NONE
};
static DEEP_SEEK: Table = Table {
    opens: &[
        named("<｜tool▁calls▁begin｜>", When::Anywhere, &DEEPSEEK_STYLE),
        named("<｜tool▁call▁begin｜>", When::Anywhere, &DEEPSEEK_STYLE),
    ],
    after: &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
    inner: &["<｜tool▁sep｜>"],
    ..NONE
};
static KIMI: Table = Table {
    opens: &[
        named("<|tool_calls_section_begin|>", When::Anywhere, &KIMI_STYLE),
        named("<|tool_call_begin|>", When::Anywhere, &KIMI_STYLE),
    ],
    after: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
    inner: &["<|tool_call_argument_begin|>"],
    ..NONE
};
static PIPES: Table = Table {
    opens: &[json("<|tool_call|>"), json("<tool_call>")],
    after: &["<|/tool_call|>", "</tool_call>"],
    drops: &["<response>", "</response>"],
    ..NONE
};
static FUNCTOOLS: Table = Table { opens: &[json("functools[")], ..NONE };
static TOOL_CALLS: Table = Table {
    opens: &[json("<tool_calls>"), json("<tool_call>")],
    after: &["</tool_calls>", "</tool_call>"],
    ..NONE
};
static TOOL_CALL_UPPER: Table =
    Table { opens: &[json("<TOOLCALL>")], after: &["</TOOLCALL>"], ..NONE };
static COHERE: Table = Table {
    opens: &[json("<|START_ACTION|>")],
    after: &["<|END_ACTION|>"],
    drops: &["<|START_RESPONSE|>", "<|END_RESPONSE|>"],
    ..NONE
};
static COMMAND_R: Table = Table { opens: &[json("Action:")], after: &["```"], ..NONE };
static HARMONY: Table = Table {
    opens: &[
        header("<|channel|>", When::Always),
        header("<|start|>", When::Always),
        header(" to=functions.", When::First),
        header("to=functions.", When::First),
    ],
    drops: &["<|end|>", "<|return|>", "<|call|>"],
    inner: &["<|message|>", "<|constrain|>"],
    ..NONE
};
static FENCED: Table = Table {
    opens: &[
        function("```tool_code", When::Anywhere, &PYTHON_STYLE),
        json("```tool_call"),
        json("```json"),
        bare("{"),
        bare("["),
    ],
    after: &["```"],
    ..NONE
};
static GENERIC: Table = Table {
    opens: &[json("<tool_call>"), json("```tool_call"), json("```json"), bare("{"), bare("[")],
    after: &["```", "</tool_call>"],
    ..NONE
};
static GEMMA: Table = Table {
    opens: &[function("<|tool_call>", When::Anywhere, &GEMMA_STYLE)],
    after: &["<tool_call|>"],
    inner: &["<|\"|>"],
    ..NONE
};
static LFM: Table = Table {
    opens: &[function("<|tool_call_start|>", When::Anywhere, &PYTHON_STYLE)],
    after: &["<|tool_call_end|>"],
    ..NONE
};
static PYTHONIC: Table = Table {
    opens: &[
        function("<|python_start|>", When::Anywhere, &PYTHON_STYLE),
        function("[", When::LineStart, &PYTHON_STYLE),
    ],
    after: &["<|python_end|>"],
    ..NONE
};

/// The delimiters of a family.
pub(super) fn table(format: CallFormat) -> &'static Table {
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
