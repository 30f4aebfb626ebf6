//! PURE. How each model family writes calls, as pieces of a grammar.

use crate::text::output::CallFormat;
use crate::text::output::marks::{
    GEMMA_STYLE, GLM_STYLE, LiteralMarks, MINIMAX_STYLE, PYTHON_STYLE, QWEN_STYLE, SEED_STYLE, Tags,
};

/// A piece of a notation.
#[derive(Debug, Clone, Copy)]
pub enum Piece {
    /// A delimiter, which may be a control token.
    Mark(&'static str),
    /// An optional delimiter.
    Maybe(&'static str),
    /// Text.
    Text(&'static str),
    /// The function name.
    Name,
    /// Arguments as JSON.
    Arguments,
    /// Arguments as tags.
    Parameters(&'static Tags),
    /// Arguments as in a programming language.
    Literal(&'static LiteralMarks),
    /// A number.
    Digits,
}

/// A notation of calls.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub prefix: &'static [Piece],
    pub call: &'static [Piece],
    pub separator: &'static [Piece],
    pub suffix: &'static [Piece],
    /// Maximum number of calls in one response.
    pub most: usize,
}

use Piece::{Arguments, Digits, Literal, Mark, Maybe, Name, Parameters, Text};

const NAME: Piece = Text("{\"name\": \"");
const ARGUMENTS: Piece = Text("\", \"arguments\": ");
const LINE: &[Piece] = &[Text("\n")];
const COMMA: &[Piece] = &[Text(", ")];
const OBJECT: &[Piece] = &[NAME, Name, ARGUMENTS, Arguments, Text("}")];
const ANY: usize = usize::MAX;

/// Headers in harmony: reasoning, text before a call, the response; and the start of the next
/// message.
pub const HARMONY_THOUGHTS: &[Piece] =
    &[Mark("<|channel|>"), Text("analysis"), Mark("<|message|>")];
pub const HARMONY_PREAMBLE: &[Piece] =
    &[Mark("<|channel|>"), Text("commentary"), Mark("<|message|>")];
pub const HARMONY_FINAL: &[Piece] = &[Mark("<|channel|>"), Text("final"), Mark("<|message|>")];
/// gpt-oss announces JSON between the channel name and the message.
pub const HARMONY_JSON: &[Piece] = &[Text(" "), Mark("<|constrain|>"), Text("json")];
pub const HARMONY_CHANNEL_FINAL: &[Piece] = &[Mark("<|channel|>"), Text("final")];
pub const HARMONY_MESSAGE: &[Piece] = &[Mark("<|message|>")];
pub const HARMONY_NEXT: &[Piece] = &[Mark("<|start|>"), Text("assistant")];

const fn lines(call: &'static [Piece]) -> Shape {
    Shape { prefix: &[], call, separator: LINE, suffix: &[], most: ANY }
}

const fn list(prefix: &'static [Piece], suffix: &'static [Piece]) -> Shape {
    Shape { prefix, call: OBJECT, separator: COMMA, suffix, most: ANY }
}

static HERMES: Shape = lines(&[
    Mark("<tool_call>"),
    Text("\n{\"name\": \""),
    Name,
    ARGUMENTS,
    Arguments,
    Text("}\n"),
    Mark("</tool_call>"),
]);
static QWEN: Shape = lines(&[
    Mark("<tool_call>"),
    Text("\n<function="),
    Name,
    Text(">\n"),
    Parameters(&QWEN_STYLE),
    Text("</function>\n"),
    Mark("</tool_call>"),
]);
static SEED: Shape = lines(&[
    Mark("<seed:tool_call>"),
    Text("\n<function="),
    Name,
    Text(">\n"),
    Parameters(&SEED_STYLE),
    Text("</function>\n"),
    Mark("</seed:tool_call>"),
]);
static GLM: Shape =
    lines(&[Mark("<tool_call>"), Name, Text("\n"), Parameters(&GLM_STYLE), Mark("</tool_call>")]);
static MINI_MAX: Shape = Shape {
    prefix: &[Mark("<minimax:tool_call>"), Text("\n")],
    call: &[
        Text("<invoke name=\""),
        Name,
        Text("\">\n"),
        Parameters(&MINIMAX_STYLE),
        Text("</invoke>\n"),
    ],
    separator: &[],
    suffix: &[Mark("</minimax:tool_call>")],
    most: ANY,
};
static FUNCTIONARY: Shape =
    lines(&[Mark("<function="), Name, Text(">"), Arguments, Text("</function>")]);
static LLAMA: Shape = Shape {
    prefix: &[],
    call: &[NAME, Name, Text("\", \"parameters\": "), Arguments, Text("}")],
    separator: &[Text("; ")],
    suffix: &[],
    most: ANY,
};
static MISTRAL_ARRAY: Shape = list(&[Mark("[TOOL_CALLS]"), Text(" [")], &[Text("]")]);
static MISTRAL: Shape = Shape {
    prefix: &[],
    call: &[Mark("[TOOL_CALLS]"), Name, Mark("[ARGS]"), Arguments],
    separator: &[],
    suffix: &[],
    most: ANY,
};
static DEEP_SEEK: Shape = Shape {
    prefix: &[Mark("<｜tool▁calls▁begin｜>")],
    call: &[
        Mark("<｜tool▁call▁begin｜>"),
        Text("function"),
        Mark("<｜tool▁sep｜>"),
        Name,
        Text("\n```json\n"),
        Arguments,
        Text("\n```"),
        Mark("<｜tool▁call▁end｜>"),
    ],
    separator: LINE,
    suffix: &[Mark("<｜tool▁calls▁end｜>")],
    most: ANY,
};
static DEEP_SEEK_PLAIN: Shape = Shape {
    call: &[
        Mark("<｜tool▁call▁begin｜>"),
        Name,
        Mark("<｜tool▁sep｜>"),
        Arguments,
        Mark("<｜tool▁call▁end｜>"),
    ],
    separator: &[],
    prefix: &[Mark("<｜tool▁calls▁begin｜>")],
    suffix: &[Mark("<｜tool▁calls▁end｜>")],
    most: ANY,
};
static KIMI: Shape = Shape {
    prefix: &[Mark("<|tool_calls_section_begin|>")],
    call: &[
        Mark("<|tool_call_begin|>"),
        Text("functions."),
        Name,
        Text(":"),
        Digits,
        Mark("<|tool_call_argument_begin|>"),
        Arguments,
        Mark("<|tool_call_end|>"),
    ],
    separator: &[],
    suffix: &[Mark("<|tool_calls_section_end|>")],
    most: ANY,
};
static PIPES: Shape =
    list(&[Mark("<|tool_call|>"), Text("[")], &[Text("]"), Maybe("<|/tool_call|>")]);
static FUNCTOOLS: Shape = list(&[Mark("functools[")], &[Text("]")]);
static TOOL_CALLS: Shape =
    list(&[Mark("<tool_calls>"), Text("[")], &[Text("]"), Mark("</tool_calls>")]);
static TOOL_CALL_UPPER: Shape =
    list(&[Mark("<TOOLCALL>"), Text("[")], &[Text("]"), Mark("</TOOLCALL>")]);
static COHERE: Shape = Shape {
    prefix: &[Mark("<|START_ACTION|>"), Text("[\n    ")],
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
    suffix: &[Text("\n]"), Mark("<|END_ACTION|>")],
    most: ANY,
};
static COMMAND_R: Shape = Shape {
    prefix: &[Mark("Action:"), Text(" ```json\n[\n    ")],
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
};
static HARMONY: Shape = Shape {
    prefix: &[],
    call: &[
        Mark("<|channel|>"),
        Text("commentary to=functions."),
        Name,
        Text(" "),
        Mark("<|constrain|>"),
        Text("json"),
        Mark("<|message|>"),
        Arguments,
        Mark("<|call|>"),
    ],
    separator: &[],
    suffix: &[],
    // The model waits for a result after each call.
    most: 1,
};
static GEMMA: Shape = Shape {
    prefix: &[],
    call: &[
        Mark("<|tool_call>"),
        Text("call:"),
        Name,
        Text("{"),
        Literal(&GEMMA_STYLE),
        Text("}"),
        Mark("<tool_call|>"),
    ],
    separator: &[],
    suffix: &[],
    most: ANY,
};
const PYTHONIC_SHAPE: Shape = Shape {
    prefix: &[Text("[")],
    call: &[Name, Text("("), Literal(&PYTHON_STYLE), Text(")")],
    separator: COMMA,
    suffix: &[Text("]")],
    most: ANY,
};
static PYTHONIC: Shape = PYTHONIC_SHAPE;
static LFM: Shape = Shape {
    prefix: &[Mark("<|tool_call_start|>"), Text("[")],
    suffix: &[Text("]"), Mark("<|tool_call_end|>")],
    ..PYTHONIC_SHAPE
};
static FENCED: Shape = list(&[Mark("```tool_call"), Text("\n[")], &[Text("]\n```")]);
static GENERIC: Shape = Shape { separator: LINE, ..list(&[], &[]) };

/// The notation of `format`.
pub fn shape(format: CallFormat) -> &'static Shape {
    match format {
        CallFormat::Hermes => &HERMES,
        CallFormat::QwenXml => &QWEN,
        CallFormat::Seed => &SEED,
        CallFormat::Glm => &GLM,
        CallFormat::MiniMax => &MINI_MAX,
        CallFormat::Functionary => &FUNCTIONARY,
        CallFormat::Llama => &LLAMA,
        CallFormat::MistralArray => &MISTRAL_ARRAY,
        CallFormat::Mistral => &MISTRAL,
        CallFormat::DeepSeek => &DEEP_SEEK,
        CallFormat::DeepSeekPlain => &DEEP_SEEK_PLAIN,
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
