//! PURE. Grammars with which a model may call tools or not (`tool_choice: auto`): free text, until
//! a call begins.

use super::lark::{Lark, literal};
use super::notations::{CallNotation, MESSAGE_END, NotationPiece};
use super::{CALLS_MAX, CallGrammarRequest, calls, final_header, preamble_harmony, reasoning};
use super::{space, surrounding};
use crate::text::output::delimiters::{
    DelimiterScope, K3_RESPONSE, K3_RESPONSE_END, Syntax, delimiter_table,
};
use crate::text::output::{CallFormat, Format, Tool};

/// Between the parts of a JSON object.
const GAP: &str = r"[ \n\r\t]{0,24}";
/// What the models write before the name of a bare call.
const KIND: &str = "\"type\"GAP:GAP\"function\"GAP,GAP";

/// Text, and calls wherever they begin.
pub(super) fn optional_calls(
    request: &CallGrammarRequest<'_>,
    notation: &CallNotation,
    tools: &[&Tool],
    lark: &mut Lark<'_>,
) -> String {
    let reasoning = reasoning(request, lark);
    let most = request.calls_max.min(CALLS_MAX);
    match request.format.calls {
        CallFormat::Harmony => return harmony(&reasoning, notation, tools, lark),
        CallFormat::FunctionaryLines => return recipients(notation, tools, most, lark),
        _ => {}
    }
    let mut forms = Vec::new();
    forms.extend(delimited(request, notation, tools, lark));
    forms.extend(bare(request.format.calls, notation, tools, most, lark));
    let forms = forms.join(" | ");
    let text = lark.text();
    // Text contains no control tokens, so those that may surround it are listed.
    let (before, after) = surrounding(request.format, lark).unwrap_or_default();
    format!("{reasoning} ({forms}){{0,{most}}} {before} {text} {after}")
}

/// Any text, and after the delimiter of calls nothing but calls. `None` if there is no delimiter.
fn delimited(
    request: &CallGrammarRequest<'_>,
    notation: &CallNotation,
    tools: &[&Tool],
    lark: &mut Lark<'_>,
) -> Option<String> {
    let is_header = |piece: &NotationPiece| matches!(piece, NotationPiece::OptionalDelimiter(_));
    let headers = notation.prefix.iter().take_while(|piece| is_header(piece)).count();
    let (header, prefix) = notation.prefix.split_at(headers);
    let (body, delimiter) = match (prefix, notation.call) {
        ([NotationPiece::Delimiter(delimiter), rest @ ..], call) => {
            let rest = CallNotation { prefix: rest, ..*notation };
            (calls(&rest, call, tools, request.calls_max, lark), *delimiter)
        }
        ([], [NotationPiece::Delimiter(delimiter), rest @ ..]) => {
            (calls(notation, rest, tools, 1, lark), *delimiter)
        }
        _ => return None,
    };
    let header = lark.sequence(header, None);
    Some(format!("{} {body}", head(request.format, delimiter, &header, lark)))
}

/// Any text up to and including the delimiter of calls; `header` is what may precede that.
fn head(format: &Format, delimiter: &'static str, header: &str, lark: &mut Lark<'_>) -> String {
    let mut maybe = |delimiter: &'static str| {
        lark.sequence(&[NotationPiece::OptionalDelimiter(delimiter)], None)
    };
    match format.calls {
        CallFormat::KimiK3 => {
            let around = [maybe(K3_RESPONSE), maybe(K3_RESPONSE_END)];
            up_to_calls(around, delimiter, lark)
        }
        CallFormat::Solar => {
            let (before, after) = surrounding(format, lark).unwrap_or_default();
            up_to_calls([before, format!("{after} {header}")], delimiter, lark)
        }
        CallFormat::GigaChat => {
            let (end, text, rest) = (maybe(MESSAGE_END), lark.text(), lark.up_to(delimiter));
            lark.rule("head", &format!("({text} {end})? {rest}"))
        }
        _ => lark.up_to(delimiter),
    }
}

/// Any text between what may surround it, up to and including `delimiter`.
fn up_to_calls(
    [before, after]: [String; 2],
    delimiter: &'static str,
    lark: &mut Lark<'_>,
) -> String {
    let calls = lark.sequence(&[NotationPiece::Delimiter(delimiter)], None);
    let rest = lark.up_to(delimiter);
    let text = lark.text();
    // As control tokens, the delimiters are no part of the text; as plain text, they are.
    match calls.starts_with('<') {
        true => lark.rule("head", &format!("{before} {text} {after} {calls}")),
        false => rest,
    }
}

/// The keys of name and arguments of calls that begin with a bracket, where a family writes such.
fn bare_keys(format: CallFormat) -> Option<[&'static str; 2]> {
    match format {
        CallFormat::Llama => Some(["name", "parameters"]),
        CallFormat::Generic | CallFormat::Described | CallFormat::Fenced => {
            Some(["name", "arguments"])
        }
        _ => None,
    }
}

/// Any text, and calls that begin with a bracket at the start of a line or after a mark. Other JSON
/// is text. So to the lexer, all that precedes the arguments of a call is one kind of text,
/// including its name.
fn bare(
    format: CallFormat,
    notation: &CallNotation,
    tools: &[&Tool],
    most: usize,
    lark: &mut Lark<'_>,
) -> Option<String> {
    let marks = Marks::of(format, notation, lark);
    let body = match bare_keys(format) {
        Some(keys) => bare_objects(keys, &marks, tools, lark),
        None if format == CallFormat::Pythonic => bare_list(notation, &marks, tools, most, lark),
        None => return None,
    };
    Some(format!("{} ({body}) {}", marks.before, marks.after))
}

/// What may stand before a bare call, and after it.
struct Marks {
    /// A regular expression for marks that are plain text, and for the start of a line.
    texts: String,
    /// Marks that are control tokens, after any text.
    before: String,
    /// Control tokens after a call.
    after: String,
}

impl Marks {
    fn of(format: CallFormat, notation: &CallNotation, lark: &mut Lark<'_>) -> Self {
        let table = delimiter_table(format);
        let is_function = format == CallFormat::Pythonic;
        let opens = table.opens.iter().filter(|open| {
            open.scope == DelimiterScope::Anywhere
                && !notation.begins_with(open.text)
                && matches!(open.syntax, Syntax::Function(_)) == is_function
        });
        let (mut texts, mut tokens) = (Vec::new(), Vec::new());
        for open in opens {
            match lark.token(open.text) {
                Some(token) => tokens.push(token),
                None => texts.push(escaped(open.text)),
            }
        }
        let after = table.after.iter().filter_map(|end| lark.token(end));
        let after = after.map(|token| format!("({token})?")).collect::<Vec<_>>().join(" ");
        let before = match tokens.is_empty() {
            true => String::new(),
            false => format!("({} ({}))?", lark.text(), tokens.join(" | ")),
        };
        let line = r"((?s:.*)\n)?[ \t;,]*";
        let texts = match texts.is_empty() {
            true => line.into(),
            false => format!("({line}|(?s:.*)({}){GAP})", texts.join("|")),
        };
        Self { texts, before, after }
    }
}

/// Objects with these keys.
fn bare_objects(
    [name, arguments]: [&str; 2],
    marks: &Marks,
    tools: &[&Tool],
    lark: &mut Lark<'_>,
) -> String {
    let kind = KIND.replace("GAP", GAP);
    let begin = format!("/{}\\[?{GAP}\\{{{GAP}({kind})?\"{name}\"{GAP}:{GAP}/", marks.texts);
    let begin = lark.terminal("BARE", &begin);
    let between = lark.terminal("BETWEEN", &format!("/{GAP},{GAP}\"{arguments}\"{GAP}:/"));
    let close = lark.terminal("CLOSE", &format!("/{GAP}\\}}/"));
    let space = space(lark);
    let mut all = Vec::new();
    for tool in tools {
        let quoted = literal(&literal(&tool.name));
        let head = lark.lazy(&format!("{begin} {quoted} {between}"));
        let arguments = lark.sequence(&[NotationPiece::Arguments], Some(tool));
        all.push(format!("{head} {space} {arguments} {close}"));
    }
    all.join(" | ")
}

/// A list of calls as in Python.
fn bare_list(
    notation: &CallNotation,
    marks: &Marks,
    tools: &[&Tool],
    most: usize,
    lark: &mut Lark<'_>,
) -> String {
    let begin = lark.terminal("BARE", &format!("/{}\\[{GAP}/", marks.texts));
    let mut firsts = Vec::new();
    for tool in tools {
        let head = lark.lazy(&format!("{begin} {}", literal(&format!("{}(", tool.name))));
        // The name and its bracket are in the head.
        let rest = lark.sequence(notation.call.get(2..).unwrap_or_default(), Some(tool));
        firsts.push(format!("{head} {rest}"));
    }
    let each: Vec<String> = tools.iter().map(|t| lark.sequence(notation.call, Some(t))).collect();
    let one = lark.rule("call", &each.join(" | "));
    let separator = lark.sequence(notation.separator, None);
    let suffix = lark.sequence(notation.suffix, None);
    let more = most.saturating_sub(1);
    format!("({}) ({separator} {one}){{0,{more}}} {suffix}", firsts.join(" | "))
}

/// `text` in a regular expression.
fn escaped(text: &str) -> String {
    let escape = |c: char| if "|[](){}.*+?^$/\\".contains(c) { "\\" } else { "" };
    text.chars().map(|c| format!("{}{c}", escape(c))).collect()
}

/// Messages to recipients: a function, or everybody. The prompt ends with the delimiter of the
/// first.
fn recipients(
    notation: &CallNotation,
    tools: &[&Tool],
    most: usize,
    lark: &mut Lark<'_>,
) -> String {
    let text = lark.text();
    let (mut direct, mut after_text) = (Vec::new(), Vec::new());
    for tool in tools {
        let call = lark.sequence(notation.call, Some(tool));
        direct.push(call);
        let head = lark.lazy(&format!("{text} {}", literal(&format!(">>>{}\n", tool.name))));
        let arguments = lark.sequence(&[NotationPiece::Arguments], Some(tool));
        after_text.push(format!("{head} {arguments}"));
    }
    let call = lark.rule("call", &direct.join(" | "));
    let after_text = lark.rule("call", &after_text.join(" | "));
    let separator = lark.sequence(notation.separator, None);
    let (all, more) = (literal("all\n"), most.saturating_sub(1));
    let calls = format!("({call} | {all} {after_text}) ({separator} {call}){{0,{more}}}");
    format!("({calls} | {all} {text})")
}

/// A call or a final message, optionally after a message that announces the call.
fn harmony(
    reasoning: &str,
    notation: &CallNotation,
    tools: &[&Tool],
    lark: &mut Lark<'_>,
) -> String {
    let preamble = preamble_harmony(lark);
    let call = calls(notation, notation.call, tools, 1, lark);
    let last = final_header(lark);
    let text = lark.text();
    format!("{reasoning} {preamble} ({call} | {last} {text})")
}
