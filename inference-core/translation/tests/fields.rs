//! Every row of the tables of fields is true: what is honored changes what an endpoint is asked or
//! what the client gets, what is ignored changes nothing that an endpoint is asked, and what is
//! rejected is rejected by name.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use inference_translation::fields::{Effect, Field};
use inference_translation::{ClientApi, Origin, Translation, llama_server, messages, ollama};
use inference_translation::{Service, rerank, responses, translate};
use serde_json::{Value, json};

/// Without a request's random numbers, and at a fixed time.
const ORIGIN: Origin = Origin { random: 7, now: 1_700_000_000 };

/// An API, its table, a request, and values of fields: for those in the request, other values; for
/// the others, values with what they need beside them.
struct Case {
    api: ClientApi,
    table: &'static [Field],
    base: Value,
    values: Value,
}

fn with(base: &Value, more: &Value) -> Value {
    let mut all = base.clone();
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

/// A response of what serves the API.
fn answer(service: Service) -> Value {
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5});
    let place = json!({"token": "a", "logprob": -0.5, "bytes": [97],
        "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]});
    let choice = match service {
        Service::ChatCompletions => json!({"index": 0, "finish_reason": "stop",
            "logprobs": {"content": [place]},
            "message": {"role": "assistant", "content": "a", "reasoning_content": "Hm."}}),
        _ => json!({"index": 0, "finish_reason": "stop", "text": "a",
            "logprobs": {"content": [place]}}),
    };
    match service {
        Service::Embeddings => json!({"object": "list", "model": "m", "usage": usage,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}]}),
        Service::Rerank => json!({"model": "m", "usage": usage,
            "results": [{"index": 0, "relevance_score": 0.5, "document": {"text": "a"}}]}),
        _ => json!({"id": "x", "object": "x", "created": 1, "model": "m", "choices": [choice],
            "usage": usage}),
    }
}

/// What an endpoint is asked, and what else there is to see of a request: the whole response, the
/// end of a stream, and whether the response is stored.
fn effect(api: ClientApi, request: &Value) -> Result<(Value, [String; 3]), String> {
    let body = request.to_string();
    let translate = || match translate(api, body.as_bytes(), ORIGIN, &|_| None) {
        Ok(Translation::Request(translated)) => Ok(translated),
        Ok(Translation::Reply { body, .. }) => Err(String::from_utf8(body).unwrap()),
        Err(error) => Err(format!("{:?}: {}", error.param, error.message)),
    };
    let mut translated = translate()?;
    let asked = serde_json::from_slice(&translated.body).unwrap();
    let whole = translated.writer.whole(answer(api.service()).to_string().as_bytes());
    let whole = whole.map(|bytes| String::from_utf8(bytes).unwrap());
    let is_stored = translated.writer.stored().is_some().to_string();
    let streamed = translate()?.writer.events(b"data: [DONE]\n\n");
    let streamed = streamed.map(|bytes| String::from_utf8(bytes).unwrap());
    Ok((asked, [format!("{whole:?}"), format!("{streamed:?}"), is_stored]))
}

fn cases() -> [Case; 9] {
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let function = json!({"type": "function", "function": {"name": "f",
        "parameters": {"type": "object"}}});
    let claude = json!({"name": "f", "input_schema": {"type": "object"}});
    let schema = json!({"type": "json_schema", "schema": {"type": "object"}});
    let ollamas = json!({"model": {"model": "n"}, "format": {"format": "json"},
        "think": {"think": true}, "options": {"options": {"seed": 3}},
        "stream": {"stream": false}, "logprobs": {"logprobs": true},
        "top_logprobs": {"logprobs": true, "top_logprobs": 2},
        "messages": {"messages": [{"role": "user", "content": "b"}]},
        "tools": {"tools": [function]}, "prompt": {"prompt": "b"}, "system": {"system": "S"}});
    let llamas = json!({"model": {"model": "n"}, "prompt": {"prompt": "b"},
        "n_predict": {"n_predict": 3}, "stream": {"stream": true}, "n_probs": {"n_probs": 2},
        "response_fields": {"response_fields": ["content"]}, "input_prefix": {"input_prefix": "b"},
        "input_suffix": {"input_suffix": "c"},
        "input_extra": {"input_extra": [{"filename": "a.rs", "text": "x"}]}});
    [
        Case {
            api: ClientApi::Responses,
            table: responses::FIELDS,
            base: json!({"model": "m", "input": "a"}),
            values: json!({"model": {"model": "n"}, "input": {"input": "b"},
                "instructions": {"instructions": "S"}, "store": {"store": false},
                "tools": {"tools": [tool]}, "tool_choice": {"tools": [tool], "tool_choice": "required"},
                "parallel_tool_calls": {"tools": [tool], "parallel_tool_calls": false},
                "text": {"text": {"format": {"type": "json_object"}}},
                "reasoning": {"reasoning": {"effort": "low"}},
                "max_output_tokens": {"max_output_tokens": 9}, "temperature": {"temperature": 0.5},
                "top_p": {"top_p": 0.5},
                "top_logprobs": {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
                "include": {"include": ["reasoning.encrypted_content"]},
                "stream": {"stream": true}, "background": {"background": true},
                "metadata": {"metadata": {"a": "b"}},
                "service_tier": {"service_tier": "flex"}, "user": {"user": "u"},
                "safety_identifier": {"safety_identifier": "u"}, "stop": {"stop": "x"},
                "top_k": {"top_k": 3}, "seed": {"seed": 3}}),
        },
        Case {
            api: ClientApi::Messages,
            table: messages::FIELDS,
            base: json!({"model": "m", "max_tokens": 5,
                "messages": [{"role": "user", "content": "a"}]}),
            values: json!({"model": {"model": "n"}, "max_tokens": {"max_tokens": 6},
                "messages": {"messages": [{"role": "user", "content": "b"}]},
                "system": {"system": "S"}, "stream": {"stream": true},
                "stop_sequences": {"stop_sequences": ["x"]}, "temperature": {"temperature": 0.5},
                "top_p": {"top_p": 0.5}, "top_k": {"top_k": 3}, "tools": {"tools": [claude]},
                "tool_choice": {"tools": [claude], "tool_choice": {"type": "any"}},
                "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
                "output_config": {"output_config": {"format": schema}},
                "output_format": {"output_format": schema},
                "metadata": {"metadata": {"user_id": "u"}}}),
        },
        Case {
            api: ClientApi::OllamaChat,
            table: ollama::CHAT_FIELDS,
            base: json!({"model": "m", "messages": [{"role": "user", "content": "a"}]}),
            values: ollamas.clone(),
        },
        Case {
            api: ClientApi::OllamaGenerate,
            table: ollama::GENERATE_FIELDS,
            base: json!({"model": "m", "prompt": "a"}),
            values: ollamas,
        },
        Case {
            api: ClientApi::OllamaEmbed,
            table: ollama::EMBED_FIELDS,
            base: json!({"model": "m", "input": "a"}),
            values: json!({"model": {"model": "n"}, "input": {"input": "b"},
                "dimensions": {"dimensions": 1}}),
        },
        Case {
            api: ClientApi::LlamaCompletion,
            table: llama_server::COMPLETION_FIELDS,
            base: json!({"model": "m", "prompt": "a"}),
            values: llamas.clone(),
        },
        Case {
            api: ClientApi::LlamaInfill,
            table: llama_server::INFILL_FIELDS,
            base: json!({"model": "m", "input_prefix": "a", "input_suffix": "b"}),
            values: llamas,
        },
        Case {
            api: ClientApi::LlamaEmbedding,
            table: llama_server::EMBEDDING_FIELDS,
            base: json!({"model": "m", "content": "a"}),
            values: json!({"model": {"model": "n"}, "content": {"content": "b"}}),
        },
        Case {
            api: ClientApi::RerankTexts,
            table: rerank::TEXTS_FIELDS,
            base: json!({"model": "m", "query": "a", "texts": ["a"]}),
            values: json!({"model": {"model": "n"}, "query": {"query": "b"},
                "texts": {"texts": ["b"]}, "return_text": {"return_text": true}}),
        },
    ]
}

/// Rows that this test cannot see: a stored response is needed, or one value is allowed.
const ELSEWHERE: [&str; 4] = ["previous_response_id", "n_cmpl", "input", "embd_normalize"];

/// A field with what it needs beside it, and the same without the field.
fn changed(case: &Case, name: &str) -> Option<(Value, Value)> {
    let more = case.values.get(name)?;
    let mut beside = more.clone();
    beside.as_object_mut().unwrap().remove(name);
    Some((with(&case.base, &beside), with(&case.base, more)))
}

#[test]
fn a_field_that_is_honored_has_an_effect() {
    for case in cases() {
        let mut checked = 0;
        for Field { name, .. } in case.table.iter().filter(|field| field.effect == Effect::Honored)
        {
            let Some((without, set)) = changed(&case, name) else {
                assert!(ELSEWHERE.contains(name), "{:?}: no value of {name}", case.api);
                continue;
            };
            let (without, set) = (effect(case.api, &without), effect(case.api, &set));
            assert!(without.is_ok() && set.is_ok(), "{:?} {name}: {without:?} {set:?}", case.api);
            assert_ne!(without, set, "{:?}: {name} has no effect", case.api);
            checked += 1;
        }
        assert!(checked >= 2, "{:?}", case.api);
    }
}

#[test]
fn a_field_that_is_ignored_or_rejected_is_not_passed_on() {
    let values = [json!(3), json!(true), json!("x"), json!({"a": 1}), json!(["x"]), json!(0.5)];
    for case in cases() {
        let asked = effect(case.api, &case.base).unwrap().0;
        for Field { name, effect: stated, .. } in case.table {
            let of = |value: &Value| effect(case.api, &with(&case.base, &json!({*name: value})));
            let results: Vec<_> = values.iter().map(of).collect();
            match stated {
                Effect::Honored => {}
                Effect::Ignored => {
                    let passed: Vec<_> = results.iter().flatten().map(|(asked, _)| asked).collect();
                    let is_flag = *name == "background";
                    assert!(is_flag || !passed.is_empty(), "{:?} {name}: {results:?}", case.api);
                    assert!(passed.iter().all(|other| **other == asked), "{:?} {name}", case.api);
                }
                Effect::Rejected => {
                    let named = format!("{:?}", Some(*name));
                    let is_named = |result: &Result<_, String>| {
                        result.as_ref().is_err_and(|error| error.starts_with(&named))
                    };
                    assert!(results.iter().all(is_named), "{:?} {name}: {results:?}", case.api);
                }
            }
        }
    }
}
