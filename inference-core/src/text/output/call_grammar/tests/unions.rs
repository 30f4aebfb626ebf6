//! Tests responses that call tools or follow a constraint.

use serde_json::json;

use super::*;

/// Calls, or content that follows a constraint with these properties.
fn union(calls: CallFormat, answer: &str, control: Vec<&'static str>) -> Case {
    let id = |text: &str| {
        control.iter().position(|t| *t == text).map(|i| 256 + u32::try_from(i).unwrap())
    };
    let (format, tools) = (plain(calls), tools());
    let request = CallGrammarRequest {
        format: &format,
        tools: &tools,
        choice: &ToolChoice::Auto,
        calls_max: 4,
        starts_in_reasoning: false,
    };
    let lark = grammar_of_calls_or_answer(&request, ResponseStart::Fresh, &id).unwrap();
    let lark = format!("{lark}\nanswer: {answer}\n");
    Case::compile(CallGrammar { lark, tokens: Vec::new() }, control)
}

#[test]
fn a_response_calls_tools_or_follows_the_format() {
    // The keys of a call, to be hard to tell from one.
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"},
        "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": false});
    for calls in CallFormat::ALL.into_iter().filter(|c| !differs(*c)) {
        for control in vocabularies(calls) {
            let case = union(calls, &format!("%json {schema}"), control);
            let header = match calls {
                CallFormat::Harmony => "<|channel|>final<|message|>",
                CallFormat::FunctionaryLines => "all\n",
                _ => "",
            };
            case.check(&written(calls, &[legal("Zürich")]), true);
            case.check(&written(calls, &[("get_weather", json!({"days": 1}))]), false);
            case.check(&written(calls, &[("no_such_tool", json!({"city": "x"}))]), false);
            case.check(&format!("{header}{{\"name\": \"Bob\", \"age\": 3}}"), true);
            case.check(&format!("{header}{{\"name\": \"get_weather\", \"age\": 3}}"), true);
            case.check(&format!("{header}{{\"name\": \"Bob\", \"age\": \"3\"}}"), false);
            case.check(&format!("{header}Hello"), false);
        }
    }
}

#[test]
fn a_response_calls_tools_or_follows_a_grammar() {
    for answer in ["/yes|no/", "%lark {\nstart: r0\nr0: \"yes\" | \"no\"\n}"] {
        for calls in [CallFormat::Hermes, CallFormat::Mistral, CallFormat::Llama] {
            let case = union(calls, answer, Vec::new());
            case.check(&written(calls, &[legal("x")]), true);
            case.check("yes", true);
            case.check("perhaps", false);
        }
    }
}
