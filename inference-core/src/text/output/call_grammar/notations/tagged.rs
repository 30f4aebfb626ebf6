//! PURE. Notations with one tag for each parameter.

use super::NotationPiece::{Delimiter, Digits, Name, Nested, OptionalDelimiter, Parameters, Text};
use super::{ANY, CallNotation, NotationPiece, lines};
use crate::text::output::delimiters::namespaced;
use crate::text::output::delimiters::{
    DSML_STYLE, GLM_STYLE, HY3_STYLE, HY3_SUFFIXED_STYLE, K3_MESSAGE_END, KIMI_K3_STYLE,
    MINICPM_STYLE, MINIMAX_STYLE, QWEN_STYLE, SEED_STYLE,
};

pub(super) static QWEN: CallNotation = lines(&[
    Delimiter("<tool_call>"),
    Text("\n<function="),
    Name,
    Text(">\n"),
    Parameters(&QWEN_STYLE),
    Text("</function>\n"),
    Delimiter("</tool_call>"),
]);
pub(super) static SEED: CallNotation = lines(&[
    Delimiter("<seed:tool_call>"),
    Text("\n<function="),
    Name,
    Text(">\n"),
    Parameters(&SEED_STYLE),
    Text("</function>\n"),
    Delimiter("</seed:tool_call>"),
]);
pub(super) static GLM: CallNotation = lines(&[
    Delimiter("<tool_call>"),
    Name,
    Text("\n"),
    Parameters(&GLM_STYLE),
    Delimiter("</tool_call>"),
]);
pub(super) static MINI_MAX: CallNotation = CallNotation {
    prefix: &[Delimiter("<minimax:tool_call>"), Text("\n")],
    call: &[
        Text("<invoke name=\""),
        Name,
        Text("\">\n"),
        Parameters(&MINIMAX_STYLE),
        Text("</invoke>\n"),
    ],
    separator: &[],
    suffix: &[Delimiter("</minimax:tool_call>")],
    most: ANY,
    keys: None,
};
const DSML_CALL: &[NotationPiece] = &[
    Delimiter("<｜DSML｜invoke name=\""),
    Name,
    Text("\">\n"),
    Parameters(&DSML_STYLE),
    Delimiter("</｜DSML｜invoke>"),
    Text("\n"),
];
pub(super) static DSML: CallNotation = CallNotation {
    prefix: &[Delimiter("<｜DSML｜function_calls>"), Text("\n")],
    call: DSML_CALL,
    separator: &[],
    suffix: &[Delimiter("</｜DSML｜function_calls>")],
    most: ANY,
    keys: None,
};
pub(super) static DSML_V4: CallNotation = CallNotation {
    prefix: &[Delimiter("<｜DSML｜tool_calls>"), Text("\n")],
    call: DSML_CALL,
    separator: &[],
    suffix: &[Delimiter("</｜DSML｜tool_calls>")],
    most: ANY,
    keys: None,
};
pub(super) static MINI_CPM: CallNotation = lines(&[
    Delimiter("<function name=\""),
    Name,
    Text("\">"),
    Parameters(&MINICPM_STYLE),
    Text("</function>"),
]);
pub(super) static HY3: CallNotation = CallNotation {
    prefix: &[Delimiter("<tool_calls>"), Text("\n")],
    call: &[
        Delimiter("<tool_call>"),
        Name,
        Delimiter("<tool_sep>"),
        Text("\n"),
        Parameters(&HY3_STYLE),
        Delimiter("</tool_call>"),
        Text("\n"),
    ],
    separator: &[],
    suffix: &[Delimiter("</tool_calls>")],
    most: ANY,
    keys: None,
};
pub(super) static HY3_SUFFIXED: CallNotation = CallNotation {
    prefix: &[Delimiter("<tool_calls:opensource>"), Text("\n")],
    call: &[
        Delimiter("<tool_call:opensource>"),
        Name,
        Delimiter("<tool_sep:opensource>"),
        Text("\n"),
        Parameters(&HY3_SUFFIXED_STYLE),
        Delimiter("</tool_call:opensource>"),
        Text("\n"),
    ],
    separator: &[],
    suffix: &[Delimiter("</tool_calls:opensource>")],
    most: ANY,
    keys: None,
};
pub(super) static KIMI_K3: CallNotation = CallNotation {
    prefix: &[Delimiter("<|open|>tools<|sep|>")],
    call: &[
        Delimiter("<|open|>call tool=\""),
        Name,
        Text("\" index=\""),
        Digits,
        Text("\""),
        Delimiter("<|sep|>"),
        Parameters(&KIMI_K3_STYLE),
        Delimiter("<|close|>call<|sep|>"),
    ],
    separator: &[],
    suffix: &[Delimiter("<|close|>tools<|sep|>"), OptionalDelimiter(K3_MESSAGE_END)],
    most: ANY,
    keys: None,
};
pub(super) static MINI_MAX_M3: CallNotation = CallNotation {
    prefix: &[Delimiter(namespaced::SECTION), Text("\n")],
    call: &[
        Delimiter(namespaced::CALL),
        Name,
        Text("\">"),
        Nested,
        Delimiter(namespaced::CALL_END),
        Text("\n"),
    ],
    separator: &[],
    suffix: &[Delimiter(namespaced::SECTION_END)],
    most: ANY,
    keys: None,
};
