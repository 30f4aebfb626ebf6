//! PURE. Turns `tool_choice` into a grammar for llguidance, in its variant of Lark
//! (<https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>), which makes a model
//! write calls in its own notation, with valid names and arguments.
//!
//! The grammar contains the arguments' schema unchanged, as a separate root, so that its references
//! resolve. Arguments of non-strict tools follow the schema as far as llguidance supports its
//! keywords; those of strict tools follow it exactly, or the grammar is rejected.

mod lark;
mod literals;
mod nested;
mod notations;
mod optional;

use serde_json::Value;

use super::delimiters::{K3_MESSAGE_END, K3_RESPONSE, K3_RESPONSE_END, delimiter_table};
use super::tools::InvalidParameter;
use super::{CallFormat, Format, ResponseStart, Tool, ToolSet};
use crate::types::tool_choice::ToolChoice;
use lark::Lark;
use notations::{CallNotation, NotationPiece};

/// Maximum number of calls in a grammar, whatever the caller allows.
const CALLS_MAX: usize = 128;
/// Maximum number of messages of reasoning in harmony, where most responses have one.
const REASONING_MAX: usize = 8;

impl ToolChoice {
    /// Parses `tool_choice`; absent or null is `auto`.
    pub fn from_openai(choice: Option<&Value>, tools: &ToolSet) -> Result<Self, InvalidParameter> {
        let invalid = |problem: &str| InvalidParameter::new("tool_choice", problem);
        let read = match choice {
            None | Some(Value::Null) => Self::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => Self::None,
                "auto" => Self::Auto,
                "required" => Self::Required,
                _ => return Err(invalid(" must be none, auto, required or a function")),
            },
            Some(object) => {
                let is_function = object.get("type").is_none_or(|kind| kind == "function");
                let name = object.pointer("/function/name").and_then(Value::as_str);
                let name = name.filter(|_| is_function);
                let name = name.ok_or_else(|| {
                    invalid(
                        " must be none, auto, required or \
                         {\"type\": \"function\", \"function\": {\"name\": ..}}",
                    )
                })?;
                if tools.get(name).is_none() {
                    let problem = format!(": no tool is named {name}");
                    return Err(InvalidParameter::new("tool_choice.function.name", problem));
                }
                Self::Function(name.into())
            }
        };
        if read == Self::Required && tools.is_empty() {
            return Err(invalid(" is required, but there are no tools"));
        }
        Ok(read)
    }
}

/// Input for a tool-call grammar.
#[derive(Debug)]
pub(crate) struct CallGrammarRequest<'a> {
    /// The model's notation.
    pub(crate) format: &'a Format,
    /// Available tools.
    pub(crate) tools: &'a ToolSet,
    /// The parsed `tool_choice`.
    pub(crate) choice: &'a ToolChoice,
    /// Maximum number of calls; 1 if `parallel_tool_calls` is false.
    pub(crate) calls_max: usize,
    /// True if the prompt ends inside reasoning.
    pub(crate) starts_in_reasoning: bool,
}

/// A grammar and the control tokens it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallGrammar {
    /// Lark text.
    pub(crate) lark: String,
    /// Texts of the control tokens that it references by id.
    pub(crate) tokens: Vec<&'static str>,
}

/// Builds the grammar for `request`, or returns `None` if the model may write anything. `control`
/// returns the id of a control token by its text; delimiters that are not control tokens are plain
/// text.
///
/// With [`ToolChoice::Auto`], text is free until a call begins.
pub(crate) fn call_grammar(
    request: &CallGrammarRequest<'_>,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Option<CallGrammar> {
    let notation = notations::notation(request.format.calls);
    let offered = offered(request);
    if offered.is_empty() {
        return None;
    }
    let mut lark = Lark::new(control);
    let start = match request.choice {
        ToolChoice::Auto => optional::optional_calls(request, notation, &offered, &mut lark),
        _ => required_calls(request, notation, &offered, &mut lark),
    };
    Some(lark.finish(&start))
}

/// The tools that the response may call.
fn offered<'a>(request: &CallGrammarRequest<'a>) -> Vec<&'a Tool> {
    match request.choice {
        _ if request.calls_max == 0 => Vec::new(),
        ToolChoice::None => Vec::new(),
        ToolChoice::Auto | ToolChoice::Required => request.tools.iter().collect(),
        ToolChoice::Function(name) => request.tools.get(name).into_iter().collect(),
    }
}

/// Lark text of a response that either calls tools or follows a constraint: a reference to the rule
/// `answer`, which is not included. `None` if the response starts where only content may come.
pub(crate) fn grammar_of_calls_or_answer(
    request: &CallGrammarRequest<'_>,
    response_start: ResponseStart,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Option<String> {
    let offered = offered(request);
    if offered.is_empty() || response_start == ResponseStart::Content {
        return None;
    }
    let notation = notations::notation(request.format.calls);
    let mut lark = Lark::new(control);
    let reasoning = reasoning(request, &mut lark);
    if request.format.calls == CallFormat::Harmony {
        let preamble = preamble_harmony(&mut lark);
        let call = calls(notation, notation.call, &offered, 1, &mut lark);
        let header = final_header(&mut lark);
        let start = format!("{reasoning} ({preamble} {call} | {header} answer)");
        return Some(lark.finish(&start).lark);
    }
    let space = space(&mut lark);
    let all = match notation.keys {
        Some(keys) => calls_as_json(notation, keys, &offered, request.calls_max, &mut lark),
        None => calls(notation, notation.call, &offered, request.calls_max, &mut lark),
    };
    let empty = empty_response(request.format, &mut lark);
    let (before, after) = surrounding(request.format, &mut lark).unwrap_or_default();
    let start = format!("{reasoning} {space} ({empty} {all} | {before} answer {after})");
    Some(lark.finish(&start).lark)
}

/// Lark text of what the model writes around a constrained response: reasoning, headers, and a
/// reference to the rule `answer`, which is not included. `None` if nothing surrounds it.
pub(crate) fn grammar_around_response(
    format: &Format,
    response_start: ResponseStart,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Option<String> {
    let (tools, choice) = (&ToolSet::default(), &ToolChoice::None);
    let starts_in_reasoning = response_start == ResponseStart::Reasoning;
    let request = CallGrammarRequest { format, tools, choice, calls_max: 0, starts_in_reasoning };
    let mut lark = Lark::new(control);
    if format.calls == CallFormat::Harmony {
        return (response_start != ResponseStart::Content).then(|| {
            let reasoning = reasoning(&request, &mut lark);
            let header = final_header(&mut lark);
            lark.finish(&format!("{reasoning} {header} answer")).lark
        });
    }
    let surrounding = surrounding(format, &mut lark);
    if format.reasoning.is_none() && surrounding.is_none() {
        return None;
    }
    let (before, after) = surrounding.unwrap_or_default();
    let reasoning = reasoning(&request, &mut lark);
    let space = space(&mut lark);
    Some(lark.finish(&format!("{reasoning} {space} {before} answer {after}")).lark)
}

/// The header of harmony's last message, which may announce JSON.
fn final_header(lark: &mut Lark<'_>) -> String {
    let channel = lark.sequence(notations::HARMONY_CHANNEL_FINAL, None);
    let json = lark.sequence(notations::HARMONY_JSON, None);
    let message = lark.sequence(notations::HARMONY_MESSAGE, None);
    format!("{channel} ({json})? {message}")
}

/// What may come before and after the text of a response, in families with such delimiters.
fn surrounding(format: &Format, lark: &mut Lark<'_>) -> Option<(String, String)> {
    let mut maybe = |delimiter: &'static str| {
        lark.sequence(&[NotationPiece::OptionalDelimiter(delimiter)], None)
    };
    match (format.calls, delimiter_table(format.calls).drops) {
        (CallFormat::FunctionaryLines, _) => Some((lark::literal("all\n"), String::new())),
        (CallFormat::Solar, _) => {
            let header = maybe("<|begin|>assistant");
            Some((format!("{header} {}", maybe("<|content|>")), maybe("<|end|>")))
        }
        (CallFormat::KimiK3, _) => {
            let after = format!("{} {}", maybe(K3_RESPONSE_END), maybe(K3_MESSAGE_END));
            Some((maybe(K3_RESPONSE), after))
        }
        (_, [before, after]) => Some((maybe(before), maybe(after))),
        (_, [after]) => Some((String::new(), maybe(after))),
        _ => None,
    }
}

/// The delimiters of a response without text, which Kimi K3 writes before its calls.
fn empty_response(format: &Format, lark: &mut Lark<'_>) -> String {
    if format.calls != CallFormat::KimiK3 {
        return String::new();
    }
    let [open, close] = [K3_RESPONSE, K3_RESPONSE_END]
        .map(|delimiter| lark.sequence(&[NotationPiece::Delimiter(delimiter)], None));
    format!("({open} {close})?")
}

/// Reasoning, if the model has it, and calls.
fn required_calls(
    request: &CallGrammarRequest<'_>,
    notation: &CallNotation,
    tools: &[&Tool],
    lark: &mut Lark<'_>,
) -> String {
    let reasoning = reasoning(request, lark);
    let space = space(lark);
    let calls_max = match request.choice {
        ToolChoice::Function(_) => 1,
        _ => request.calls_max,
    };
    let empty = empty_response(request.format, lark);
    let one = calls(notation, notation.call, tools, calls_max, lark);
    format!("{reasoning} {space} {empty} {one}")
}

/// A message that announces a call, which may be missing.
fn preamble_harmony(lark: &mut Lark<'_>) -> String {
    let preamble = lark.sequence(notations::HARMONY_PREAMBLE, None);
    let rest = lark.up_to("<|end|>");
    let next = lark.sequence(notations::HARMONY_NEXT, None);
    format!("({preamble} {rest} {next})?")
}

/// The reasoning before a response.
fn reasoning(request: &CallGrammarRequest<'_>, lark: &mut Lark<'_>) -> String {
    if request.format.calls == CallFormat::Harmony {
        let open = lark.sequence(notations::HARMONY_REASONING, None);
        let rest = lark.up_to("<|end|>");
        let next = lark.sequence(notations::HARMONY_NEXT, None);
        return format!("({open} {rest} {next}){{0,{REASONING_MAX}}}");
    }
    let Some(reasoning) = request.format.reasoning else { return String::new() };
    let rest = lark.up_to(reasoning.close);
    if request.starts_in_reasoning {
        return rest;
    }
    let space = space(lark);
    let open = lark.sequence(&[NotationPiece::Delimiter(reasoning.open)], None);
    format!("({space} {open} {rest})?")
}

/// Whitespace between the parts of a response.
fn space(lark: &mut Lark<'_>) -> &'static str {
    lark.terminal("SPACE", "/[ \\n]{0,4}/")
}

/// 1 to `most` calls, each written as `call`, with what surrounds and separates them.
fn calls(
    notation: &CallNotation,
    call: &[NotationPiece],
    tools: &[&Tool],
    most: usize,
    lark: &mut Lark<'_>,
) -> String {
    let each: Vec<String> = tools.iter().map(|t| lark.sequence(call, Some(t))).collect();
    let one = lark.rule("call", &each.join(" | "));
    let separator = lark.sequence(notation.separator, None);
    let more = match most.min(notation.most).min(CALLS_MAX).saturating_sub(1) {
        0 => String::new(),
        more => format!("({separator} {one}){{0,{more}}}"),
    };
    let prefix = lark.sequence(notation.prefix, None);
    let suffix = lark.sequence(notation.suffix, None);
    lark.rule("calls", &format!("{prefix} {one} {more} {suffix}"))
}

/// Like [`calls`], for a notation that is a JSON object without a delimiter. Other JSON may stand
/// in its place, so all of it is one kind of text to the lexer: JSON.
fn calls_as_json(
    notation: &CallNotation,
    keys: [&str; 2],
    tools: &[&Tool],
    most: usize,
    lark: &mut Lark<'_>,
) -> String {
    let each: Vec<String> = tools.iter().map(|tool| lark.call_object(keys, tool)).collect();
    let one = lark.rule("call", &each.join(" | "));
    let separator = lark.sequence(notation.separator, None);
    match most.min(notation.most).min(CALLS_MAX).saturating_sub(1) {
        0 => one,
        more => lark.rule("calls", &format!("{one} ({separator} {one}){{0,{more}}}")),
    }
}

#[cfg(test)]
mod tests;
