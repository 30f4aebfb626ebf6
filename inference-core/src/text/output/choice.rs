//! PURE. Turns `tool_choice` into a grammar for llguidance, in its variant of Lark
//! (<https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md>), which makes a model
//! write calls in its own notation, with valid names and arguments.
//!
//! The grammar contains the arguments' schema unchanged, as a separate root, so that its references
//! resolve. Arguments of non-strict tools follow the schema as far as llguidance supports its
//! keywords; those of strict tools follow it exactly, or the grammar is rejected.

mod lark;
mod literals;
mod shapes;

use serde_json::Value;

use super::marks::table;
use super::{Beginning, CallFormat, Format, Tool, ToolSet};
use crate::types::tool_choice::Choice;
use lark::Lark;
use shapes::{Piece, Shape};

/// Maximum number of calls in a grammar, whatever the caller allows.
const CALLS_MAX: usize = 128;

impl Choice {
    /// Parses `tool_choice`; absent or null is `auto`. The error names the parameter.
    pub fn from_openai(choice: Option<&Value>, tools: &ToolSet) -> Result<Self, String> {
        let read = match choice {
            None | Some(Value::Null) => Self::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => Self::None,
                "auto" => Self::Auto,
                "required" => Self::Required,
                _ => return Err("tool_choice must be none, auto, required or a function".into()),
            },
            Some(object) => {
                let is_function = object.get("type").is_none_or(|kind| kind == "function");
                let name = object.pointer("/function/name").and_then(Value::as_str);
                let name = name.filter(|_| is_function);
                let name = name.ok_or(
                    "tool_choice must be none, auto, required or \
                     {\"type\": \"function\", \"function\": {\"name\": ..}}",
                )?;
                if tools.get(name).is_none() {
                    return Err(format!("tool_choice.function.name: no tool is named {name}"));
                }
                Self::Function(name.into())
            }
        };
        if read == Self::Required && tools.is_empty() {
            return Err("tool_choice is required, but there are no tools".into());
        }
        Ok(read)
    }
}

/// Input for a tool-call grammar.
#[derive(Debug)]
pub struct Request<'a> {
    /// The model's notation.
    pub format: &'a Format,
    /// Available tools.
    pub tools: &'a ToolSet,
    /// The parsed `tool_choice`.
    pub choice: &'a Choice,
    /// Maximum number of calls; 1 if `parallel_tool_calls` is false.
    pub calls_max: usize,
    /// True if the prompt ends inside reasoning.
    pub starts_thinking: bool,
}

/// A grammar and the control tokens it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grammar {
    /// Lark text.
    pub lark: String,
    /// Texts of the control tokens that it references by id.
    pub tokens: Vec<&'static str>,
}

/// Builds the grammar for `request`, or returns `None` if the model may write anything. `control`
/// returns the id of a control token by its text; delimiters that are not control tokens are plain
/// text.
///
/// With [`Choice::Auto`] there is a grammar only if a tool is strict and the notation has a
/// delimiter that cannot be mistaken for ordinary text: free text up to the delimiter, then a valid
/// call.
pub fn grammar(request: &Request<'_>, control: &dyn Fn(&str) -> Option<u32>) -> Option<Grammar> {
    let shape = shapes::shape(request.format.calls);
    let chosen: Vec<&Tool> = match request.choice {
        Choice::None => Vec::new(),
        Choice::Auto if !request.tools.iter().any(|t| t.strict) => Vec::new(),
        Choice::Auto | Choice::Required => request.tools.iter().collect(),
        Choice::Function(name) => request.tools.get(name).into_iter().collect(),
    };
    if chosen.is_empty() || request.calls_max == 0 {
        return None;
    }
    let mut lark = Lark::new(control);
    let start = if *request.choice == Choice::Auto {
        free(request, shape, &chosen, &mut lark)?
    } else {
        forced(request, shape, &chosen, &mut lark)
    };
    Some(lark.finish(&start))
}

/// Lark text of what the model writes around a constrained response: reasoning, headers, and a
/// reference to the rule `answer`, which is not included. `None` if nothing surrounds it.
pub fn around_answer(
    format: &Format,
    beginning: Beginning,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Option<String> {
    let (tools, choice) = (&ToolSet::default(), &Choice::None);
    let starts_thinking = beginning == Beginning::Reasoning;
    let request = Request { format, tools, choice, calls_max: 0, starts_thinking };
    let mut lark = Lark::new(control);
    if format.calls == CallFormat::Harmony {
        return (beginning != Beginning::Content).then(|| {
            let thoughts = thoughts(&request, &mut lark);
            let header = final_header(&mut lark);
            lark.finish(&format!("{thoughts} {header} answer")).lark
        });
    }
    let around = around(format, &mut lark);
    if format.thinking.is_none() && around.is_none() {
        return None;
    }
    let (before, behind) = around.unwrap_or_default();
    let thoughts = thoughts(&request, &mut lark);
    let space = lark.terminal("SPACE", "/[ \\n]{0,4}/");
    Some(lark.finish(&format!("{thoughts} {space} {before} answer {behind}")).lark)
}

/// The header of harmony's last message, which may announce JSON.
fn final_header(lark: &mut Lark<'_>) -> String {
    let channel = lark.sequence(shapes::HARMONY_CHANNEL_FINAL, None);
    let json = lark.sequence(shapes::HARMONY_JSON, None);
    let message = lark.sequence(shapes::HARMONY_MESSAGE, None);
    format!("{channel} ({json})? {message}")
}

/// What may come before and after the text of a response, in families with such delimiters.
fn around(format: &Format, lark: &mut Lark<'_>) -> Option<(String, String)> {
    match table(format.calls).drops {
        [before, behind] => {
            let mut maybe = |mark: &&'static str| lark.sequence(&[Piece::Maybe(mark)], None);
            Some((maybe(before), maybe(behind)))
        }
        _ => None,
    }
}

/// Reasoning, if the model has it, and calls.
fn forced(request: &Request<'_>, shape: &Shape, tools: &[&Tool], lark: &mut Lark<'_>) -> String {
    let thoughts = thoughts(request, lark);
    let space = lark.terminal("SPACE", "/[ \\n]{0,4}/");
    let calls_max = match request.choice {
        Choice::Function(_) => 1,
        _ => request.calls_max,
    };
    let one = calls(shape, shape.call, tools, calls_max, lark);
    format!("{thoughts} {space} {one}")
}

/// Text, and calls wherever their delimiter is written.
fn free(
    request: &Request<'_>,
    shape: &Shape,
    tools: &[&Tool],
    lark: &mut Lark<'_>,
) -> Option<String> {
    let thoughts = thoughts(request, lark);
    if request.format.calls == CallFormat::Harmony {
        return Some(free_harmony(&thoughts, shape, tools, lark));
    }
    let (body, mark) = match (shape.prefix, shape.call) {
        ([Piece::Mark(mark), rest @ ..], _) => {
            let rest = Shape { prefix: rest, ..*shape };
            (calls(&rest, shape.call, tools, request.calls_max, lark), *mark)
        }
        ([], [Piece::Mark(mark), rest @ ..]) => (calls(shape, rest, tools, 1, lark), *mark),
        _ => return None,
    };
    let head = lark.up_to(mark);
    let text = lark.text();
    // Text contains no control tokens, so those that may surround it are listed.
    let (before, behind) = around(request.format, lark).unwrap_or_default();
    let most = request.calls_max.min(CALLS_MAX);
    Some(format!("{thoughts} ({head} {body}){{0,{most}}} {before} {text} {behind}"))
}

/// A call or a final message, optionally after a message that announces the call.
fn free_harmony(thoughts: &str, shape: &Shape, tools: &[&Tool], lark: &mut Lark<'_>) -> String {
    let preamble = lark.sequence(shapes::HARMONY_PREAMBLE, None);
    let rest = lark.up_to("<|end|>");
    let next = lark.sequence(shapes::HARMONY_NEXT, None);
    let call = calls(shape, shape.call, tools, 1, lark);
    let last = lark.sequence(shapes::HARMONY_FINAL, None);
    let text = lark.text();
    format!("{thoughts} ({preamble} {rest} {next})? ({call} | {last} {text})")
}

/// The reasoning before a response.
fn thoughts(request: &Request<'_>, lark: &mut Lark<'_>) -> String {
    if request.format.calls == CallFormat::Harmony {
        let open = lark.sequence(shapes::HARMONY_THOUGHTS, None);
        let rest = lark.up_to("<|end|>");
        let next = lark.sequence(shapes::HARMONY_NEXT, None);
        return format!("({open} {rest} {next})?");
    }
    let Some(thinking) = request.format.thinking else { return String::new() };
    let rest = lark.up_to(thinking.close);
    if request.starts_thinking {
        return rest;
    }
    let open = lark.sequence(&[Piece::Mark(thinking.open)], None);
    format!("({open} {rest})?")
}

/// 1 to `most` calls, each written as `call`, with what surrounds and separates them.
fn calls(
    shape: &Shape,
    call: &[Piece],
    tools: &[&Tool],
    most: usize,
    lark: &mut Lark<'_>,
) -> String {
    let each: Vec<String> = tools.iter().map(|t| lark.sequence(call, Some(t))).collect();
    let one = lark.rule("call", &each.join(" | "));
    let separator = lark.sequence(shape.separator, None);
    let more = match most.min(shape.most).min(CALLS_MAX).saturating_sub(1) {
        0 => String::new(),
        more => format!("({separator} {one}){{0,{more}}}"),
    };
    let prefix = lark.sequence(shape.prefix, None);
    let suffix = lark.sequence(shape.suffix, None);
    lark.rule("calls", &format!("{prefix} {one} {more} {suffix}"))
}

#[cfg(test)]
mod tests;
