//! docs/openapi.json, made of the types that requests are read into and answers are written from.

use flotilla_gateway::control::admin::NodeList;
use flotilla_gateway::control::health::FleetHealth;
use flotilla_gateway::control::keys::{KEYS_PATH, KeyChanges};
use flotilla_gateway::control::overview::{History, OVERVIEW_PATH, Overview, RECENT_PATH};
use flotilla_gateway::control::usage::USAGE_PATH;
use flotilla_gateway::control::work::{
    BATCHES_PATH, BatchList, BatchView, LIMIT_DEFAULT, LIMIT_MAX, TASKS_PATH, TaskList, TaskView,
};
use flotilla_gateway::types::api::Api;
use inference_protocol::fleet::NodeStatus;
use inference_protocol::openai::{self, Endpoint};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use crate::translated;
use crate::unsupported::{refused_at, refused_fields};

/// Other names of fields, which the types read and do not tell.
pub const ALIASES: [(&str, &str, &str); 11] = [
    ("SamplingFields", "max_tokens", "n_predict"),
    ("SamplingFields", "n", "n_cmpl"),
    ("CompletionRequest", "logprobs", "n_probs"),
    ("ChatRequest", "reasoning_budget", "reasoning_budget_tokens"),
    ("ChatRequest", "reasoning_budget", "thinking_budget_tokens"),
    ("ChatRequest", "reasoning_budget", "thinking_token_budget"),
    ("SamplingFields", "typical_p", "typ_p"),
    ("SamplingFields", "repeat_penalty", "repetition_penalty"),
    ("ConstraintFields", "json_schema", "guided_json"),
    ("Tokenize", "add_special", "add_special_tokens"),
    ("Tokenize", "with_pieces", "return_token_strs"),
];

/// What is true of the whole.
const ABOUT: &str = "One OpenAI-compatible endpoint in front of many CPU inference nodes. Fields of \
    requests that are not described are let through and change nothing; answers have no others than \
    these, but those of external endpoints, which are passed on as they are. What cannot be honoured \
    gets a 400 that names the parameter. A stream is a list of server-sent events; the last one is \
    [DONE].";

/// The schemas of requests, and those of answers.
struct Types {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Types {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        let requests = settings().for_deserialize().into_generator();
        Self { requests, answers: settings().for_serialize().into_generator() }
    }

    fn request<T: JsonSchema>(&mut self) -> Schema {
        self.requests.subschema_for::<T>()
    }

    fn answer<T: JsonSchema>(&mut self) -> Schema {
        self.answers.subschema_for::<T>()
    }

    /// All that were referred to.
    fn components(mut self) -> Map<String, Value> {
        let mut all = self.requests.take_definitions(true);
        for (kind, of, name) in ALIASES {
            let fields = &mut all[kind]["properties"];
            let mut copy = fields[of].clone();
            copy["description"] = format!("Another name of `{of}`.").into();
            fields[name] = copy;
        }
        let mut answers = self.answers.take_definitions(true);
        answers.values_mut().for_each(close);
        all.extend(answers);
        all.extend(refused_fields());
        all.extend(translated::requests());
        all.sort_keys();
        all
    }
}

/// Answers hold what is described and nothing else; a text that is always the same is said.
fn close(schema: &mut Value) {
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for field in fields.values_mut() {
            let said = field["description"].as_str().unwrap_or_default();
            let constant = said.strip_prefix('`').and_then(|said| said.strip_suffix('`'));
            let constant = constant
                .filter(|text| !text.contains(['`', '.', ' ']) || text.starts_with("chat."));
            if let (Some(text), true) = (constant, field["type"] == "string") {
                field["const"] = text.to_string().into();
            }
        }
        schema["additionalProperties"] = false.into();
    }
}

/// The description.
pub fn description() -> Value {
    let mut types = Types::new();
    let mut paths = Map::new();
    generation(&mut types, &mut paths);
    vectors(&mut types, &mut paths);
    looking(&mut types, &mut paths);
    tokens(&mut types, &mut paths);
    translated::add(
        &mut paths,
        |said, reads, answers| asks("gateway", said, reads, answers),
        |said, content| looks("gateway", said, content),
    );
    operators(&mut types, &mut paths);
    work(&mut types, &mut paths);
    other_paths(&mut paths);
    let error = types.answer::<openai::ErrorBody>();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Flotilla", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "gateway", "description": "The gateway's public listener, and each agent's port."},
            {"name": "agent", "description": "An agent's port alone."},
            {"name": "operators", "description": "The gateway's second listener (admin.listen)."},
        ],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": types.components(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "operators": {"type": "http", "scheme": "bearer",
                    "description": "The key of admin.key_file."},
            },
            "parameters": parameters(),
            "headers": headers(),
            "responses": {"Error": {
                "description": "What is wrong, as OpenAI says it. 429 and 503 say when to try again.",
                "headers": {"Retry-After": {"$ref": "#/components/headers/Retry-After"},
                    "x-request-id": {"$ref": "#/components/headers/x-request-id"}},
                "content": {"application/json": {"schema": error}},
            }},
        },
    })
}

fn parameters() -> Value {
    let header = |name: &str, schema: Value, said: &str| json!({"name": name, "in": "header", "schema": schema, "description": said});
    json!({
        "class": header("x-flotilla-class", json!({"enum": ["interactive", "standard", "batch"],
            "default": "standard"}), "Class of the queue."),
        "deadline": header("x-flotilla-deadline-ms", json!({"type": "integer", "minimum": 1,
            "maximum": 86400000}), "Milliseconds within which the request must have a slot."),
        "resumable": header("x-flotilla-resumable", json!({"type": "boolean", "default": false}),
            "Gives events of a stream ids, after which a client may read on."),
        "request": header("x-request-id", json!({"type": "string"}), "Returned, and logged."),
        "trace": header("traceparent", json!({"type": "string"}), "W3C Trace Context."),
    })
}

fn headers() -> Value {
    let header = |said: &str| json!({"schema": {"type": "string"}, "description": said});
    json!({
        "x-request-id": header("The request's id, or a new one."),
        "x-flotilla-class": header("The class that was used."),
        "x-flotilla-endpoint": header("The node, or external:NAME."),
        "openai-processing-ms": header("Milliseconds until the response began."),
        "Retry-After": header("Seconds to wait before a retry."),
    })
}

/// An operation that reads a body.
fn asks(tag: &str, said: &str, reads: Value, answers: Value) -> Value {
    let parameters = ["class", "deadline", "resumable", "request", "trace"];
    let named = |name: &str| json!({"$ref": format!("#/components/parameters/{name}")});
    let told = ["x-request-id", "x-flotilla-class", "x-flotilla-endpoint", "openai-processing-ms"];
    let told: Map<String, Value> = told
        .into_iter()
        .map(|name| (name.into(), json!({"$ref": format!("#/components/headers/{name}")})))
        .collect();
    let mut operation = json!({
        "tags": [tag],
        "summary": said,
        "requestBody": {"required": true, "content": {"application/json": {"schema": reads}}},
        "responses": {
            "200": {"description": "The answer.", "content": answers},
            "default": {"$ref": "#/components/responses/Error"},
        },
    });
    if tag == "gateway" {
        operation["parameters"] = parameters.map(named).to_vec().into();
        operation["responses"]["200"]["headers"] = told.into();
    }
    operation
}

fn as_json(schema: Schema) -> Value {
    json!({"application/json": {"schema": schema}})
}

fn generation(types: &mut Types, paths: &mut Map<String, Value>) {
    let shared = [
        types.request::<openai::SamplingFields>(),
        types.request::<openai::ConstraintFields>(),
        types.request::<openai::RoutingFields>(),
    ];
    let all = |own: Schema, endpoint: Endpoint| {
        let mut parts = vec![json!(own)];
        parts.extend(shared.iter().map(|part| json!(part)));
        parts.push(refused_at(endpoint));
        json!({"allOf": parts})
    };
    let chat = all(types.request::<openai::ChatRequest>(), Endpoint::Chat);
    let text = all(types.request::<openai::CompletionRequest>(), Endpoint::Completions);
    let answers = |whole: Schema, event: Schema| {
        // Each event is one of these, and the last is [DONE].
        let events = json!({"schema": event});
        json!({"application/json": {"schema": whole}, "text/event-stream": events})
    };
    let chats = answers(
        types.answer::<openai::ChatCompletion<'static>>(),
        types.answer::<openai::ChatChunk<'static>>(),
    );
    let texts = types.answer::<openai::Completion<'static>>();
    let texts = answers(texts.clone(), texts);
    paths.insert(
        "/v1/chat/completions".into(),
        json!({"post": asks("gateway", "Answers a chat", chat, chats)}),
    );
    paths.insert(
        "/v1/completions".into(),
        json!({"post": asks("gateway", "Goes on with a text", text, texts)}),
    );
}

fn vectors(types: &mut Types, paths: &mut Map<String, Value>) {
    let own = types.request::<openai::EmbeddingsRequest>();
    let reads = json!({"allOf": [own, refused_at(Endpoint::Embeddings)]});
    let answer = as_json(types.answer::<openai::Embeddings<'static>>());
    let operation = asks("gateway", "Makes vectors of texts", reads, answer);
    paths.insert("/v1/embeddings".into(), json!({"post": operation}));
    let own = types.request::<openai::RerankRequest>();
    let reads = json!({"allOf": [own, refused_at(Endpoint::Rerank)]});
    let answer = as_json(types.answer::<openai::Reranked<'static>>());
    let operation = asks("gateway", "Puts documents in the order of a query", reads, answer);
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        paths.insert(path.into(), json!({"post": operation}));
    }
    // With texts instead of documents, a request is one of TEI's, and so is the answer.
    let operation = &mut paths["/rerank"]["post"];
    let reads = &mut operation["requestBody"]["content"]["application/json"]["schema"];
    *reads = json!({"oneOf": [reads.take(), translated::reference("RerankTextsRequest")]});
    let answer = &mut operation["responses"]["200"]["content"]["application/json"]["schema"];
    let list = json!({"type": "array", "items": {"type": "object"},
        "description": "`index`, `score` and `text` of each text, best first."});
    *answer = json!({"oneOf": [answer.take(), list]});
}

fn tokens(types: &mut Types, paths: &mut Map<String, Value>) {
    let chat = json!(types.request::<openai::ChatRequest>());
    let mut add = |path: &str, said: &str, reads: Value, answer: Schema| {
        paths.insert(path.into(), json!({"post": asks("gateway", said, reads, as_json(answer))}));
    };
    let reads = json!(types.request::<openai::Tokenize>());
    add("/tokenize", "Makes tokens of a text", reads, types.answer::<openai::Tokenized>());
    let reads = json!(types.request::<openai::Detokenize>());
    let answer = types.answer::<openai::Detokenized<'static>>();
    add("/detokenize", "Makes a text of tokens", reads, answer);
    let answer = types.answer::<openai::Rendered<'static>>();
    add("/apply-template", "Shows the prompt that a model reads", chat.clone(), answer);
    let answer = types.answer::<openai::InputTokens>();
    add("/v1/chat/completions/input_tokens", "Counts the tokens of a prompt", chat, answer);
}

/// An operation that only looks.
fn looks(tag: &str, said: &str, content: Value) -> Value {
    json!({
        "tags": [tag],
        "summary": said,
        "responses": {
            "200": {"description": said, "content": content},
            "default": {"$ref": "#/components/responses/Error"},
        },
    })
}

/// Other paths of the same operations.
fn other_paths(paths: &mut Map<String, Value>) {
    let mut same = |path: &str, main: &str| {
        let target = format!("#/paths/{}", main.replace('~', "~0").replace('/', "~1"));
        paths.insert(path.into(), json!({"$ref": target}));
    };
    same("/models", "/v1/models");
    for (path, api) in Api::PATHS {
        let main = Api::PATHS.iter().find(|(_, of)| *of == api).map_or(path, |(main, _)| *main);
        if path != main && !["/v2/rerank", "/rerank"].contains(&path) {
            same(path, main);
        }
    }
}

fn looking(types: &mut Types, paths: &mut Map<String, Value>) {
    let list = looks("gateway", "Lists models", as_json(types.answer::<openai::ModelList>()));
    paths.insert("/v1/models".into(), json!({"get": list}));
    let mut one = looks("gateway", "Shows a model", as_json(types.answer::<openai::Model>()));
    one["parameters"] =
        json!([{"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}]);
    paths.insert("/v1/models/{model}".into(), json!({"get": one}));
    let slots = json!({"schema": {"type": "array", "items": {"type": "object"}}});
    let slots = looks(
        "agent",
        "The node's slots, as llama-server tells them",
        json!({"application/json": slots}),
    );
    paths.insert("/slots".into(), json!({"get": slots}));
    let text = || json!({"text/plain": {"schema": {"type": "string"}}});
    let object = json!({"application/json": {"schema": {"type": "object"}}});
    let numbers = json!({"oneOf": [types.answer::<FleetHealth>(), types.answer::<NodeStatus>()]});
    let numbers = json!({"application/json": {"schema": numbers}});
    let unready = "No request can be accepted now";
    for (path, said, content, unready) in [
        ("/livez", "Liveness", text(), None),
        ("/readyz", "Readiness: whether a request can be accepted", text(), Some(unready)),
        ("/health", "The gateway's fleet, or the agent's node, in numbers", numbers, Some(unready)),
        ("/openapi.json", "This description", object, None),
    ] {
        let mut operation = looks("gateway", said, content.clone());
        if let Some(unready) = unready {
            operation["responses"]["503"] = json!({"description": unready, "content": content});
        }
        operation["security"] = json!([]);
        paths.insert(path.into(), json!({"get": operation}));
    }
}

fn operators(types: &mut Types, paths: &mut Map<String, Value>) {
    let mut metrics = looks(
        "operators",
        "Prometheus' text format 0.0.4",
        json!({"text/plain": {"schema": {"type": "string"}}}),
    );
    metrics["security"] = json!([]);
    paths.insert("/metrics".into(), json!({"get": metrics}));
    let mut page =
        looks("operators", "The fleet page", json!({"text/html": {"schema": {"type": "string"}}}));
    page["security"] = json!([]);
    paths.insert("/".into(), json!({"get": page}));
    let overview = as_json(types.answer::<Overview>());
    let history = as_json(types.answer::<History>());
    for (path, said, content) in [
        (
            OVERVIEW_PATH,
            "The data of the fleet page: nodes, queue, tenants and endpoints",
            overview,
        ),
        (RECENT_PATH, "The last ten minutes in steps of five seconds", history),
    ] {
        let mut operation = looks("operators", said, content);
        operation["security"] = json!([{"operators": []}]);
        paths.insert(path.into(), json!({"get": operation}));
    }
    paths.insert(USAGE_PATH.into(), json!({"get": usage()}));
    keys(types, paths);
    let mut chat = paths["/v1/chat/completions"]["post"].clone();
    chat["tags"] = json!(["operators"]);
    chat["summary"] = json!("Answers a chat of an operator's");
    chat["security"] = json!([{"operators": []}]);
    paths.insert("/admin/v1/chat".into(), json!({"post": chat}));
    let nodes = as_json(types.answer::<NodeList>());
    let mut list = looks("operators", "Lists the nodes", nodes.clone());
    list["security"] = json!([{"operators": []}]);
    paths.insert("/admin/v1/nodes".into(), json!({"get": list}));
    for (action, said) in [
        ("cordon", "Cordons a node: it gets no new requests"),
        ("drain", "Drains a node: cordons it and moves its requests to other nodes"),
        ("uncordon", "Uncordons a node: it gets requests again"),
    ] {
        let mut operation = looks("operators", said, nodes.clone());
        operation["security"] = json!([{"operators": []}]);
        operation["parameters"] =
            json!([{"name": "node", "in": "path", "required": true, "schema": {"type": "string"}}]);
        paths.insert(format!("/admin/v1/nodes/{{node}}/{action}"), json!({"post": operation}));
    }
}

/// API keys of the store.
fn keys(types: &mut Types, paths: &mut Map<String, Value>) {
    let list = json!({"application/json": {"schema": {"type": "object",
        "description": "A keys file, as JSON.", "required": ["keys"],
        "properties": {"keys": {"type": "array", "items": {"type": "object"}}}}}});
    let changes = as_json(types.answer::<KeyChanges>());
    let operation = |said: &str, content: &Value, has_body: bool| {
        let mut operation = looks("operators", said, content.clone());
        operation["security"] = json!([{"operators": []}]);
        if has_body {
            operation["requestBody"] = json!({"required": true, "content": list});
        }
        operation
    };
    let get = operation("Lists the API keys of the store, without their secrets", &list, false);
    let mut post = operation("Adds API keys to the store", &changes, true);
    let added = post["responses"]["200"].take();
    post["responses"] = json!({"201": added, "default": post["responses"]["default"]});
    let put = operation("Adds API keys to the store, or replaces them", &changes, true);
    paths.insert(KEYS_PATH.into(), json!({"get": get, "post": post, "put": put}));
    let mut delete = operation("Deletes an API key of the store", &changes, false);
    delete["parameters"] =
        json!([{"name": "name", "in": "path", "required": true, "schema": {"type": "string"}}]);
    paths.insert(format!("{KEYS_PATH}/{{name}}"), json!({"delete": delete}));
}

/// What tenants have used.
fn usage() -> Value {
    let table = json!({"text/csv": {"schema": {"type": "string"}}});
    let mut operation = looks("operators", "Usage of all tenants as CSV", table);
    operation["security"] = json!([{"operators": []}]);
    let parameter = |name: &str, schema: Value, about: &str| json!({"name": name, "in": "query", "schema": schema, "description": about});
    let day = json!({"type": "string", "format": "date"});
    let formats = json!({"type": "string", "enum": ["csv", "focus"], "default": "csv"});
    let code = json!({"type": "string", "pattern": "^[A-Z]{3}$", "default": "USD"});
    operation["parameters"] = json!([
        parameter("from", day.clone(), "The first day (UTC); the first of this month without it."),
        parameter("to", day, "The day after the last; the first of the next month without it."),
        parameter("format", formats, "Columns: ours, or those of FOCUS 1.2."),
        parameter("currency", code, "Currency of the prices, for focus."),
    ]);
    operation
}

/// Stored work of all tenants.
fn work(types: &mut Types, paths: &mut Map<String, Value>) {
    let limit = json!({"type": "integer", "minimum": 1, "maximum": LIMIT_MAX,
        "default": LIMIT_DEFAULT});
    let query = json!([
        {"name": "limit", "in": "query", "schema": limit, "description": "Most entries."},
        {"name": "tenant", "in": "query", "schema": {"type": "string"},
            "description": "Only the work of this tenant."},
    ]);
    let id = json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
    let batch = (as_json(types.answer::<BatchList>()), as_json(types.answer::<BatchView>()));
    let task = (as_json(types.answer::<TaskList>()), as_json(types.answer::<TaskView>()));
    for (path, (list, one), listed, canceled) in [
        (BATCHES_PATH, batch, "Lists the batches of all tenants", "Cancels a batch of any tenant"),
        (
            TASKS_PATH,
            task,
            "Lists the responses and jobs in the background of all tenants",
            "Cancels a response or job in the background of any tenant",
        ),
    ] {
        let mut get = looks("operators", listed, list);
        get["parameters"] = query.clone();
        let mut post = looks("operators", canceled, one);
        post["parameters"] = id.clone();
        for operation in [&mut get, &mut post] {
            operation["security"] = json!([{"operators": []}]);
        }
        paths.insert(path.into(), json!({"get": get}));
        paths.insert(format!("{path}/{{id}}/cancel"), json!({"post": post}));
    }
}
