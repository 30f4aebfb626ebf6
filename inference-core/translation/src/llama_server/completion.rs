//! Reads `POST /completion` and `POST /infill` into the body of `POST /v1/completions`.

use serde_json::{Map, Value, json};

use super::response::{Paths, Writer};
use crate::fault::{Fault, Fields, expected, list, text};
use crate::json;

/// Most files of a request besides the one with the gap.
const FILES_MAX: usize = 256;

/// Reads the body of `POST /completion`.
///
/// # Errors
/// A field has a wrong type, or there are several prompts.
pub(crate) fn read(mut fields: Fields) -> Result<(Vec<u8>, Writer), Fault> {
    let prompt = fields.require("prompt", prompt)?;
    let (mut body, writer) = common(fields)?;
    body.insert("prompt".into(), prompt);
    Ok((json::bytes(&body), writer))
}

/// Reads the body of `POST /infill`.
///
/// # Errors
/// A field has a wrong type.
pub(crate) fn read_infill(mut fields: Fields) -> Result<(Vec<u8>, Writer), Fault> {
    let mut prefix = fields.required_text("input_prefix")?;
    let suffix = fields.required_text("input_suffix")?;
    prefix.push_str(&fields.text("prompt")?.unwrap_or_default());
    let files = fields.list("input_extra", file)?.unwrap_or_default();
    if files.len() > FILES_MAX {
        return Err(Fault::of("input_extra", format!("at most {FILES_MAX} files")));
    }
    for ignored in ["input_prefix", "input_suffix", "samplers", "t_max_prompt_ms"] {
        fields.0.remove(ignored);
    }
    let (mut body, writer) = common(fields)?;
    body.insert("prompt".into(), prefix.into());
    body.insert("suffix".into(), suffix.into());
    // Also an empty list: without files and suffix, too, the model is to fill a gap.
    body.insert("input_extra".into(), files.into());
    Ok((json::bytes(&body), writer))
}

/// What both have in common: the body without its prompt.
fn common(mut fields: Fields) -> Result<(Map<String, Value>, Writer), Fault> {
    // Some clients send an empty name, because their server has only one model.
    let model = fields.text("model")?.filter(|model| !model.trim().is_empty());
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let limit = [fields.take("n_predict"), fields.take("max_tokens")];
    let probabilities = fields.count("n_probs")?.filter(|count| *count > 0);
    let paths = Paths::new(fields.list("response_fields", text)?.unwrap_or_default())?;
    for name in ["n_cmpl", "n"] {
        if fields.count(name)?.is_some_and(|count| count > 1) {
            return Err(Fault::of(name, "expected 1: /v1/completions returns several choices"));
        }
    }
    let mut body = fields.0;
    body.retain(|name, value| !value.is_null() && name != "return_tokens");
    let settings = settings(&body);
    if let Some(model) = &model {
        body.insert("model".into(), model.as_str().into());
    }
    let limit = limit.into_iter().flatten().next();
    body.insert("max_tokens".into(), limit.unwrap_or_else(|| json!(-1)));
    if let Some(count) = probabilities {
        body.insert("logprobs".into(), count.into());
    }
    body.insert("timings".into(), true.into());
    body.insert("stream".into(), is_streamed.into());
    if is_streamed {
        body.insert("stream_options".into(), json!({"include_usage": true}));
    }
    Ok((body, Writer::new(model, settings, paths, probabilities.map(|count| count as usize))))
}

/// The numbers and switches that the request sets, for `generation_settings`.
fn settings(body: &Map<String, Value>) -> Map<String, Value> {
    let plain = body.iter().filter(|(_, value)| value.is_number() || value.is_boolean());
    plain.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// One prompt, as `/v1/completions` takes it.
fn prompt(value: Value) -> Result<Value, Fault> {
    match value {
        Value::String(_) => Ok(value),
        Value::Object(_) => {
            let mut object = Fields::of(value)?;
            if object.list("multimodal_data", Ok)?.is_some_and(|data| !data.is_empty()) {
                return Err(Fault::of("multimodal_data", "prompts are text"));
            }
            Ok(object.required_text("prompt_string")?.into())
        }
        Value::Array(mut entries) if entries.len() == 1 && !entries[0].is_number() => {
            prompt(entries.remove(0)).map_err(|fault| fault.at(0))
        }
        Value::Array(ref entries) if entries.iter().all(Value::is_number) => Ok(value),
        Value::Array(_) => Err(Fault::new(
            "expected one prompt, of text or of token ids: /v1/completions takes several",
        )),
        other => Err(expected("a string or a list of token ids", &other)),
    }
}

fn file(value: Value) -> Result<Value, Fault> {
    let mut file = Fields::of(value)?;
    let name = file.text("filename")?.unwrap_or_else(|| "tmp".into());
    Ok(json!({"filename": name, "text": file.required_text("text")?}))
}

/// The texts or lists of token ids of `POST /embedding`.
pub(super) fn inputs(value: Value) -> Result<Value, Fault> {
    match value {
        Value::String(_) => Ok(Value::Array(vec![value])),
        Value::Array(ref entries)
            if !entries.is_empty() && entries.iter().all(Value::is_number) =>
        {
            Ok(Value::Array(vec![value]))
        }
        Value::Array(_) => {
            let entries = list(value, |entry| match entry {
                Value::String(_) | Value::Array(_) => Ok(entry),
                other => Err(expected("a string or a list of token ids", &other)),
            })?;
            Ok(Value::Array(entries))
        }
        other => Err(expected("a string or a list", &other)),
    }
}

#[cfg(test)]
mod tests {
    use inference_protocol::openai::ParseError;

    use super::*;

    fn body(read: impl Fn(Fields) -> Result<(Vec<u8>, Writer), Fault>, request: Value) -> Value {
        let (body, _) = read(Fields::of(request).unwrap()).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn a_completion_keeps_its_sampling_and_has_no_limit_unless_it_sets_one() {
        let request = json!({"prompt": "Hi", "temperature": 0.5, "stop": ["x"], "n_cmpl": 1,
            "seed": null, "n_probs": 3, "return_tokens": true, "response_fields": ["content"]});
        let expected = json!({"prompt": "Hi", "temperature": 0.5, "stop": ["x"], "logprobs": 3,
            "max_tokens": -1, "timings": true, "stream": false});
        assert_eq!(body(read, request), expected);
        let request = json!({"model": "m", "prompt": [1, 2], "n_predict": 7, "stream": true});
        let expected = json!({"model": "m", "prompt": [1, 2], "max_tokens": 7, "timings": true,
            "stream": true, "stream_options": {"include_usage": true}});
        assert_eq!(body(read, request), expected);
    }

    #[test]
    fn a_prompt_is_one_however_it_is_wrapped() {
        for (prompt, expected) in [
            (json!("a"), json!("a")),
            (json!(["a"]), json!("a")),
            (json!([[5, 6]]), json!([5, 6])),
            (json!([5]), json!([5])),
            (json!({"prompt_string": "a", "multimodal_data": []}), json!("a")),
        ] {
            assert_eq!(body(read, json!({"prompt": prompt}))["prompt"], expected);
        }
        for (prompt, param) in [
            (json!(["a", "b"]), "prompt"),
            (json!([5, "a"]), "prompt"),
            (json!([[5], [6]]), "prompt"),
            (json!(7), "prompt"),
            (json!([{"x": 1}]), "prompt[0].prompt_string"),
            (json!({"prompt_string": "a", "multimodal_data": ["b"]}), "prompt.multimodal_data"),
        ] {
            let fault = read(Fields::of(json!({"prompt": prompt})).unwrap()).unwrap_err();
            assert_eq!(ParseError::from(fault).param.as_deref(), Some(param));
        }
    }

    #[test]
    fn a_gap_has_a_prefix_with_the_prompt_a_suffix_and_files() {
        let request = json!({"input_prefix": "a\n", "input_suffix": "", "prompt": "  b",
            "input_extra": [{"filename": "x.rs", "text": "fn x"}, {"text": "y"}],
            "samplers": ["top_k", "infill"], "t_max_prompt_ms": 500, "n_indent": 4,
            "t_max_predict_ms": 1000, "n_predict": 0});
        let expected = json!({"n_indent": 4, "t_max_predict_ms": 1000, "max_tokens": 0,
            "timings": true, "stream": false, "prompt": "a\n  b", "suffix": "",
            "input_extra": [{"filename": "x.rs", "text": "fn x"}, {"filename": "tmp", "text": "y"}]});
        assert_eq!(body(read_infill, request), expected);
        let bare = body(read_infill, json!({"input_prefix": "a", "input_suffix": "b"}));
        assert_eq!(bare["input_extra"], json!([]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let many = vec![json!({"text": "a"}); FILES_MAX + 1];
        for (request, param) in [
            (json!({"input_suffix": "b"}), "input_prefix"),
            (json!({"input_prefix": "b"}), "input_suffix"),
            (
                json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [7]}),
                "input_extra[0]",
            ),
            (
                json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [{}]}),
                "input_extra[0].text",
            ),
            (json!({"input_prefix": "a", "input_suffix": "b", "input_extra": many}), "input_extra"),
            (json!({"input_prefix": "a", "input_suffix": "b", "n_cmpl": 2}), "n_cmpl"),
            (
                json!({"input_prefix": "a", "input_suffix": "b", "response_fields": [1]}),
                "response_fields[0]",
            ),
        ] {
            let fault = read_infill(Fields::of(request).unwrap()).unwrap_err();
            assert_eq!(ParseError::from(fault).param.as_deref(), Some(param));
        }
    }
}
