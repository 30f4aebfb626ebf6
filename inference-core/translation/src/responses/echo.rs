//! The fields of a request that its response repeats.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

/// The repeated fields, as JSON: each response is sent several times, and tools are long.
#[derive(Debug)]
pub(crate) struct Echo(Vec<(&'static str, Box<RawValue>)>);

/// The repeated fields that are not rewritten, and what stands for an absent one.
const FIELDS: [(&str, &str); 16] = [
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
];

impl Echo {
    /// Takes the fields of a request's body.
    pub(crate) fn of(body: &Map<String, Value>) -> Self {
        let given = |name: &str| body.get(name).filter(|value| !value.is_null());
        let mut fields = Vec::with_capacity(FIELDS.len() + 4);
        for (name, absent) in FIELDS {
            let value = given(name).map(raw);
            fields.push((name, value.unwrap_or_else(|| literal(absent))));
        }
        fields.push(("reasoning", raw(&reasoning(given("reasoning")))));
        fields.push(("text", raw(&text(given("text")))));
        fields.push(("tools", raw(&given("tools").map_or_else(|| json!([]), tools))));
        fields.extend(given("user").map(|user| ("user", raw(user))));
        Self(fields)
    }
}

impl Serialize for Echo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

fn literal(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.into()).unwrap_or_default()
}

fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_default()
}

fn reasoning(given: Option<&Value>) -> Value {
    let member = |name: &str| given.and_then(|given| given.get(name)).cloned();
    let summary = member("summary").or_else(|| member("generate_summary"));
    json!({"effort": member("effort"), "summary": summary})
}

fn text(given: Option<&Value>) -> Value {
    let member = |name: &str| given.and_then(|given| given.get(name)).filter(|v| !v.is_null());
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
