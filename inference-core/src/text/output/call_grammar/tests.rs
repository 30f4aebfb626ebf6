//! Tests grammars, compiled by llguidance and walked byte by byte.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::json;

use super::*;
use crate::text::output::tests::writer::write;
use crate::text::output::{
    CallFormat, CallIds, Parser, ReasoningDelimiters, ResponseStart, join_parts,
};

mod optional;
mod unions;

/// 256 bytes, then `control`, then the end token.
fn vocabulary(control: &[&str]) -> TokEnv {
    let mut words: Vec<Vec<u8>> = (0..=255).map(|b| vec![b]).collect();
    words.extend(control.iter().map(|t| [b"\xff", t.as_bytes()].concat()));
    words.push(b"\xff<eos>".to_vec());
    let info = TokRxInfo::new(words.len() as u32, words.len() as u32 - 1);
    std::sync::Arc::new(ApproximateTokEnv::new(TokTrie::from(&info, &words)))
}

fn tools() -> ToolSet {
    let function = |name: &str, strict: bool| {
        json!({"type": "function", "function": {"name": name, "strict": strict, "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
                "place": {"$ref": "#/$defs/place"},
            },
            "required": ["city"],
            "additionalProperties": false,
            "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}},
                "required": ["x"], "additionalProperties": false}},
        }}})
    };
    ToolSet::from_openai(&[function("get_weather", true), function("get_weather_now", true)])
        .unwrap()
}

struct Case {
    control: Vec<&'static str>,
    grammar: CallGrammar,
    matcher: Matcher,
}

impl Case {
    fn new(
        format: Format,
        choice: &ToolChoice,
        calls_max: usize,
        control: Vec<&'static str>,
        starts_in_reasoning: bool,
    ) -> Option<Self> {
        let tools = tools();
        let request = CallGrammarRequest {
            format: &format,
            tools: &tools,
            choice,
            calls_max,
            starts_in_reasoning,
        };
        let id = |text: &str| {
            control.iter().position(|t| *t == text).map(|i| 256 + u32::try_from(i).unwrap())
        };
        Some(Self::compile(call_grammar(&request, &id)?, control))
    }

    fn compile(grammar: CallGrammar, control: Vec<&'static str>) -> Self {
        let mut factory = ParserFactory::new_simple(&vocabulary(&control)).unwrap();
        factory.quiet();
        let parser = factory.create_parser(TopLevelGrammar::from_lark(grammar.lark.clone()));
        let matcher = Matcher::new(parser);
        assert!(!matcher.is_error(), "{:?}\n{}", matcher.get_error(), grammar.lark);
        Self { control, grammar, matcher }
    }

    /// True if the model may write `text` and end there.
    fn accepts(&self, text: &str) -> bool {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let special = self.control.iter().position(|t| rest.starts_with(t));
            let length = match special {
                Some(i) => {
                    tokens.push(256 + u32::try_from(i).unwrap());
                    self.control[i].len()
                }
                None => {
                    tokens.extend(rest.as_bytes()[..c.len_utf8()].iter().map(|b| u32::from(*b)));
                    c.len_utf8()
                }
            };
            rest = &rest[length..];
        }
        let mut matcher = self.matcher.deep_clone();
        let taken = matcher.try_consume_tokens(&tokens).unwrap_or(0);
        taken == tokens.len() && matcher.is_accepting().unwrap_or(false)
    }

    fn check(&self, text: &str, legal: bool) {
        assert_eq!(self.accepts(text), legal, "{text}\n{}", self.grammar.lark);
    }
}

fn plain(calls: CallFormat) -> Format {
    Format { reasoning: None, calls, ids: CallIds::Any }
}

/// No control tokens, or all delimiters that look like one.
fn vocabularies(calls: CallFormat) -> [Vec<&'static str>; 2] {
    let mut delimiters = plain(calls).visible_tokens();
    let closed = |m: &&str| m.starts_with(['<', '[']) && m.ends_with(['>', ']']);
    delimiters.retain(|m| closed(m) && !m.contains("function") && !m.starts_with("<parameter"));
    if calls == CallFormat::Glm {
        delimiters.extend([
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ]);
    }
    if calls == CallFormat::MiniMaxM3 {
        delimiters.push("]<]minimax[>[");
    }
    [Vec::new(), delimiters]
}

/// As the family writes it, except that several bare objects take one line each.
fn written(calls: CallFormat, all: &[(&str, Value)]) -> String {
    if calls == CallFormat::FunctionaryLines {
        // The prompt ends with the first delimiter.
        return write(calls, all).replacen(">>>", "", 1);
    }
    if calls != CallFormat::Generic {
        return write(calls, all);
    }
    let each: Vec<String> = all.iter().map(|c| write(calls, std::slice::from_ref(c))).collect();
    each.join("\n")
}

fn legal(city: &str) -> (&'static str, Value) {
    ("get_weather", json!({"city": city, "days": 3, "unit": "C", "place": {"x": 1.5}}))
}

#[test]
fn each_family_may_write_legal_calls_and_no_others() {
    for calls in CallFormat::ALL.into_iter().filter(|c| !differs(*c)) {
        for control in vocabularies(calls) {
            let case = Case::new(plain(calls), &ToolChoice::Required, 4, control, false).unwrap();
            case.check(&written(calls, &[legal("Zürich \"quoted\"")]), true);
            case.check(&written(calls, &[("get_weather_now", json!({"city": "x"}))]), true);
            let two = written(calls, &[legal("a"), legal("b")]);
            case.check(&two, calls != CallFormat::Harmony);

            case.check(&written(calls, &[("no_such_tool", json!({"city": "x"}))]), false);
            case.check(&written(calls, &[("get_weather", json!({"days": 1}))]), false);
            case.check(
                &written(calls, &[("get_weather", json!({"city": "x", "days": "y"}))]),
                false,
            );
            case.check(
                &written(calls, &[("get_weather", json!({"city": "x", "unit": "K"}))]),
                false,
            );
            case.check(&written(calls, &[("get_weather", json!({"city": "x", "zip": 1}))]), false);
            case.check("Just text", false);
            case.check("", false);
        }
    }
}

/// The test's writer and the template differ in whitespace; see the next test.
fn differs(calls: CallFormat) -> bool {
    matches!(calls, CallFormat::Cohere | CallFormat::CommandR)
}

#[test]
fn what_the_grammar_of_command_r_allows_is_what_its_template_shows() {
    let r7b = "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \
        \"parameters\": {\"city\": \"x\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \
        \"get_weather_now\", \"parameters\": {\"city\": \"y\"}}\n]<|END_ACTION|>";
    let r = "Action: ```json\n[\n    {\n        \"tool_name\": \"get_weather\",\n        \
        \"parameters\": {\"city\": \"x\"}\n    }\n]```";
    for (calls, text) in [(CallFormat::Cohere, r7b), (CallFormat::CommandR, r)] {
        for control in vocabularies(calls) {
            let case = Case::new(plain(calls), &ToolChoice::Required, 4, control, false).unwrap();
            case.check(text, true);
            case.check(&text.replace("get_weather\"", "get_whether\""), false);
            let mut parser = Parser::new(&plain(calls), tools(), false, 4);
            let mut parts = parser.push(text);
            let (rest, complete) = parser.finish();
            parts.extend(rest);
            let message = join_parts(parts);
            assert!(complete && message.content.is_none(), "{message:?}");
        }
    }
}

#[test]
fn a_named_function_is_called_once() {
    let choice = ToolChoice::Function("get_weather".into());
    for calls in CallFormat::ALL.into_iter().filter(|c| !differs(*c)) {
        let case = Case::new(plain(calls), &choice, 4, Vec::new(), false).unwrap();
        case.check(&written(calls, &[legal("x")]), true);
        case.check(&written(calls, &[("get_weather_now", json!({"city": "x"}))]), false);
        if !matches!(calls, CallFormat::Harmony) {
            case.check(&written(calls, &[legal("x"), legal("y")]), false);
        }
    }
}

#[test]
fn calls_are_counted() {
    let case =
        Case::new(plain(CallFormat::Hermes), &ToolChoice::Required, 2, Vec::new(), false).unwrap();
    case.check(&write(CallFormat::Hermes, &[legal("a"), legal("b")]), true);
    case.check(&write(CallFormat::Hermes, &[legal("a"), legal("b"), legal("c")]), false);
}

#[test]
fn any_limit_on_calls_gives_a_small_grammar() {
    for calls in CallFormat::ALL {
        for choice in [ToolChoice::Required, ToolChoice::Auto] {
            let case = Case::new(plain(calls), &choice, usize::MAX, Vec::new(), false);
            assert!(case.is_none_or(|c| c.grammar.lark.len() < 8192), "{calls:?}");
        }
        assert!(Case::new(plain(calls), &ToolChoice::Required, 0, Vec::new(), false).is_none());
        assert!(Case::new(plain(calls), &ToolChoice::None, 4, Vec::new(), false).is_none());
    }
}

#[test]
fn control_tokens_around_plain_text_are_allowed() {
    let control = vocabularies(CallFormat::Cohere)[1].clone();
    let case = Case::new(plain(CallFormat::Cohere), &ToolChoice::Auto, 4, control, false).unwrap();
    assert!(case.grammar.tokens.contains(&"<|START_ACTION|>"));
    case.check("<|START_RESPONSE|>Hello<|END_RESPONSE|>", true);
    case.check("<|START_ACTION|>Hello<|END_ACTION|>", false);
}

#[test]
fn tools_that_are_not_strict_are_followed_as_far_as_possible() {
    let odd = json!({"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"},
        {"type": "null"}]}, "b": {"not": {}}}, "required": ["a"]});
    let function = json!({"type": "function", "function": {"name": "f", "parameters": odd}});
    let tools = ToolSet::from_openai(&[function]).unwrap();
    let format = plain(CallFormat::Hermes);
    let request = |choice| CallGrammarRequest {
        format: &format,
        tools: &tools,
        choice,
        calls_max: 1,
        starts_in_reasoning: false,
    };
    let grammar = call_grammar(&request(&ToolChoice::Auto), &|_| None).unwrap();
    let case = Case::compile(grammar, Vec::new());
    case.check("Just text", true);
    case.check(&write(CallFormat::Hermes, &[("f", json!({"a": 1}))]), true);
    case.check(&write(CallFormat::Hermes, &[("f", json!({"a": "x"}))]), false);
    case.check(&write(CallFormat::Hermes, &[("g", json!({"a": 1}))]), false);
    let grammar = call_grammar(&request(&ToolChoice::Required), &|_| None).unwrap();
    let case = Case::compile(grammar, Vec::new());
    case.check(&write(CallFormat::Hermes, &[("f", json!({"a": 1}))]), true);
    case.check(&write(CallFormat::Hermes, &[("f", json!({"a": "x"}))]), false);
}

#[test]
fn every_family_has_a_grammar_for_tools_that_are_not_strict() {
    let function = json!({"type": "function", "function": {"name": "f"}});
    let tools = ToolSet::from_openai(&[function]).unwrap();
    let choice = &ToolChoice::Auto;
    let has_grammar = |calls| {
        let format = &plain(calls);
        let request = CallGrammarRequest {
            format,
            tools: &tools,
            choice,
            calls_max: 4,
            starts_in_reasoning: false,
        };
        call_grammar(&request, &|_| None).is_some()
    };
    assert!(CallFormat::ALL.into_iter().all(has_grammar));
}

#[test]
fn a_function_without_parameters_gets_none() {
    let function = json!({"type": "function", "function": {"name": "f"}});
    let tools = ToolSet::from_openai(&[function]).unwrap();
    for calls in CallFormat::ALL.into_iter().filter(|c| !differs(*c)) {
        let format = &plain(calls);
        let choice = &ToolChoice::Required;
        let request = CallGrammarRequest {
            format,
            tools: &tools,
            choice,
            calls_max: 1,
            starts_in_reasoning: false,
        };
        let case = Case::compile(call_grammar(&request, &|_| None).unwrap(), Vec::new());
        case.check(&written(calls, &[("f", json!({}))]), true);
        case.check(&written(calls, &[("f", json!({"a": 1}))]), false);
    }
}

#[test]
fn reasoning_may_come_first() {
    let reasoning = Some(ReasoningDelimiters { open: "<think>", close: "</think>" });
    let format = Format { reasoning, ..plain(CallFormat::Hermes) };
    let call = write(CallFormat::Hermes, &[legal("x")]);
    for control in [vec![], vec!["<think>", "</think>", "<tool_call>", "</tool_call>"]] {
        let case = Case::new(format, &ToolChoice::Required, 4, control.clone(), false).unwrap();
        case.check(&format!("<think>\nwhat {{ now?\n</think>\n\n{call}"), true);
        case.check(&call, true);
        case.check(&format!("<think>\n{call}"), false);
        let open = Case::new(format, &ToolChoice::Required, 4, control, true).unwrap();
        open.check(&format!("hm\n</think>\n\n{call}"), true);
        open.check("hm\n</think>\n\nno", false);
    }
    let harmony = plain(CallFormat::Harmony);
    let call = write(CallFormat::Harmony, &[legal("x")]);
    for control in vocabularies(CallFormat::Harmony) {
        let case = Case::new(harmony, &ToolChoice::Required, 4, control, false).unwrap();
        case.check(
            &format!("<|channel|>analysis<|message|>hm<|end|><|start|>assistant{call}"),
            true,
        );
        let again = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant".repeat(2);
        case.check(&format!("{again}{call}"), true);
        case.check("<|channel|>final<|message|>no", false);
    }
}

/// A constrained response, and what may surround it.
fn constrained(format: Format, response_start: ResponseStart, control: Vec<&'static str>) -> Case {
    let id = |text: &str| {
        control.iter().position(|t| *t == text).map(|i| 256 + u32::try_from(i).unwrap())
    };
    let surrounding = grammar_around_response(&format, response_start, &id).unwrap();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": false});
    let lark = format!("{surrounding}\nanswer: %json {schema}\n");
    Case::compile(CallGrammar { lark, tokens: Vec::new() }, control)
}

#[test]
fn a_constrained_answer_in_harmony_may_reason_first_and_stands_in_the_final_channel() {
    let harmony = plain(CallFormat::Harmony);
    let reasoning = "<|channel|>analysis<|message|>{\"b\": what?<|end|><|start|>assistant";
    for control in vocabularies(CallFormat::Harmony) {
        let case = constrained(harmony, ResponseStart::Fresh, control);
        for header in
            ["<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>"]
        {
            case.check(&format!("{header}{{\"a\":1}}"), true);
            case.check(&format!("{reasoning}{header}{{\"a\":1}}"), true);
            case.check(&format!("{reasoning}{header}{{\"b\":1}}"), false);
            case.check(&format!("{header}No."), false);
        }
        case.check("{\"a\":1}", false);
        case.check("<|channel|>analysis<|message|>{\"a\":1}", false);
        case.check("<|channel|>commentary<|message|>{\"a\":1}", false);
        case.check(reasoning, false);
    }
    assert_eq!(grammar_around_response(&harmony, ResponseStart::Content, &|_| None), None);
}

#[test]
fn a_constrained_response_may_follow_reasoning_and_stand_between_delimiters_of_its_family() {
    let reasoning = Some(ReasoningDelimiters { open: "<think>", close: "</think>" });
    let format = Format { reasoning, ..plain(CallFormat::Hermes) };
    for control in [vec![], vec!["<think>", "</think>"]] {
        let fresh = constrained(format, ResponseStart::Fresh, control.clone());
        fresh.check("<think>\n{ hm\n</think>\n\n{\"a\":1}", true);
        fresh.check("{\"a\":1}", true);
        fresh.check("<think>\n{\"a\":1}", false);
        let inside = constrained(format, ResponseStart::Reasoning, control);
        inside.check("hm</think>\n\n{\"a\":1}", true);
        inside.check("hm</think>\n\nno", false);
    }
    for control in vocabularies(CallFormat::Cohere) {
        let case = constrained(plain(CallFormat::Cohere), ResponseStart::Fresh, control);
        case.check("<|START_RESPONSE|>{\"a\":1}<|END_RESPONSE|>", true);
        case.check("{\"a\":1}", true);
        case.check("<|START_RESPONSE|>no<|END_RESPONSE|>", false);
    }
    assert_eq!(
        grammar_around_response(&plain(CallFormat::Llama), ResponseStart::Fresh, &|_| None),
        None
    );
}

#[test]
fn tool_choice_is_read_and_errors_name_it() {
    let tools = tools();
    let read = |v: Value| ToolChoice::from_openai(Some(&v), &tools);
    assert_eq!(read(json!("required")), Ok(ToolChoice::Required));
    assert_eq!(ToolChoice::from_openai(None, &tools), Ok(ToolChoice::Auto));
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    assert_eq!(read(named), Ok(ToolChoice::Function("get_weather".into())));
    let unknown = json!({"type": "function", "function": {"name": "f"}});
    assert_eq!(
        read(unknown).unwrap_err().to_string(),
        "tool_choice.function.name: no tool is named f"
    );
    for other in [
        json!("any"),
        json!({"type": "auto"}),
        json!({"type": "function", "name": "get_weather"}),
        json!({"type": "custom", "custom": {"name": "get_weather"}}),
        json!({"type": "custom", "function": {"name": "get_weather"}}),
        json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}),
    ] {
        assert!(read(other).unwrap_err().to_string().starts_with("tool_choice must be"));
    }
    assert!(ToolChoice::from_openai(Some(&json!("required")), &ToolSet::default()).is_err());
}
