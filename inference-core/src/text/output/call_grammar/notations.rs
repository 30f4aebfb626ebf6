//! PURE. How each model family writes calls, as pieces of a grammar.

use crate::text::output::CallFormat;
use crate::text::output::delimiters::{GEMMA_STYLE, LiteralDelimiters, PYTHON_STYLE, Tags};

mod tagged;

/// A piece of a notation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NotationPiece {
    /// A delimiter, which may be a control token.
    Delimiter(&'static str),
    OptionalDelimiter(&'static str),
    Text(&'static str),
    Name,
    /// Arguments as JSON.
    Arguments,
    /// Arguments as tags.
    Parameters(&'static Tags),
    /// Arguments as tags in tags.
    Nested,
    /// Arguments as in a programming language.
    Literal(&'static LiteralDelimiters),
    /// A number.
    Digits,
    /// An ID of 9 letters and digits.
    CallId,
    /// An ID of 10 letters and digits.
    LongCallId,
    /// Perhaps an ID of 9 letters and digits, as the last member of an object.
    OptionalId,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct CallNotation {
    pub(crate) prefix: &'static [NotationPiece],
    pub(crate) call: &'static [NotationPiece],
    pub(crate) separator: &'static [NotationPiece],
    pub(crate) suffix: &'static [NotationPiece],
    /// Maximum number of calls in one response.
    pub(crate) most: usize,
    /// The keys of name and arguments, if a call is a JSON object without a delimiter.
    pub(crate) keys: Option<[&'static str; 2]>,
}

impl CallNotation {
    /// True if calls begin with this delimiter.
    pub(crate) fn begins_with(&self, text: &str) -> bool {
        let first = self.prefix.first().or(self.call.first());
        matches!(first, Some(Delimiter(delimiter)) if *delimiter == text)
    }
}

use NotationPiece::{
    Arguments, CallId, Delimiter, Digits, Literal, LongCallId, Name, OptionalDelimiter, OptionalId,
    Text,
};

const NAME: NotationPiece = Text("{\"name\": \"");
const ARGUMENTS: NotationPiece = Text("\", \"arguments\": ");
const LINE: &[NotationPiece] = &[Text("\n")];
const COMMA: &[NotationPiece] = &[Text(", ")];
const OBJECT: &[NotationPiece] = &[NAME, Name, ARGUMENTS, Arguments, Text("}")];
const ANY: usize = usize::MAX;

/// Headers in harmony: reasoning, text before a call; and the start of the next message.
pub(crate) const HARMONY_REASONING: &[NotationPiece] =
    &[Delimiter("<|channel|>"), Text("analysis"), Delimiter("<|message|>")];
pub(crate) const HARMONY_PREAMBLE: &[NotationPiece] =
    &[Delimiter("<|channel|>"), Text("commentary"), Delimiter("<|message|>")];
/// gpt-oss announces JSON between the channel name and the message.
pub(crate) const HARMONY_JSON: &[NotationPiece] =
    &[Text(" "), Delimiter("<|constrain|>"), Text("json")];
pub(crate) const HARMONY_CHANNEL_FINAL: &[NotationPiece] =
    &[Delimiter("<|channel|>"), Text("final")];
pub(crate) const HARMONY_MESSAGE: &[NotationPiece] = &[Delimiter("<|message|>")];
pub(crate) const HARMONY_NEXT: &[NotationPiece] = &[Delimiter("<|start|>"), Text("assistant")];

const fn lines(call: &'static [NotationPiece]) -> CallNotation {
    CallNotation { prefix: &[], call, separator: LINE, suffix: &[], most: ANY, keys: None }
}

const fn list(prefix: &'static [NotationPiece], suffix: &'static [NotationPiece]) -> CallNotation {
    CallNotation { prefix, call: OBJECT, separator: COMMA, suffix, most: ANY, keys: None }
}

static HERMES: CallNotation = lines(&[
    Delimiter("<tool_call>"),
    Text("\n{\"name\": \""),
    Name,
    ARGUMENTS,
    Arguments,
    Text("}\n"),
    Delimiter("</tool_call>"),
]);
/// The prompt ends with the delimiter of the first call.
static FUNCTIONARY_LINES: CallNotation = CallNotation {
    prefix: &[],
    call: &[Name, Text("\n"), Arguments],
    separator: &[Delimiter(">>>")],
    suffix: &[],
    most: ANY,
    keys: None,
};
static FUNCTIONARY: CallNotation =
    lines(&[Delimiter("<function="), Name, Text(">"), Arguments, Text("</function>")]);
static LLAMA: CallNotation = CallNotation {
    prefix: &[],
    call: &[NAME, Name, Text("\", \"parameters\": "), Arguments, Text("}")],
    separator: &[Text("; ")],
    suffix: &[],
    most: ANY,
    keys: Some(["name", "parameters"]),
};
/// Mistral 7B v0.3 writes a space before the array, and Nemo does not.
static MISTRAL_ARRAY: CallNotation = CallNotation {
    call: &[NAME, Name, ARGUMENTS, Arguments, OptionalId, Text("}")],
    ..list(&[Delimiter("[TOOL_CALLS]"), OptionalDelimiter(" "), Text("[")], &[Text("]")])
};
static MISTRAL: CallNotation = CallNotation {
    prefix: &[],
    call: &[Delimiter("[TOOL_CALLS]"), Name, Delimiter("[ARGS]"), Arguments],
    separator: &[],
    suffix: &[],
    most: ANY,
    keys: None,
};
static MISTRAL_IDS: CallNotation = CallNotation {
    prefix: &[],
    call: &[
        Delimiter("[TOOL_CALLS]"),
        Name,
        Delimiter("[CALL_ID]"),
        CallId,
        Delimiter("[ARGS]"),
        Arguments,
    ],
    separator: &[],
    suffix: &[],
    most: ANY,
    keys: None,
};
static DEEP_SEEK: CallNotation = CallNotation {
    prefix: &[Delimiter("<｜tool▁calls▁begin｜>")],
    call: &[
        Delimiter("<｜tool▁call▁begin｜>"),
        Text("function"),
        Delimiter("<｜tool▁sep｜>"),
        Name,
        Text("\n```json\n"),
        Arguments,
        Text("\n```"),
        Delimiter("<｜tool▁call▁end｜>"),
    ],
    separator: LINE,
    suffix: &[Delimiter("<｜tool▁calls▁end｜>")],
    most: ANY,
    keys: None,
};
static DEEP_SEEK_PLAIN: CallNotation = CallNotation {
    call: &[
        Delimiter("<｜tool▁call▁begin｜>"),
        Name,
        Delimiter("<｜tool▁sep｜>"),
        Arguments,
        Delimiter("<｜tool▁call▁end｜>"),
    ],
    separator: &[],
    prefix: &[Delimiter("<｜tool▁calls▁begin｜>")],
    suffix: &[Delimiter("<｜tool▁calls▁end｜>")],
    most: ANY,
    keys: None,
};
static KIMI: CallNotation = CallNotation {
    prefix: &[Delimiter("<|tool_calls_section_begin|>")],
    call: &[
        Delimiter("<|tool_call_begin|>"),
        Text("functions."),
        Name,
        Text(":"),
        Digits,
        Delimiter("<|tool_call_argument_begin|>"),
        Arguments,
        Delimiter("<|tool_call_end|>"),
    ],
    separator: &[],
    suffix: &[Delimiter("<|tool_calls_section_end|>")],
    most: ANY,
    keys: None,
};
static PIPES: CallNotation = list(
    &[Delimiter("<|tool_call|>"), Text("[")],
    &[Text("]"), OptionalDelimiter("<|/tool_call|>")],
);
static FUNCTOOLS: CallNotation = list(&[Delimiter("functools[")], &[Text("]")]);
static TOOL_CALLS: CallNotation =
    list(&[Delimiter("<tool_calls>"), Text("[")], &[Text("]"), Delimiter("</tool_calls>")]);
static TOOL_CALL_LINES: CallNotation = CallNotation {
    separator: LINE,
    ..list(&[Delimiter("<tool_calls>"), Text("\n")], &[Text("\n"), Delimiter("</tool_calls>")])
};
static APERTUS: CallNotation = CallNotation {
    call: &[Text("{\""), Name, Text("\": "), Arguments, Text("}")],
    ..list(&[Delimiter("<|tools_prefix|>"), Text("[")], &[Text("]"), Delimiter("<|tools_suffix|>")])
};
/// Between the messages of GigaChat 3.
pub(crate) const MESSAGE_END: &str = "<|message_sep|>";
static GIGA_CHAT: CallNotation = CallNotation {
    prefix: &[],
    call: &[
        Delimiter("function call<|role_sep|>"),
        // In the model's vocabulary, the delimiters contain the line breaks.
        OptionalDelimiter("\n"),
        NAME,
        Name,
        ARGUMENTS,
        Arguments,
        Text("}"),
    ],
    separator: &[Delimiter(MESSAGE_END), OptionalDelimiter("\n\n")],
    suffix: &[],
    most: ANY,
    keys: None,
};
static GIGA_CHAT_TOKEN: CallNotation = CallNotation {
    prefix: &[],
    call: &[Delimiter("<|function_call|>"), NAME, Name, ARGUMENTS, Arguments, Text("}")],
    separator: &[],
    suffix: &[],
    most: ANY,
    keys: None,
};
static SOLAR: CallNotation = CallNotation {
    prefix: &[OptionalDelimiter("<|begin|>assistant"), Delimiter("<|tool_calls|>")],
    call: &[
        Delimiter("<|tool_call:begin|>"),
        LongCallId,
        Delimiter("<|tool_call:name|>"),
        Name,
        Delimiter("<|tool_call:args|>"),
        Arguments,
        Delimiter("<|tool_call:end|>"),
    ],
    separator: &[],
    suffix: &[],
    most: ANY,
    keys: None,
};
static TOOL_CALL_UPPER: CallNotation =
    list(&[Delimiter("<TOOLCALL>"), Text("[")], &[Text("]"), Delimiter("</TOOLCALL>")]);
static COHERE: CallNotation = CallNotation {
    prefix: &[Delimiter("<|START_ACTION|>"), Text("[\n    ")],
    call: &[
        Text("{\"tool_call_id\": \""),
        Digits,
        Text("\", \"tool_name\": \""),
        Name,
        Text("\", \"parameters\": "),
        Arguments,
        Text("}"),
    ],
    separator: &[Text(",\n    ")],
    suffix: &[Text("\n]"), Delimiter("<|END_ACTION|>")],
    most: ANY,
    keys: None,
};
static COMMAND_R: CallNotation = CallNotation {
    prefix: &[Delimiter("Action: ```json"), Text("\n[\n    ")],
    call: &[
        Text("{\n        \"tool_name\": \""),
        Name,
        Text("\",\n        \"parameters\": "),
        Arguments,
        Text("\n    }"),
    ],
    separator: &[Text(",\n    ")],
    suffix: &[Text("\n]```")],
    most: ANY,
    keys: None,
};
static HARMONY: CallNotation = CallNotation {
    prefix: &[],
    call: &[
        Delimiter("<|channel|>"),
        Text("commentary to=functions."),
        Name,
        Text(" "),
        Delimiter("<|constrain|>"),
        Text("json"),
        Delimiter("<|message|>"),
        Arguments,
        // Ends the response in most vocabularies.
        OptionalDelimiter("<|call|>"),
    ],
    separator: &[],
    suffix: &[],
    // The model waits for a result after each call.
    most: 1,
    keys: None,
};
static GEMMA: CallNotation = CallNotation {
    prefix: &[],
    call: &[
        Delimiter("<|tool_call>"),
        Text("call:"),
        Name,
        Text("{"),
        Literal(&GEMMA_STYLE),
        Text("}"),
        Delimiter("<tool_call|>"),
    ],
    separator: &[],
    suffix: &[],
    most: ANY,
    keys: None,
};
const PYTHONIC_NOTATION: CallNotation = CallNotation {
    prefix: &[Text("[")],
    call: &[Name, Text("("), Literal(&PYTHON_STYLE), Text(")")],
    separator: COMMA,
    suffix: &[Text("]")],
    most: ANY,
    keys: None,
};
static PYTHONIC: CallNotation = PYTHONIC_NOTATION;
static LFM: CallNotation = CallNotation {
    prefix: &[Delimiter("<|tool_call_start|>"), Text("[")],
    suffix: &[Text("]"), Delimiter("<|tool_call_end|>")],
    ..PYTHONIC_NOTATION
};
static FENCED: CallNotation = list(&[Delimiter("```tool_call"), Text("\n[")], &[Text("]\n```")]);
static GENERIC: CallNotation =
    CallNotation { separator: LINE, keys: Some(["name", "arguments"]), ..list(&[], &[]) };

pub(crate) fn notation(format: CallFormat) -> &'static CallNotation {
    match format {
        CallFormat::Hermes | CallFormat::Described => &HERMES,
        CallFormat::QwenXml => &tagged::QWEN,
        CallFormat::Seed => &tagged::SEED,
        CallFormat::Glm => &tagged::GLM,
        CallFormat::MiniMax => &tagged::MINI_MAX,
        CallFormat::MiniMaxM3 => &tagged::MINI_MAX_M3,
        CallFormat::Dsml => &tagged::DSML,
        CallFormat::DsmlV4 => &tagged::DSML_V4,
        CallFormat::MiniCpm => &tagged::MINI_CPM,
        CallFormat::Hy3 => &tagged::HY3,
        CallFormat::Hy3Suffixed => &tagged::HY3_SUFFIXED,
        CallFormat::FunctionaryLines => &FUNCTIONARY_LINES,
        CallFormat::Hunyuan => &TOOL_CALLS,
        CallFormat::ToolCallLines => &TOOL_CALL_LINES,
        CallFormat::Apertus => &APERTUS,
        CallFormat::GigaChat => &GIGA_CHAT,
        CallFormat::GigaChatToken => &GIGA_CHAT_TOKEN,
        CallFormat::Solar => &SOLAR,
        CallFormat::Functionary => &FUNCTIONARY,
        CallFormat::Llama => &LLAMA,
        CallFormat::MistralArray => &MISTRAL_ARRAY,
        CallFormat::Mistral => &MISTRAL,
        CallFormat::MistralIds => &MISTRAL_IDS,
        CallFormat::DeepSeek => &DEEP_SEEK,
        CallFormat::DeepSeekPlain => &DEEP_SEEK_PLAIN,
        CallFormat::Kimi => &KIMI,
        CallFormat::KimiK3 => &tagged::KIMI_K3,
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
