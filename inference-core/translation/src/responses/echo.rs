//! The fields of a request that its response repeats.

use serde_json::{Map, Value, json};

use crate::json;

/// The repeated fields as members of a JSON object, each after a comma: a response is sent several
/// times, and tools are long.
#[derive(Debug, Default)]
pub(crate) struct Echo(Vec<u8>);

/// The repeated fields in their order, and what stands for one that the request does not set.
/// One without a substitute is left out.
const FIELDS: [(&str, &str); 20] = [
    ("background", "false"),
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("prompt_cache_key", "null"),
    ("prompt_cache_retention", "null"),
    ("safety_identifier", "null"),
    ("store", "true"),
    ("temperature", "null"),
    ("tool_choice", "\"auto\""),
    ("top_logprobs", "0"),
    ("top_p", "null"),
    ("truncation", "\"disabled\""),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tools", "[]"),
    ("user", ""),
];

/// Bytes of the substitutes with their names.
const BYTES: usize = 512;

impl Echo {
    /// Takes the fields of a request's body.
    pub(crate) fn of(body: &Map<String, Value>) -> Self {
        let mut given = [None; FIELDS.len()];
        for (name, value) in body.iter().filter(|(_, value)| !value.is_null()) {
            if let Some(at) = FIELDS.iter().position(|(known, _)| known == name) {
                given[at] = Some(value);
            }
        }
        let mut members = Vec::with_capacity(BYTES);
        for ((name, absent), given) in FIELDS.iter().zip(given) {
            if given.is_none() && absent.is_empty() {
                continue;
            }
            for part in [",\"", name, "\":"] {
                members.extend_from_slice(part.as_bytes());
            }
            match given {
                None => members.extend_from_slice(absent.as_bytes()),
                Some(value) => write(name, value, &mut members),
            }
        }
        Self(members)
    }

    /// Bytes of all fields.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the fields to a JSON object that has members and ends `out`.
    pub(crate) fn add_to(&self, out: &mut Vec<u8>) {
        let end = out.pop();
        out.extend_from_slice(&self.0);
        out.extend(end);
    }
}

fn write(name: &str, value: &Value, out: &mut Vec<u8>) {
    match name {
        "reasoning" => json::write(&reasoning(value), out),
        "text" => json::write(&text(value), out),
        "tools" => json::write(&tools(value), out),
        _ => json::write(value, out),
    }
}

fn reasoning(given: &Value) -> Value {
    let member = |name: &str| given.get(name).cloned();
    let summary = member("summary").or_else(|| member("generate_summary"));
    json!({"effort": member("effort"), "summary": summary})
}

fn text(given: &Value) -> Value {
    let member = |name: &str| given.get(name).filter(|v| !v.is_null());
    let format = member("format").cloned().unwrap_or_else(|| json!({"type": "text"}));
    match member("verbosity") {
        Some(verbosity) => json!({"format": format, "verbosity": verbosity}),
        None => json!({"format": format}),
    }
}

/// SDKs expect these members of a function, which requests may leave out.
fn tools(given: &Value) -> Value {
    let mut tools = given.clone();
    for tool in tools.as_array_mut().into_iter().flatten() {
        if let Value::Object(tool) = tool
            && tool.get("type").is_some_and(|kind| kind == "function")
        {
            for member in ["parameters", "strict"] {
                tool.entry(member).or_insert(Value::Null);
            }
        }
    }
    tools
}
