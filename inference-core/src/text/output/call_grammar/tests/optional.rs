//! Grammars for `tool_choice: auto`: text is free until a call begins.

use super::*;

#[test]
fn with_auto_text_is_free_and_calls_are_legal() {
    for calls in CallFormat::ALL.into_iter().filter(|c| !differs(*c)) {
        for control in vocabularies(calls) {
            let case = Case::new(plain(calls), &ToolChoice::Auto, 4, control, false).unwrap();
            let (good, bad) = (
                written(calls, &[legal("x")]),
                written(calls, &[("get_weather", json!({"days": 1}))]),
            );
            if calls == CallFormat::Harmony {
                let (open, next) =
                    ("<|channel|>commentary<|message|>", "<|end|><|start|>assistant");
                case.check("<|channel|>final<|message|>Just text", true);
                case.check(&format!("{open}Let me look.{next}{good}"), true);
                case.check(&format!("{open}Let me look.{next}{bad}"), false);
            } else if calls == CallFormat::FunctionaryLines {
                case.check("all\nJust >>> <b>text</b> {\"a\": 1}\n", true);
                case.check(&format!("all\nLet me look.\n>>>{good}"), true);
                case.check(&format!("all\nLet me look.\n>>>{bad}"), false);
            } else {
                case.check("Just <b>text</b> {\"a\": 1}\n", true);
                case.check(&format!("Let me look.\n{good}"), true);
                case.check(&format!("Let me look.\n{bad}"), false);
            }
            case.check(&good, true);
            case.check(&bad, false);
        }
    }
}

/// A grammar for `auto`, with these control tokens.
fn auto(calls: CallFormat, control: &[&'static str]) -> Case {
    Case::new(plain(calls), &ToolChoice::Auto, 4, control.to_vec(), false).unwrap()
}

const LEGAL: &str = r#"{"city": "x", "days": 1}"#;
const WRONG: &str = r#"{"city": "x", "days": "many"}"#;

/// Checks texts in which `ARGUMENTS` stands for the arguments of the first call.
fn check_arguments(case: &Case, texts: &[&str]) {
    for text in texts {
        case.check(&text.replace("ARGUMENTS", LEGAL), true);
        case.check(&text.replace("ARGUMENTS", WRONG), false);
    }
}

#[test]
fn a_bare_object_is_a_call_where_the_parser_sees_one() {
    let llama = auto(CallFormat::Llama, &[]);
    check_arguments(
        &llama,
        &[
            r#"{"name": "get_weather", "parameters": ARGUMENTS}"#,
            r#"{"name":"get_weather","parameters":ARGUMENTS}"#,
            r#"{"type": "function", "name": "get_weather", "parameters": ARGUMENTS}"#,
            "{\n  \"name\": \"get_weather\",\n  \"parameters\": ARGUMENTS\n}\n",
            r#"<|python_tag|>{"name": "get_weather", "parameters": ARGUMENTS}"#,
            "Let me see.\n\n {\"name\": \"get_weather\", \"parameters\": ARGUMENTS}\nDone.",
            r#"[{"name": "get_weather", "parameters": ARGUMENTS}]"#,
            r#"{"name": "get_weather_now", "parameters": {"city": "x"}}; {"name": "get_weather", "parameters": ARGUMENTS}"#,
        ],
    );
    for text in [
        r#"{"name": "Ada", "parameters": {}}"#,
        r#"{"name": "get_weather", "description": "tells the weather"}"#,
        r#"{"a": {"name": "x"}}"#,
        r#"The object {"name": "get_weather", "parameters": {}} is a call."#,
        "[1, 2]",
        "{",
        "",
    ] {
        llama.check(text, true);
    }
}

#[test]
fn a_mark_may_be_a_control_token() {
    let llama = auto(CallFormat::Llama, &["<|python_tag|>", "<|eom_id|>"]);
    let call = r#"{"name": "get_weather", "parameters": ARGUMENTS}"#;
    check_arguments(
        &llama,
        &[
            &format!("<|python_tag|>{call}<|eom_id|>"),
            &format!("I look.<|python_tag|>{call}"),
            call,
        ],
    );
    let pythonic = auto(CallFormat::Pythonic, &["<|python_start|>", "<|python_end|>"]);
    for (arguments, legal) in [("city='x', days=1", true), ("city='x', days='many'", false)] {
        let call = format!("[get_weather({arguments})]");
        pythonic.check(&format!("I look.<|python_start|>{call}<|python_end|>"), legal);
        pythonic.check(&format!("<|python_start|>{call}<|python_end|>"), legal);
        pythonic.check(&format!("[get_weather_now(city='y'), {}", &call[1..]), legal);
    }
    pythonic.check("[1, 2] and [x(1)]", true);
}

#[test]
fn models_without_a_notation_of_their_own_may_write_objects_and_fences() {
    for calls in [CallFormat::Generic, CallFormat::Described, CallFormat::Fenced] {
        let case = auto(calls, &[]);
        check_arguments(
            &case,
            &[
                r#"{"name": "get_weather", "arguments": ARGUMENTS}"#,
                "I look.\n```json\n{\"name\": \"get_weather\", \"arguments\": ARGUMENTS}\n```",
                "```tool_call\n[{\"name\": \"get_weather\", \"arguments\": ARGUMENTS}]\n```",
            ],
        );
        case.check("```json\n{\"a\": 1}\n```", true);
    }
}

#[test]
fn delimiters_may_contain_the_line_breaks_after_them() {
    let control = ["<|role_sep|>", "<|message_sep|>"];
    let case = auto(CallFormat::GigaChat, &control);
    let call = r#"function call<|role_sep|>{"name": "get_weather", "arguments": ARGUMENTS}"#;
    check_arguments(
        &case,
        &[
            call,
            &format!("I look.<|message_sep|>{call}<|message_sep|>"),
            &format!("<|message_sep|>{call}"),
        ],
    );
    let required =
        Case::new(plain(CallFormat::GigaChat), &ToolChoice::Required, 4, control.to_vec(), false);
    check_arguments(
        &required.unwrap(),
        &[&format!("{call}<|message_sep|>{}", call.replace("ARGUMENTS", LEGAL))],
    );
    let token = auto(CallFormat::GigaChatToken, &["<|function_call|>", "<|message_sep|>"]);
    let call = call.replace("function call<|role_sep|>", "<|function_call|>");
    check_arguments(&token, &[&call, &format!("I look.{call}<|message_sep|>")]);
}

#[test]
fn headers_may_stand_before_calls() {
    let control = vocabularies(CallFormat::Solar)[1].clone();
    let case = auto(CallFormat::Solar, &control);
    let call = "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather\
        <|tool_call:args|>ARGUMENTS<|tool_call:end|>";
    check_arguments(
        &case,
        &[
            call,
            &format!("<|begin|>assistant{call}"),
            &format!("<|content|>I look.<|end|><|begin|>assistant{call}"),
        ],
    );
    case.check("<|content|>Just text<|end|>", true);
    let case = auto(CallFormat::FunctionaryLines, &[]);
    check_arguments(
        &case,
        &["get_weather\nARGUMENTS", "get_weather_now\n{\"city\": \"y\"}>>>get_weather\nARGUMENTS"],
    );
    case.check("all\n>>> print(1)\n1", true);
}

#[test]
fn many_tools_give_a_grammar_that_can_be_compiled() {
    let function = |i| {
        json!({"type": "function", "function": {"name": format!("look_at_the_thing_{i}"),
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}})
    };
    let tools = ToolSet::from_openai(&(0..128).map(function).collect::<Vec<_>>()).unwrap();
    for calls in CallFormat::ALL {
        let format = &plain(calls);
        let request = CallGrammarRequest {
            format,
            tools: &tools,
            choice: &ToolChoice::Auto,
            calls_max: 128,
            starts_in_reasoning: false,
        };
        let case = Case::compile(call_grammar(&request, &|_| None).unwrap(), Vec::new());
        if !differs(calls) {
            case.check(&written(calls, &[("look_at_the_thing_99", json!({"at": "x"}))]), true);
            case.check(&written(calls, &[("look_at_the_thing_99", json!({"other": "x"}))]), false);
        }
    }
}
