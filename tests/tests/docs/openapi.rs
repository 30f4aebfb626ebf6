//! docs/openapi.json is what the code says, and what a real gateway and a real agent do.

use std::collections::BTreeSet;

use fleet_tests::batches::{begun, line};
use fleet_tests::process::{Agent, Fleet, Folder, run_command};
use fleet_tests::{chat, eventually, root};
use flotilla_gateway::types::api::Api;
use hyper::Method;
use inference_protocol::openai;
use inference_translation::ClientApi;
use jsonschema::Validator;
use serde_json::{Value, json};

use crate::current;
use crate::describe::{ALIASES, description};

fn shipped() -> Value {
    serde_json::from_str(&current::read("docs/openapi.json")).unwrap()
}

/// What answers of a kind are compared with.
fn validator(kind: &str) -> Validator {
    let components = shipped()["components"].clone();
    let schema = json!({"$ref": format!("#/components/schemas/{kind}"), "components": components});
    jsonschema::validator_for(&schema).unwrap()
}

#[test]
fn the_description_is_the_one_of_this_code() {
    current::check("docs/openapi.json", &format!("{:#}\n", description()));
}

#[test]
fn it_is_openapi() {
    let python = root().join("target/sdk/openapi/bin/python");
    if !python.exists() {
        eprintln!("skipped: there is no {}; 'make setup-test' installs it", python.display());
        return;
    }
    let mut command = std::process::Command::new(python);
    command.arg("-c").arg(
        "import json, sys; from openapi_spec_validator import validate; validate(json.load(open(sys.argv[1])))",
    );
    command.arg(root().join("docs/openapi.json"));
    let ran = run_command(command);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn everything_that_it_refers_to_is_in_it() {
    fn walk(whole: &Value, part: &Value, found: &mut usize) {
        match part {
            Value::Array(items) => items.iter().for_each(|item| walk(whole, item, found)),
            Value::Object(fields) => {
                if let Some(target) = fields.get("$ref").and_then(Value::as_str) {
                    assert!(whole.pointer(&target[1..]).is_some(), "{target} leads nowhere");
                    *found += 1;
                }
                fields.values().for_each(|field| walk(whole, field, found));
            }
            _ => {}
        }
    }
    let (whole, mut found) = (shipped(), 0);
    walk(&whole, &whole, &mut found);
    assert!(found > 100, "{found}");
    for kind in whole["components"]["schemas"].as_object().unwrap().keys() {
        validator(kind);
    }
}

#[test]
fn other_names_of_fields_are_all_told() {
    let mut known: BTreeSet<String> = ALIASES.iter().map(|(_, _, name)| (*name).into()).collect();
    for file in ["request", "embeddings", "tokens"] {
        let source = current::read(&format!("inference-core/protocol/src/openai/{file}.rs"));
        for name in source.split("alias = \"").skip(1) {
            let name = name.split('"').next().unwrap();
            assert!(known.remove(name), "{name} is not described");
        }
    }
    assert!(known.is_empty(), "described, and not read: {known:?}");
}

/// Names of fields, parameters, headers and paths.
fn described() -> BTreeSet<String> {
    fn walk(part: &Value, names: &mut BTreeSet<String>) {
        match part {
            Value::Array(items) => items.iter().for_each(|item| walk(item, names)),
            Value::Object(fields) => {
                for key in ["properties", "paths", "headers"] {
                    let of = fields.get(key).and_then(Value::as_object).into_iter().flatten();
                    names.extend(of.map(|(name, _)| name.clone()));
                }
                names.extend(fields.get("name").and_then(Value::as_str).map(String::from));
                fields.values().for_each(|field| walk(field, names));
            }
            _ => {}
        }
    }
    let mut names = BTreeSet::new();
    walk(&shipped(), &mut names);
    names
}

#[test]
fn every_field_and_path_of_the_reference_is_described() {
    let names = described();
    let page = current::read("docs/api.md");
    let page = page.split("### Traces").next().unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let mut compared = 0;
    for cell in rows.map(|row| row.split('|').nth(1).unwrap()) {
        for name in cell.split('`').skip(1).step_by(2) {
            let methods = ["POST ", "GET ", "PUT ", "DELETE "];
            let name = methods.iter().find_map(|m| name.strip_prefix(m)).unwrap_or(name);
            let name = name
                .replace("keys/NAME", "keys/{name}")
                .replace("NAME", "{node}")
                .replace("/ID/", "/{id}/");
            assert!(names.contains(&name), "docs/openapi.json does not know {name}");
            compared += 1;
        }
    }
    assert!(compared > 50, "only {compared} names were found");
}

#[test]
fn every_path_that_clients_may_post_to_is_described() {
    let shipped = shipped();
    let native = Api::PATHS.iter().map(|(path, _)| *path);
    for path in native.chain(ClientApi::PATHS.iter().map(|(path, _)| *path)) {
        let item = &shipped["paths"][path];
        let item = match item["$ref"].as_str() {
            Some(target) => shipped.pointer(&target[1..]).unwrap(),
            None => item,
        };
        assert!(item["post"]["summary"].is_string(), "{path}: {item}");
    }
}

/// The method and path of every operation.
fn operations(described: &Value) -> Vec<(Method, String)> {
    let mut all = Vec::new();
    for (path, item) in described["paths"].as_object().unwrap() {
        let target = item["$ref"].as_str().map(|target| described.pointer(&target[1..]).unwrap());
        for (method, _) in target.unwrap_or(item).as_object().unwrap() {
            all.push((method.to_uppercase().parse().unwrap(), path.clone()));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_that_is_described_is_one_of_a_listener() {
    let fleet = Fleet::start("").await;
    let agent = fleet.join("a", &[]).await;
    let operations = operations(&shipped());
    for (method, path) in &operations {
        let sent = path.replace("{model}", "flotilla-demo").replace("{node}", "a");
        let sent = sent.replace("{id}", "resp_1");
        let mut statuses = Vec::new();
        for listener in [&fleet.client, &fleet.admin, &agent.client] {
            let answer = listener.try_send(method.clone(), &sent, "{}".into()).await.unwrap();
            let is_unknown = String::from_utf8_lossy(&answer.body).contains("unknown_url");
            statuses.extend((!is_unknown).then_some(answer.status));
        }
        assert!(statuses.iter().any(|status| *status != 405), "{method} {path}: {statuses:?}");
    }
    assert!(operations.len() > 50, "{}", operations.len());
}

#[test]
fn an_answer_with_a_field_that_nobody_described_is_refused() {
    let usage = openai::Usage::new(3, 4, 1);
    let mut answer = json!({"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
        "choices": [{"text": "a", "index": 0, "logprobs": null, "finish_reason": "stop"}],
        "usage": usage});
    let validator = validator("Completion");
    assert!(validator.is_valid(&answer), "{:?}", validator.validate(&answer));
    answer["usage"]["invented_tokens"] = 1.into();
    assert!(!validator.is_valid(&answer));
    answer["usage"] = json!(usage);
    answer["object"] = "text.completion".into();
    assert!(!validator.is_valid(&answer));
}

/// Values just beyond the bounds of a field, and at them.
fn bounds(field: &Value) -> Vec<(Value, bool)> {
    let is_integer = field["type"].to_string().contains("integer");
    let mut values = Vec::new();
    for (bound, step) in [("minimum", -1.0), ("maximum", 1.0)] {
        let Some(bound) = field[bound].as_f64() else { continue };
        let number = |value: f64| if is_integer { json!(value as i64) } else { json!(value) };
        values.push((number(bound), true));
        values.push((number(bound + step), false));
    }
    values
}

#[tokio::test(flavor = "multi_thread")]
async fn bounds_of_fields_are_those_of_a_real_agent() {
    let agent = Agent::start(&[]).await;
    let schemas = shipped()["components"]["schemas"].clone();
    let mut compared = 0;
    for kind in ["SamplingFields", "ChatRequest"] {
        for (name, field) in schemas[kind]["properties"].as_object().unwrap() {
            for (value, is_right) in bounds(field) {
                let mut request = chat("Hi");
                request["max_tokens"] = 1.into();
                if name == "top_logprobs" {
                    request["logprobs"] = true.into();
                }
                let other = ALIASES.iter().find(|(of, _, alias)| *of == kind && alias == name);
                // One field may not have two values.
                other.and_then(|other| request.as_object_mut().unwrap().remove(other.1));
                request[name] = value.clone();
                let answer = agent.client.chat(&request).await;
                let said = answer.json();
                assert_eq!(answer.status == 200, is_right, "{name} {value}: {said}");
                let param = other.map_or(name.as_str(), |other| other.1);
                assert!(is_right || said["error"]["param"] == param, "{name} {value}: {said}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 30, "only {compared} values were sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_about_tokens_and_vectors_are_as_described() {
    let agent = Agent::start(&[]).await;
    let text = json!({"content": "Paris", "with_pieces": true});
    let asked = [
        ("/tokenize", "Tokenized", text),
        ("/detokenize", "Detokenized", json!({"tokens": [300, 301]})),
        ("/apply-template", "Rendered", chat("Hi")),
        ("/v1/chat/completions/input_tokens", "InputTokens", chat("Hi")),
    ];
    for (path, kind, request) in asked {
        compare(&agent, path, kind, &request).await;
    }
    let vectors = Agent::start(&["--pooling", "mean"]).await;
    for encoding in ["float", "base64"] {
        let request =
            json!({"model": "flotilla-demo", "input": ["a", "b"], "encoding_format": encoding});
        compare(&vectors, "/v1/embeddings", "Embeddings", &request).await;
    }
}

async fn compare(agent: &Agent, path: &str, kind: &str, request: &Value) {
    let answer = agent.client.post(path, request.to_string()).await;
    assert_eq!(answer.status, 200, "{path}: {:?}", answer.body);
    let (validator, answer) = (validator(kind), answer.json());
    assert!(validator.is_valid(&answer), "{path}: {:?} in {answer}", validator.validate(&answer));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_serves_the_description_and_tells_operators_what_it_describes() {
    let outside = "external: [{name: gpu, url: 'http://127.0.0.1:9/v1', models: [large], \
                   concurrent_max: 2}]\n";
    let folder = Folder::new();
    let store = format!("store: {{dir: '{}'}}\n", folder.path().display());
    let fleet = Fleet::start(&(outside.to_string() + &store)).await;
    let empty = fleet.client.get("/health").await;
    assert_eq!(empty.status, 503);
    let served = fleet.client.with_key(None).get("/openapi.json").await;
    assert_eq!((served.status, served.json()), (200, shipped()));
    let agent = fleet.join("a", &[]).await;
    assert_eq!(fleet.client.chat(&chat("Hi")).await.status, 200);
    // A step is told when it is over.
    let steps = eventually("a step", async || {
        let steps = fleet.admin.get("/admin/v1/recent").await.json();
        steps["steps"].as_array().is_some_and(|steps| !steps.is_empty()).then_some(steps)
    });
    let history = steps.await;
    let nodes = fleet.admin.get("/admin/v1/nodes").await.json();
    let overview = fleet.admin.get("/admin/v1/overview").await.json();
    for list in ["nodes", "external", "queue", "tenants"] {
        assert_ne!(overview[list], json!([]), "{list} in {overview}");
    }
    begun(&fleet.client, &line("id-1", "Hi")).await;
    let job = json!({"url": "/v1/chat/completions", "body": chat("Hi")});
    assert_eq!(fleet.client.post("/v1/jobs", job.to_string()).await.status, 202);
    let batches = fleet.admin.get("/admin/v1/batches").await.json();
    let tasks = fleet.admin.get("/admin/v1/tasks").await.json();
    assert!(batches["batches"][0]["id"].is_string() && tasks["tasks"][0]["id"].is_string());
    let (full, node) = (fleet.health().await, agent.client.get("/health").await.json());
    let admin = [("NodeList", nodes), ("Overview", overview), ("History", history)];
    let work = [("BatchList", batches), ("TaskList", tasks)];
    let health = [("FleetHealth", empty.json()), ("FleetHealth", full), ("NodeStatus", node)];
    for (kind, told) in admin.into_iter().chain(work).chain(health) {
        let validator = validator(kind);
        assert!(validator.is_valid(&told), "{kind}: {:?} in {told}", validator.validate(&told));
    }
}
