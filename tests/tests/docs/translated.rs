//! The description of APIs that are translated to chat completions, embeddings, and rerank, made of
//! the tables that the code reads requests by. Their answers are described by those who made them.

use inference_translation::fields::{Effect, Field};
use inference_translation::{llama_server, messages, ollama, rerank, responses};
use serde_json::{Map, Value, json};

/// An operation with a body: path, summary, component of its request, answer.
type Operation = (&'static str, &'static str, &'static str, Answer);

#[derive(Clone, Copy)]
enum Answer {
    /// An object, or server-sent events.
    Events(&'static str),
    /// An object, or lines of JSON.
    Lines(&'static str),
    /// An object.
    Object(&'static str),
}

const OPERATIONS: [Operation; 12] = [
    (
        "/v1/responses",
        "Creates a response",
        "ResponsesRequest",
        Answer::Events("OpenAI's `Response`, or its stream events."),
    ),
    (
        "/v1/responses/input_tokens",
        "Counts the tokens of a response's input",
        "ResponsesRequest",
        Answer::Object("`input_tokens`, and OpenAI's `object`."),
    ),
    (
        "/v1/messages",
        "Creates a message",
        "MessagesRequest",
        Answer::Events("Anthropic's `Message`, or its stream events."),
    ),
    (
        "/v1/messages/count_tokens",
        "Counts the tokens of a message's prompt",
        "MessagesRequest",
        Answer::Object("`input_tokens`."),
    ),
    (
        "/api/chat",
        "Answers a chat for Ollama's clients",
        "OllamaChatRequest",
        Answer::Lines("Ollama's chat response."),
    ),
    (
        "/api/generate",
        "Completes a text for Ollama's clients",
        "OllamaGenerateRequest",
        Answer::Lines("Ollama's generate response."),
    ),
    (
        "/api/embed",
        "Makes vectors of texts for Ollama's clients",
        "OllamaEmbedRequest",
        Answer::Object("Ollama's `embeddings`."),
    ),
    (
        "/api/embeddings",
        "Makes a vector of a text for Ollama's older clients",
        "OllamaEmbeddingsRequest",
        Answer::Object("Ollama's `embedding`."),
    ),
    (
        "/api/show",
        "Shows a model to Ollama's clients",
        "OllamaShowRequest",
        Answer::Object("Ollama's description of a model."),
    ),
    (
        "/completion",
        "Continues a text for llama-server's clients",
        "LlamaCompletionRequest",
        Answer::Events("llama-server's completion."),
    ),
    (
        "/infill",
        "Fills a gap in a text for llama-server's clients",
        "LlamaInfillRequest",
        Answer::Events("llama-server's completion."),
    ),
    (
        "/embedding",
        "Makes vectors of texts for llama-server's clients",
        "LlamaEmbeddingRequest",
        Answer::Object("A list of `index` and `embedding`, a list of one vector."),
    ),
];

/// Operations that only look: path, summary, answer.
const LISTS: [(&str, &str, &str); 4] = [
    ("/api/tags", "Lists models for Ollama's clients", "`models`."),
    ("/api/ps", "Lists running models for Ollama's clients", "`models`."),
    (
        "/props",
        "The properties of a model, for llama-server's clients",
        "llama-server's properties.",
    ),
    ("/api/version", "The version of Ollama's API", "`version`."),
];

const SHOW_FIELDS: &[Field] = &[
    Field { name: "model", effect: Effect::Honored, note: "" },
    Field { name: "verbose", effect: Effect::Ignored, note: "" },
];

/// The requests, by the names of their components.
const REQUESTS: [(&str, &[Field], &[&str]); 11] = [
    ("ResponsesRequest", responses::FIELDS, &["model"]),
    ("MessagesRequest", messages::FIELDS, &["model", "messages"]),
    ("OllamaChatRequest", ollama::CHAT_FIELDS, &["model"]),
    ("OllamaGenerateRequest", ollama::GENERATE_FIELDS, &["model"]),
    ("OllamaEmbedRequest", ollama::EMBED_FIELDS, &["model"]),
    ("OllamaEmbeddingsRequest", ollama::EMBEDDINGS_FIELDS, &["model"]),
    ("OllamaShowRequest", SHOW_FIELDS, &["model"]),
    ("LlamaCompletionRequest", llama_server::COMPLETION_FIELDS, &["prompt"]),
    ("LlamaInfillRequest", llama_server::INFILL_FIELDS, &["input_prefix", "input_suffix"]),
    ("LlamaEmbeddingRequest", llama_server::EMBEDDING_FIELDS, &["content"]),
    ("RerankTextsRequest", rerank::TEXTS_FIELDS, &["query", "texts"]),
];

/// The schema of a request: which fields it may have, and what becomes of them.
fn request(fields: &[Field], required: &[&str]) -> Value {
    let described = |Field { name, effect, note }: &Field| {
        let support = match effect {
            Effect::Honored => "",
            Effect::Ignored => "Accepted without effect. ",
            Effect::Rejected => "Not supported: ",
        };
        ((*name).to_string(), json!({"description": format!("{support}{note}").trim_end()}))
    };
    let properties: Map<String, Value> = fields.iter().map(described).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

/// The components that the operations refer to.
pub fn requests() -> impl Iterator<Item = (String, Value)> {
    let component = |(name, fields, required): (&str, &[Field], &[&str])| {
        (name.to_string(), request(fields, required))
    };
    REQUESTS.into_iter().map(component)
}

/// A reference to the request of an operation.
pub fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn object(about: &str) -> Value {
    json!({"schema": {"type": "object", "description": about}})
}

fn content(answer: Answer) -> Value {
    match answer {
        Answer::Object(about) => json!({"application/json": object(about)}),
        Answer::Events(about) => {
            json!({"application/json": object(about), "text/event-stream": object(about)})
        }
        Answer::Lines(about) => {
            json!({"application/json": object(about), "application/x-ndjson": object(about)})
        }
    }
}

/// Adds files and batches. `stored` describes an operation on what has an id.
fn add_records(
    paths: &mut Map<String, Value>,
    asks: &impl Fn(&str, Value, Value) -> Value,
    stored: &impl Fn(&str, &'static str) -> Value,
    looks: &impl Fn(&str, Value) -> Value,
) {
    let text = json!({"type": "string"});
    let form = json!({"type": "object", "required": ["file", "purpose"], "properties": {
        "file": {"type": "string", "format": "binary"}, "purpose": {"const": "batch"},
        "expires_after[anchor]": text, "expires_after[seconds]": text}});
    let mut upload =
        asks("Uploads a file for a batch", json!({}), content(Answer::Object("OpenAI's file.")));
    upload["requestBody"]["content"] = json!({"multipart/form-data": {"schema": form}});
    let create = json!({"type": "object",
        "required": ["input_file_id", "endpoint", "completion_window"], "properties": {
        "input_file_id": text, "endpoint": text, "completion_window": text,
        "metadata": {"type": "object"}, "output_expires_after": {"type": "object"}}});
    let create = asks("Creates a batch", create, content(Answer::Object("OpenAI's batch.")));
    let list = |said: &str| looks(said, content(Answer::Object("A list, as at OpenAI.")));
    let job = json!({"type": "object", "required": ["url", "body"], "properties": {
        "url": text, "body": {"type": "object"}, "metadata": {"type": "object"}}});
    let about = "`id`, `task_id`, `status`, `status_url`, `queue_position`, `response` and others.";
    let mut begin = asks("Creates a job", job, content(Answer::Object(about)));
    if let Some(responses) = begin["responses"].as_object_mut()
        && let Some(created) = responses.remove("200")
    {
        responses.insert("202".into(), created);
    }
    let one = json!({"get": stored("Shows a job", about),
        "delete": stored("Deletes a job", "`id`, `object`, `deleted`.")});
    let file = json!({"get": stored("Shows a file", "OpenAI's file."),
        "delete": stored("Deletes a file", "`id`, `object`, `deleted`.")});
    let mut read = stored("Reads a file", "");
    read["responses"]["200"]["content"] = json!({"application/octet-stream": {}});
    for (path, item) in [
        ("/v1/files", json!({"get": list("Lists files"), "post": upload})),
        ("/v1/files/{id}", file),
        ("/v1/files/{id}/content", json!({"get": read})),
        ("/v1/batches", json!({"get": list("Lists batches"), "post": create})),
        ("/v1/batches/{id}", json!({"get": stored("Shows a batch", "OpenAI's batch.")})),
        ("/v1/batches/{id}/cancel", json!({"post": stored("Cancels a batch", "OpenAI's batch.")})),
        ("/v1/jobs", json!({"get": list("Lists jobs"), "post": begin})),
        ("/v1/jobs/{id}", one),
        ("/v1/jobs/{id}/cancel", json!({"post": stored("Cancels a job", about)})),
    ] {
        paths.insert(path.into(), item);
    }
}

/// Adds message batches.
fn add_message_batches(
    paths: &mut Map<String, Value>,
    asks: &impl Fn(&str, Value, Value) -> Value,
    stored: &impl Fn(&str, &'static str) -> Value,
    looks: &impl Fn(&str, Value) -> Value,
) {
    let about = "Anthropic's message batch.";
    let request = json!({"type": "object", "required": ["custom_id", "params"], "properties": {
        "custom_id": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "params": reference("MessagesRequest")}});
    let create = json!({"type": "object", "required": ["requests"],
        "properties": {"requests": {"type": "array", "minItems": 1, "items": request}}});
    let create = asks("Creates a message batch", create, content(Answer::Object(about)));
    let list = "`data`, `has_more`, `first_id`, `last_id`.";
    let mut list = looks("Lists message batches", content(Answer::Object(list)));
    list["parameters"] = ["limit", "before_id", "after_id"]
        .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
        .into();
    let one = json!({"get": stored("Shows a message batch", about),
        "delete": stored("Deletes a message batch that has ended", "`id`, `type`.")});
    let mut results = stored("The results of a message batch", "");
    let line = "A line of JSON for each request: `custom_id` and `result`.";
    results["responses"]["200"]["content"] = json!({"application/x-jsonl": object(line)});
    for (path, item) in [
        ("", json!({"get": list, "post": create})),
        ("/{id}", one),
        ("/{id}/cancel", json!({"post": stored("Cancels a message batch", about)})),
        ("/{id}/results", json!({"get": results})),
    ] {
        paths.insert(format!("/v1/messages/batches{path}"), item);
    }
}

/// Adds the operations. `asks` describes one with a body, and `looks` one without.
pub fn add(
    paths: &mut Map<String, Value>,
    asks: impl Fn(&str, Value, Value) -> Value,
    looks: impl Fn(&str, Value) -> Value,
) {
    for (path, said, reads, answer) in OPERATIONS {
        let operation = asks(said, reference(reads), content(answer));
        paths.insert(path.into(), json!({"post": operation}));
    }
    for (path, said, answer) in LISTS {
        let operation = looks(said, content(Answer::Object(answer)));
        paths.insert(path.into(), json!({"get": operation}));
    }
    let id = json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
    let stored = |said: &str, about: &'static str| {
        let mut operation = looks(said, content(Answer::Object(about)));
        operation["parameters"] = id.clone();
        operation
    };
    let about = "OpenAI's `Response`; with `stream`, the events of one in the background.";
    let mut get = stored("Shows a stored response, or streams it", about);
    let query =
        |name: &str, kind: &str| json!({"name": name, "in": "query", "schema": {"type": kind}});
    let parameters = get["parameters"].as_array_mut().unwrap();
    parameters.extend([query("stream", "boolean"), query("starting_after", "integer")]);
    let delete = stored("Deletes a stored response", "`id`, `object`, `deleted`.");
    let response = json!({"get": get, "delete": delete});
    paths.insert("/v1/responses/{id}".into(), response);
    let items = stored("Lists the input of a stored response", "A list of OpenAI's input items.");
    paths.insert("/v1/responses/{id}/input_items".into(), json!({"get": items}));
    let cancel = stored("Cancels a response in the background", "OpenAI's `Response`.");
    paths.insert("/v1/responses/{id}/cancel".into(), json!({"post": cancel}));
    add_records(paths, &asks, &stored, &looks);
    add_message_batches(paths, &asks, &stored, &looks);
}
