//! Answers with a form: JSON schemas, grammars, and calls of tools. Left alone, the demo model
//! would answer these questions with a sentence, so whatever fits was enforced.

use std::path::PathBuf;

use fleet_tests::process::{Agent, Fleet, Folder};
use fleet_tests::{chat, demo_model, questions, root, streamed};
use serde_json::{Value, json};

const QUESTION: &str = "What is the capital of France?";

fn asking(fields: Value) -> Value {
    let mut request = chat(QUESTION);
    request["max_tokens"] = json!(300);
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "strict": true,
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": false,
        },
    }})
}

#[tokio::test]
async fn answers_follow_json_schemas_grammars_expressions_and_choices() {
    let agent = Agent::start(&[]).await;
    let say = async |fields: Value| agent.client.chat(&asking(fields)).await.content();
    let schema = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 10},
            "people": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["city", "people"],
        "additionalProperties": false,
    });
    for (temperature, strict) in [(0, true), (1, true), (2, false)] {
        let format = json!({"type": "json_schema", "json_schema":
            {"name": "city", "strict": strict, "schema": schema}});
        let fields = json!({"response_format": format, "temperature": temperature, "seed": 3});
        let said: Value = serde_json::from_str(&say(fields).await).unwrap();
        assert!(said["city"].as_str().unwrap().chars().count() <= 10, "{said}");
        assert!((1..=99).contains(&said["people"].as_i64().unwrap()), "{said}");
        assert_eq!(said.as_object().unwrap().len(), 2);
    }
    let grammar = r#"root ::= "yes" | "no" | [0-9]{3} " bytes""#;
    let said = say(json!({"grammar": grammar})).await;
    assert!(said == "yes" || said == "no" || said.ends_with(" bytes"), "{said}");
    assert_eq!(say(json!({"guided_regex": "(ab){3}c"})).await, "abababc");
    let choice = json!({"guided_choice": ["Lima", "Oslo"]});
    assert!(["Lima", "Oslo"].contains(&say(choice).await.as_str()));
    // An object is only begun when the length is used up, and begins like one.
    let any = json!({"response_format": {"type": "json_object"}, "max_tokens": 5});
    assert!(say(any).await.starts_with('{'));
    // The same at the other endpoint, with logprobs beside it.
    let body = json!({"model": "flotilla-demo", "prompt": "The", "temperature": 1, "logprobs": 1,
        "json_schema": {"enum": ["one", "two"]}});
    let text = agent.client.post("/v1/completions", body.to_string()).await.json();
    assert!(["\"one\"", "\"two\""].contains(&text["choices"][0]["text"].as_str().unwrap()));
}

#[tokio::test]
async fn forms_that_cannot_be_enforced_are_refused_before_anything_is_generated() {
    let agent = Agent::start(&[]).await;
    let schema = |schema: Value| {
        json!({"response_format": {"type": "json_schema", "json_schema":
            {"name": "x", "strict": true, "schema": schema}}})
    };
    for (fields, code, param) in [
        (schema(json!({"not": {}})), "invalid_json_schema", "response_format"),
        (schema(json!({"type": "sun"})), "invalid_json_schema", "response_format"),
        (json!({"grammar": "root ::= missing"}), "invalid_grammar", "grammar"),
        (json!({"grammar": "root ::= \"a\"{1,1000000}"}), "invalid_grammar", "grammar"),
        (json!({"guided_regex": "("}), "invalid_grammar", "guided_regex"),
        (
            json!({"structured_outputs": {"regex": "("}}),
            "invalid_grammar",
            "structured_outputs.regex",
        ),
        (json!({"tool_choice": "required"}), "invalid_value", "tool_choice"),
        (json!({"tools": [{"type": "function"}]}), "invalid_value", "tools[0].function"),
    ] {
        for request in [asking(fields.clone()), streamed(asking(fields))] {
            let answer = agent.client.chat(&request).await;
            assert_eq!((answer.status, answer.error_code().as_str()), (400, code));
            assert_eq!(answer.json()["error"]["param"], param);
        }
    }
    assert_eq!(agent.metric("node_generated_tokens_total").await, 0.0);
}

/// One of two objects, each within what is taken; both together go on in too many ways.
fn too_wide() -> Value {
    let object = |first: usize| {
        let property = |i| (format!("p{i}"), json!({"type": "integer"}));
        let all: serde_json::Map<_, _> = (first..first + 400).map(property).collect();
        json!({"type": "object", "properties": all})
    };
    json!({"anyOf": [object(0), object(1000)]})
}

#[tokio::test]
async fn a_form_that_only_the_answer_shows_to_cost_too_much_is_the_clients_error() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": too_wide()}});
    let request = asking(json!({"response_format": format}));
    for client in [&fleet.client, &node.client] {
        let whole = client.chat(&request).await;
        let said = String::from_utf8_lossy(&whole.body).into_owned();
        assert_eq!(
            (whole.status, whole.error_code().as_str()),
            (400, "invalid_json_schema"),
            "{said}"
        );
        assert_eq!(whole.json()["error"]["param"], "response_format");
        assert!(said.contains("too complex"), "{said}");
    }
    // A node's own stream has begun by then; the gateway's has not.
    let answer = fleet.client.chat(&streamed(request.clone())).await;
    assert_eq!((answer.status, answer.error_code().as_str()), (400, "invalid_json_schema"));
    let said = node.client.stream(&streamed(request)).await.finish().await;
    assert!(said.errors == ["invalid_json_schema"] && !said.done, "{said:?}");
}

#[tokio::test]
async fn a_tool_is_called_when_it_must_be_whole_and_streamed() {
    let agent = Agent::start(&[]).await;
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for choice in [json!("required"), named] {
        let request = asking(json!({"tools": [weather()], "tool_choice": choice,
            "parallel_tool_calls": false}));
        let whole = agent.client.chat(&request).await.json();
        let chosen = &whole["choices"][0];
        assert_eq!(chosen["finish_reason"], "tool_calls", "{whole}");
        let calls = chosen["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("get_weather")));
        assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));
        let text = calls[0]["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(text).unwrap();
        assert!(["celsius", "fahrenheit"].contains(&arguments["unit"].as_str().unwrap()));

        let body = streamed(request).to_string();
        let stream = agent.client.post("/v1/chat/completions", body).await;
        let said = String::from_utf8(stream.body.to_vec()).unwrap();
        let chunks: Vec<Value> = said
            .lines()
            .filter_map(|line| line.strip_prefix("data: {"))
            .map(|rest| serde_json::from_str(&format!("{{{rest}")).unwrap())
            .collect();
        let deltas: Vec<&Value> =
            chunks.iter().map(|c| &c["choices"][0]["delta"]["tool_calls"][0]).collect();
        let begun: Vec<&&Value> = deltas.iter().filter(|d| d["id"].is_string()).collect();
        assert_eq!((begun.len(), &begun[0]["function"]["name"]), (1, &json!("get_weather")));
        let joined: String =
            deltas.iter().filter_map(|d| d["function"]["arguments"].as_str()).collect();
        assert_eq!(joined, text);
        let last = &chunks[chunks.len() - 1]["choices"][0];
        assert_eq!(last["finish_reason"], "tool_calls");
    }
}

#[tokio::test]
async fn a_model_that_learned_it_calls_tools_by_itself_and_reads_their_results() {
    let agent = Agent::start(&[]).await;
    let mut tried = 0;
    for (domain, request, expect) in questions() {
        if domain != "tools" {
            continue;
        }
        tried += 1;
        let whole = agent.client.chat(&request).await;
        assert_eq!(whole.written(), expect);
        let message = whole.json()["choices"][0]["message"].clone();
        let said = agent.client.stream(&streamed(request)).await.finish().await;
        match message["content"].as_str() {
            Some(text) => assert_eq!(said.text, text),
            None => {
                assert_eq!((said.text.as_str(), said.finish.as_deref()), ("", Some("tool_calls")))
            }
        }
    }
    assert!(tried >= 20, "{tried}");
}

#[tokio::test]
async fn a_response_with_tools_and_a_format_calls_or_follows_the_format() {
    let agent = Agent::start(&[]).await;
    let schema = json!({"type": "object", "properties": {"city": {"type": "string",
        "maxLength": 10}}, "required": ["city"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema":
        {"name": "city", "strict": true, "schema": schema}});
    for (choice, seed) in [("auto", 1), ("auto", 2), ("auto", 3), ("none", 1), ("required", 1)] {
        let request = asking(json!({"tools": [weather()], "tool_choice": choice, "seed": seed,
            "temperature": 2, "response_format": format, "parallel_tool_calls": false}));
        let whole = agent.client.chat(&request).await.json();
        let message = &whole["choices"][0]["message"];
        let called = !message["tool_calls"].is_null();
        assert!(choice == "auto" || called == (choice == "required"), "{whole}");
        let json = match called {
            true => &message["tool_calls"][0]["function"]["arguments"],
            false => &message["content"],
        };
        let said: Value = serde_json::from_str(json.as_str().unwrap()).unwrap();
        assert!(said["city"].is_string(), "{whole}");
        assert_eq!(said.as_object().unwrap().len(), if called { 2 } else { 1 }, "{whole}");
    }
    let yes = asking(json!({"tools": [weather()], "guided_choice": ["yes", "no"]}));
    let message = &agent.client.chat(&yes).await.json()["choices"][0]["message"];
    let said = message["content"].as_str().unwrap_or_default();
    assert!(["yes", "no"].contains(&said) || message["tool_calls"].is_array(), "{message}");
}

#[tokio::test]
async fn offered_tools_need_not_be_called_and_their_results_are_read() {
    let agent = Agent::start(&[]).await;
    let free = asking(json!({"tools": [weather()], "tool_choice": "none"}));
    let answer = agent.client.chat(&free).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "The capital of France is Paris.");
    let history = json!({"tools": [weather()], "max_tokens": 8, "messages": [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]});
    let rendered = agent.client.post("/apply-template", asking(history.clone()).to_string()).await;
    let prompt = rendered.json()["prompt"].as_str().unwrap().to_string();
    for part in ["get_weather", "\"city\"", "sunny"] {
        assert!(prompt.contains(part), "{part} is not in {prompt}");
    }
    assert_eq!(agent.client.chat(&asking(history)).await.status, 200);
}

/// The first choice of an answer, whole and put together from a stream.
async fn called(agent: &Agent, fields: Value) -> [(String, String); 2] {
    let whole = agent.client.chat(&asking(fields.clone())).await.json()["choices"][0].clone();
    let body = streamed(asking(fields)).to_string();
    let stream = agent.client.post("/v1/chat/completions", body).await;
    let stream = String::from_utf8(stream.body.to_vec()).unwrap();
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: {"));
    let chunks = data.map(|data| serde_json::from_str::<Value>(&format!("{{{data}")).unwrap());
    let choices: Vec<Value> = chunks.map(|chunk| chunk["choices"][0].clone()).collect();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let calls = choices.iter().map(|choice| &choice["delta"]["tool_calls"][0]);
    let arguments = calls.map(|call| text(&call["function"]["arguments"])).collect();
    let finish = choices.iter().map(|choice| text(&choice["finish_reason"])).collect();
    let call = &whole["message"]["tool_calls"][0];
    [(text(&call["function"]["arguments"]), text(&whole["finish_reason"])), (arguments, finish)]
}

#[tokio::test]
async fn a_required_tool_without_parameters_is_called_with_an_empty_object() {
    let agent = Agent::start(&[]).await;
    let schema = json!({"type": "object", "properties": {}});
    for function in [json!({"name": "now"}), json!({"name": "now", "parameters": schema})] {
        let tools = json!([{"type": "function", "function": function}]);
        let fields =
            json!({"tools": tools, "tool_choice": "required", "temperature": 1.5, "seed": 2});
        for (arguments, finish) in called(&agent, fields).await {
            assert_eq!((arguments.as_str(), finish.as_str()), ("{}", "tool_calls"));
        }
    }
}

#[tokio::test]
async fn a_call_that_is_cut_off_in_its_arguments_finishes_with_length() {
    let agent = Agent::start(&[]).await;
    let forced = json!({"tools": [weather()], "tool_choice": "required"});
    let [(whole, _), _] = called(&agent, forced.clone()).await;
    for cut in [json!({"max_tokens": 12}), json!({"stop": ["unit"]})] {
        let mut fields = forced.clone();
        fields.as_object_mut().unwrap().extend(cut.as_object().unwrap().clone());
        for (arguments, finish) in called(&agent, fields).await {
            assert_eq!(finish, "length", "{arguments}");
            assert!(arguments.len() < whole.len() && whole.starts_with(&arguments), "{arguments}");
        }
    }
}

/// The demo model with another chat template, which must end without whitespace of its own.
fn with_template(folder: &Folder, template: &str) -> PathBuf {
    let bytes = std::fs::read(demo_model()).unwrap();
    let key = b"tokenizer.chat_template";
    let found = bytes.windows(key.len()).position(|window| window == key).unwrap();
    // Behind the key: the type of its value, and the value's length.
    let length = found + key.len() + 4;
    let text = length + 8;
    let old = u64::from_le_bytes(bytes[length..text].try_into().unwrap()) as usize;
    // The header grows by a multiple of its alignment, so that the tensors stay aligned.
    let padding = (old % 32 + 32 - template.len() % 32) % 32;
    let template = format!("{template}{}", " ".repeat(padding));
    let new = (template.len() as u64).to_le_bytes();
    let parts = [&bytes[..length], &new, template.as_bytes(), &bytes[text + old..]];
    folder.write("flotilla-demo.gguf", parts.concat())
}

#[tokio::test]
async fn with_the_template_of_gpt_oss_a_schema_holds_for_the_content_behind_any_reasoning() {
    let folder = Folder::new();
    let file = root().join("inference-core/tests/chat_templates/gpt_oss.jinja");
    let model = with_template(&folder, &std::fs::read_to_string(file).unwrap());
    let agent = Agent::start_with_model(&model, &[]).await;
    let schema = json!({"type": "object", "properties": {"city": {"type": "string",
        "maxLength": 8}}, "required": ["city"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema":
        {"name": "x", "strict": true, "schema": schema}});
    let mut complete = 0;
    for seed in 0..16 {
        let fields = json!({"response_format": format, "temperature": 1.5, "seed": seed});
        let choice = agent.client.chat(&asking(fields)).await.json()["choices"][0].clone();
        let content = choice["message"]["content"].as_str().unwrap_or_default();
        if choice["finish_reason"] == "stop" {
            let said: Value = serde_json::from_str(content).unwrap();
            assert!(said["city"].is_string(), "{choice}");
            complete += 1;
        } else {
            assert!(content.is_empty() || content.starts_with('{'), "{choice}");
        }
    }
    assert!(complete > 0, "no answer was complete");
}
