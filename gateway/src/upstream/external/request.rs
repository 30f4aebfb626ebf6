//! PURE. Translates requests for external endpoints into a new object that contains known fields
//! only. Unknown fields are not passed on, so no server can interpret one of our limits differently
//! or bill for something that nobody accounts for.

use std::collections::BTreeSet;

use inference_protocol::openai::{
    self, Endpoint, Invalid, ParseError, RawField, RawObject, Unsupported,
};
use serde_json::Value;

use crate::types::api::Api;

/// Sampling, constraint, and length fields of both completion APIs. Constraints that other servers
/// support are passed on even if our nodes refuse them: the endpoint must honor or refuse them,
/// because a response without the constraint would be worse than none.
const SHARED: [&str; 52] = [
    "allowed_token_ids",
    "bad_words",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "dynatemp_range",
    "ebnf",
    "frequency_penalty",
    "grammar",
    "guided_choice",
    "guided_decoding_backend",
    "guided_grammar",
    "guided_json",
    "guided_json_object",
    "guided_regex",
    "guided_whitespace_pattern",
    "ignore_eos",
    "include_stop_str_in_output",
    "json_schema",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "min_p",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "n",
    "n_indent",
    "n_probs",
    "presence_penalty",
    "regex",
    "repeat_last_n",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "samplers",
    "seed",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "temperature",
    "top_k",
    "top_n_sigma",
    "top_p",
    "typ_p",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
];

const CHAT: [&str; 23] = [
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "enable_thinking",
    "function_call",
    "functions",
    "messages",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning_budget",
    "reasoning_budget_tokens",
    "reasoning_effort",
    "reasoning_format",
    "safety_identifier",
    "think",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "tool_choice",
    "tools",
    "top_logprobs",
    "user",
    "verbosity",
];

const TEXT: [&str; 5] = ["echo", "input_extra", "prompt", "suffix", "user"];
const EMBEDDINGS: [&str; 4] = ["dimensions", "encoding_format", "input", "user"];
const RERANK: [&str; 4] = ["documents", "query", "return_documents", "top_n"];

/// Fields that the gateway sets itself, or that would let a client exceed its key's limits. No
/// configuration can allow them.
pub(crate) const RESERVED: [&str; 18] = [
    "beam_width",
    "best_of",
    "max_completion_tokens",
    "max_length",
    "max_new_tokens",
    "max_output_tokens",
    "max_tokens",
    "min_tokens",
    "model",
    "n_predict",
    "num_beams",
    "num_predict",
    "options",
    "service_tier",
    "stream",
    "stream_options",
    "t_max_predict_ms",
    "use_beam_search",
];

/// Fields that our nodes honor and other servers may not, with the value that asks for nothing.
const OURS: [(&str, u64); 2] = [("min_tokens", 0), ("n_cmpl", 1)];

/// Properties of a request besides its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestInfo<'a> {
    /// The API endpoint.
    pub api: Api,
    /// The requested model.
    pub model: &'a str,
    /// True if the response is streamed.
    pub is_streamed: bool,
    /// Most tokens per choice, if limited.
    pub tokens_max: Option<u64>,
}

/// A translated request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TranslatedRequest {
    /// The JSON body.
    pub body: String,
    /// True if the request asks for usage at the end of the stream although the client did not.
    pub adds_usage: bool,
}

/// How to phrase a request for an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect<'a> {
    /// The endpoint's name of the model.
    pub model: &'a str,
    /// The field that limits the tokens per choice in chat requests.
    pub length: LengthField,
    /// Additional fields to pass on.
    pub fields: &'a BTreeSet<String>,
}

/// The field that limits the tokens per choice in chat requests. It is always sent under this name,
/// whatever the client used, because servers ignore names they do not know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LengthField {
    /// `max_tokens`: vLLM, llama-server, Ollama, and most others.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`: OpenAI's newer models refuse the older name.
    MaxCompletionTokens,
}

impl LengthField {
    /// All variants.
    pub const ALL: [Self; 2] = [Self::MaxTokens, Self::MaxCompletionTokens];

    /// The JSON field name.
    pub fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// Known fields of an API, besides those that the gateway sets.
pub(crate) fn fields(api: Api) -> impl Iterator<Item = &'static str> {
    let (shared, own): (&[&str], &[&str]) = match api {
        Api::ChatCompletions => (&SHARED, &CHAT),
        Api::Completions => (&SHARED, &TEXT),
        Api::Embeddings => (&[], &EMBEDDINGS),
        Api::Rerank => (&[], &RERANK),
        // Only our nodes serve these.
        Api::InputTokens | Api::Tokenize | Api::Detokenize | Api::ApplyTemplate | Api::Props => {
            (&[], &[])
        }
    };
    shared.iter().chain(own).copied()
}

/// The known field with this name.
pub(crate) fn known_field(api: Api, name: &str) -> Option<&'static str> {
    let written = ["model", "max_tokens", "max_completion_tokens"];
    fields(api).chain(written).find(|field| *field == name)
}

/// Translates a request. The values of its fields are passed on as they are.
///
/// # Errors
/// The body is not an object, or a constraint would be lost.
pub(crate) fn translate(
    body: &[u8],
    info: RequestInfo<'_>,
    dialect: Dialect<'_>,
) -> Result<TranslatedRequest, Invalid> {
    let sent = RawObject::parse(body).map_err(Invalid::Type)?;
    let adds_usage = info.is_streamed && !asks_for_usage(&sent);
    let mut object = ObjectWriter::new(body.len());
    object.write("model", &Value::from(dialect.model).to_string());
    for (name, value) in select_fields(&sent, info.api, dialect.fields)? {
        object.write(name, value);
    }
    if info.api.generates() {
        object.write("stream", if info.is_streamed { "true" } else { "false" });
        if info.is_streamed {
            object.write("stream_options", r#"{"include_usage":true}"#);
        }
        let length = match info.api {
            Api::ChatCompletions => dialect.length,
            _ => LengthField::MaxTokens,
        };
        if let Some(max) = info.tokens_max {
            object.write(length.name(), &max.to_string());
        }
    }
    Ok(TranslatedRequest { body: object.finish(), adds_usage })
}

fn asks_for_usage(sent: &RawObject<'_>) -> bool {
    let options = sent.fields().rfind(|field| field.name == "stream_options");
    let options = options.and_then(|field| sent.read_field::<Value>(field).ok());
    options.is_some_and(|options| options["include_usage"] == true)
}

/// The fields that the endpoint receives. Of a field that occurs twice, the last one.
fn select_fields<'a>(
    sent: &RawObject<'a>,
    api: Api,
    extra: &'a BTreeSet<String>,
) -> Result<impl Iterator<Item = (&'a str, &'a str)>, Invalid> {
    let extra = extra.iter().map(String::as_str).filter(|name| !RESERVED.contains(name));
    let mut values: Vec<(&str, &str)> = fields(api).map(|name| (name, NULL)).collect();
    values.extend(extra.map(|name| (name, NULL)));
    for field in sent.fields() {
        match values.iter_mut().find(|(name, _)| *name == field.name) {
            Some((_, value)) => *value = field.value,
            None => check_dropped(api, sent, field)?,
        }
    }
    Ok(values.into_iter().filter(|(_, value)| *value != NULL))
}

const NULL: &str = "null";

/// Refuses a field that would be dropped and change the response: a response without a constraint
/// is worse than none. Our nodes refuse the same fields, except for [`OURS`].
fn check_dropped<'a>(api: Api, sent: &RawObject<'a>, field: &RawField<'a>) -> Result<(), Invalid> {
    if let Some((name, neutral)) = OURS.iter().find(|(name, _)| *name == field.name) {
        let value: Value = sent.read_field(field).map_err(Invalid::Type)?;
        return match value.is_null() || value.as_f64() == Some(*neutral as f64) {
            true => Ok(()),
            false => Err(Invalid::Value(ParseError {
                message: format!("{name} is not supported at external endpoints: leave it out"),
                param: Some((*name).into()),
            })),
        };
    }
    let endpoint = match api {
        Api::ChatCompletions => Endpoint::Chat,
        Api::Completions => Endpoint::Completions,
        Api::Embeddings => Endpoint::Embeddings,
        Api::Rerank => Endpoint::Rerank,
        Api::InputTokens | Api::Tokenize | Api::Detokenize | Api::ApplyTemplate | Api::Props => {
            return Ok(());
        }
    };
    let row = Unsupported::find(&field.name).filter(|row| row.at.contains(&endpoint));
    // The value of this one is sent under the name that the endpoint knows.
    let Some(row) = row.filter(|row| row.field != "max_completion_tokens") else { return Ok(()) };
    match row.is_neutral(&sent.read_field(field).map_err(Invalid::Type)?) {
        true => Ok(()),
        false => Err(Invalid::Value(ParseError {
            message: format!("{} is not supported here: {}", row.field, row.instead),
            param: Some(row.field.into()),
        })),
    }
}

/// Writes a JSON object from values that are JSON already.
struct ObjectWriter(String);

impl ObjectWriter {
    fn new(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    fn write(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&openai::to_json(&name));
        self.0.push(':');
        self.0.push_str(value);
    }

    /// Closes the object, which has at least one field.
    fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn ask(api: Api, body: &str, tokens_max: Option<u64>) -> (Value, bool) {
        let fields = BTreeSet::from(["theirs".to_string(), "n_predict".to_string()]);
        let is_streamed = body.contains("\"stream\":true");
        let info = RequestInfo { api, model: "ours", is_streamed, tokens_max };
        let dialect =
            Dialect { model: "their/model", length: LengthField::MaxTokens, fields: &fields };
        let translated = translate(body.as_bytes(), info, dialect).unwrap();
        (serde_json::from_str(&translated.body).unwrap(), translated.adds_usage)
    }

    #[test]
    fn a_request_is_made_of_known_fields_only() {
        let body = r#"{"model":"ours","messages":[{"role":"user"}],"service_tier":"priority",
            "max_completion_tokens":3,"n_predict":-1,"max_output_tokens":null,"min_tokens":0,
            "best_of":1,"options":{},"invented":1,"theirs":2,"max_length":9000,
            "temperature":0.5,"seed":null,"lora":[],"n":2}"#;
        let expected = json!({
            "model": "their/model", "messages": [{"role": "user"}], "temperature": 0.5, "n": 2,
            "theirs": 2, "stream": false, "max_tokens": 3,
        });
        assert_eq!(ask(Api::ChatCompletions, body, Some(3)), (expected, false));
    }

    #[test]
    fn a_field_that_would_change_the_response_is_passed_on_or_refused_by_name() {
        for field in ["num_predict", "best_of", "options", "web_search_options"] {
            let row = Unsupported::find(field).unwrap();
            let set = |text: &str| format!(r#"{{"model":"ours","messages":[],"{field}":{text}}}"#);
            let translate = |text: &str| {
                let api = Api::ChatCompletions;
                let info = RequestInfo { api, model: "ours", is_streamed: false, tokens_max: None };
                let (model, length) = ("theirs", LengthField::MaxTokens);
                let dialect = Dialect { model, length, fields: &BTreeSet::new() };
                super::translate(set(text).as_bytes(), info, dialect)
            };
            let Err(Invalid::Value(refused)) = translate(row.refused) else {
                panic!("{field} was dropped")
            };
            assert_eq!(refused.param.as_deref(), Some(field));
            assert!(translate("null").is_ok(), "{field}");
        }
        for (field, neutral, other) in [("min_tokens", "0", "5"), ("n_cmpl", "1.0", "2")] {
            let fields = BTreeSet::new();
            let (model, length) = ("theirs", LengthField::MaxTokens);
            let translate = |value: &str| {
                let body = format!(r#"{{"messages":[],"{field}":{value}}}"#);
                let api = Api::ChatCompletions;
                let info = RequestInfo { api, model: "ours", is_streamed: false, tokens_max: None };
                super::translate(body.as_bytes(), info, Dialect { model, length, fields: &fields })
            };
            assert!(translate(neutral).is_ok() && translate("null").is_ok(), "{field}");
            let Err(Invalid::Value(refused)) = translate(other) else {
                panic!("{field} was dropped")
            };
            assert_eq!(refused.param.as_deref(), Some(field));
        }
        let (sent, _) = ask(Api::ChatCompletions, r#"{"messages":[],"guided_regex":"a+"}"#, None);
        assert_eq!(sent["guided_regex"], "a+");
    }

    #[test]
    fn the_length_has_the_name_that_the_endpoint_knows() {
        let body = r#"{"model":"ours","messages":[],"max_tokens":7}"#;
        let (fields, length) = (BTreeSet::new(), LengthField::MaxCompletionTokens);
        let dialect = Dialect { model: "m", length, fields: &fields };
        for (api, name) in
            [(Api::ChatCompletions, "max_completion_tokens"), (Api::Completions, "max_tokens")]
        {
            let info = RequestInfo { api, model: "ours", is_streamed: false, tokens_max: Some(7) };
            let asked = translate(body.as_bytes(), info, dialect).unwrap().body;
            let asked: Map<String, Value> = serde_json::from_str(&asked).unwrap();
            let lengths: Vec<_> = asked.iter().filter(|(key, _)| key.starts_with("max")).collect();
            assert_eq!(lengths, [(&name.to_string(), &json!(7))]);
        }
    }

    #[test]
    fn a_stream_tells_its_usage_whether_its_client_asks_or_not() {
        let usage = |options: &str| {
            let body = format!(r#"{{"model":"ours","stream":true{options}}}"#);
            let (value, hides) = ask(Api::ChatCompletions, &body, None);
            (value["stream_options"].clone(), hides)
        };
        let asks = json!({"include_usage": true});
        assert_eq!(usage(""), (asks.clone(), true));
        assert_eq!(usage(r#","stream_options":null"#), (asks.clone(), true));
        assert_eq!(usage(r#","stream_options":[1]"#), (asks.clone(), true));
        let none = r#","stream_options":{"include_usage":false,"continuous_usage_stats":true}"#;
        assert_eq!(usage(none), (asks.clone(), true));
        assert_eq!(usage(r#","stream_options":{"include_usage":true}"#), (asks, false));
    }

    #[test]
    fn of_a_field_that_occurs_twice_the_last_is_passed_on() {
        let body =
            r#"{"messages":[],"seed":1,"theirs":"a\"","se\u0065d":2,"top_p":1,"top_p":null}"#;
        let fields = BTreeSet::from(["theirs".to_string(), "a\"b".to_string()]);
        let api = Api::ChatCompletions;
        let info = RequestInfo { api, model: "ours", is_streamed: false, tokens_max: None };
        let dialect = Dialect { model: "m\"", length: LengthField::MaxTokens, fields: &fields };
        let body = format!("{},\"a\\\"b\" : [1.50, {{}}] }}", body.trim_end_matches('}'));
        let translated = translate(body.as_bytes(), info, dialect).unwrap().body;
        let expected = r#"{"model":"m\"","seed":2,"messages":[],"a\"b":[1.50, {}],"theirs":"a\"","stream":false}"#;
        assert_eq!(translated, expected);
    }

    #[test]
    fn what_generates_nothing_has_fields_of_its_own() {
        let body = r#"{"model":"ours","input":["a"],"dimensions":8,"max_tokens":5,"stream":true}"#;
        let expected = json!({"model": "their/model", "input": ["a"], "dimensions": 8});
        assert_eq!(ask(Api::Embeddings, body, Some(5)).0, expected);
        let body = r#"{"model":"ours","query":"q","documents":["a"],"top_n":1,"input":"x"}"#;
        let expected =
            json!({"model": "their/model", "query": "q", "documents": ["a"], "top_n": 1});
        assert_eq!(ask(Api::Rerank, body, None).0, expected);
    }

    #[test]
    fn no_known_field_is_reserved() {
        for api in Api::ALL {
            assert!(fields(api).all(|field| !RESERVED.contains(&field)));
        }
    }
}
