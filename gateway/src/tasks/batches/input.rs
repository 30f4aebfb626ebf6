//! Reads the input of a batch: a request in each line.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, ErrorKind, Read};

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::order::{beginning, order};
use crate::server::batch_body::{MODELS_MAX, place_of, refused_field};
use crate::store::{Content, LineError};

/// Errors that a batch reports; more are left out.
const ERRORS_MAX: usize = 100;
/// Longest `custom_id`.
const CUSTOM_ID_BYTES_MAX: usize = 512;

/// What lines may be.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// The path that they call.
    pub(super) endpoint: String,
    /// Most lines.
    pub(super) lines_max: usize,
    /// Most bytes of a line.
    pub(super) line_bytes_max: usize,
}

/// A request of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// The client's name of the line.
    pub(super) custom_id: String,
    /// The body of the request.
    pub(super) body: String,
}

/// A checked input: where each line is.
#[derive(Debug)]
pub(super) struct Input {
    /// Its file may be deleted meanwhile.
    content: Content,
    rules_endpoint: String,
    /// Offset and length of each line with a request, and which of the models it names.
    lines: Vec<(u64, usize, usize)>,
    models: Vec<String>,
    /// The lines in the order in which they are run.
    order: Vec<usize>,
}

#[derive(Deserialize)]
struct Written<'a> {
    custom_id: String,
    method: String,
    url: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Why an input cannot be run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputError {
    /// The client's mistakes.
    Invalid(Vec<LineError>),
    /// The file cannot be read now.
    Unreadable(ErrorKind),
}

impl Input {
    /// Checks all lines. Blocks.
    pub(super) fn check(mut content: Content, rules: &Rules) -> Result<Self, InputError> {
        let mut reader = BufReader::with_capacity(1 << 18, &mut content);
        let (mut lines, mut errors, mut known) = (Vec::new(), Vec::new(), HashSet::new());
        let (mut offset, mut number, mut text) = (0, 0, Vec::new());
        let (mut models, mut beginnings) = (Vec::new(), Vec::new());
        while errors.len() < ERRORS_MAX {
            text.clear();
            let mut limited = (&mut reader).take(rules.line_bytes_max as u64 + 1);
            let read = limited.read_until(b'\n', &mut text);
            let read = read.map_err(|e| InputError::Unreadable(e.kind()))?;
            if read == 0 {
                break;
            }
            number += 1;
            if read > rules.line_bytes_max {
                let message = format!("the line is longer than {} bytes", rules.line_bytes_max);
                errors.push(error("line_too_long", message, None, Some(number)));
                break;
            }
            if !text.trim_ascii().is_empty() {
                match parse(&text, &rules.endpoint) {
                    // 128 bits of a digest instead of up to 512 bytes for each line.
                    Ok(line) if known.insert(short_digest(&line.custom_id)) => {
                        match place_of(&line.body, &mut models) {
                            Some(model) => {
                                lines.push((offset, read, model));
                                beginnings.push(beginning(&line.body));
                            }
                            None => {
                                let message = format!("there are more than {MODELS_MAX} models");
                                errors.push(error(
                                    "too_many_models",
                                    message,
                                    Some("body.model"),
                                    None,
                                ));
                                break;
                            }
                        }
                    }
                    Ok(line) => {
                        let message = format!("the custom_id '{}' is not unique", line.custom_id);
                        errors.push(error(
                            "duplicate_custom_id",
                            message,
                            Some("custom_id"),
                            Some(number),
                        ));
                    }
                    Err((code, message, param)) => {
                        errors.push(error(code, message, param, Some(number)))
                    }
                }
            }
            if lines.len() > rules.lines_max {
                let message = format!("there are more than {} lines", rules.lines_max);
                errors.push(error("too_many_lines", message, None, None));
                break;
            }
            offset += read as u64;
        }
        if lines.is_empty() && errors.is_empty() {
            errors.push(error("empty_file", "there are no lines".into(), None, None));
        }
        match errors.is_empty() {
            true => {
                let endpoint = rules.endpoint.clone();
                let order = order(&beginnings);
                Ok(Self { content, rules_endpoint: endpoint, lines, models, order })
            }
            false => Err(InputError::Invalid(errors)),
        }
    }

    /// Number of lines.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The lines, the first being 0, in the order in which they are run.
    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }

    /// Bytes of a line, the first being 0.
    pub(super) fn bytes(&self, line: usize) -> usize {
        self.lines.get(line).map_or(0, |(_, bytes, _)| *bytes)
    }

    /// The model that a line names; empty if it names none.
    pub(super) fn model(&self, line: usize) -> Option<&str> {
        let (.., model) = self.lines.get(line)?;
        self.models.get(*model).map(String::as_str)
    }

    /// Reads a line again, the first being 0. Blocks.
    pub(super) fn read(&self, line: usize) -> Result<Line, ErrorKind> {
        let (offset, bytes, _) = *self.lines.get(line).ok_or(ErrorKind::UnexpectedEof)?;
        let mut text = vec![0; bytes];
        self.content.read_exact_at(&mut text, offset).map_err(|error| error.kind())?;
        parse(&text, &self.rules_endpoint).map_err(|_| ErrorKind::InvalidData)
    }
}

fn short_digest(text: &str) -> [u8; 16] {
    let digest = Sha256::digest(text.as_bytes());
    std::array::from_fn(|i| digest[i])
}

fn error(code: &str, message: String, param: Option<&str>, line: Option<u64>) -> LineError {
    LineError { code: code.into(), message, param: param.map(Into::into), line }
}

type Mistake = (&'static str, String, Option<&'static str>);

/// The request in a line, or what is wrong with it: code, message, and field.
fn parse(text: &[u8], endpoint: &str) -> Result<Line, Mistake> {
    let invalid =
        |e: serde_json::Error| ("invalid_json_line", format!("it is not valid: {e}"), None);
    let text = std::str::from_utf8(text)
        .map_err(|_| ("invalid_json_line", "it is not valid UTF-8".to_string(), None))?;
    let Written { custom_id, method, url, body } = serde_json::from_str(text).map_err(invalid)?;
    if custom_id.is_empty() || custom_id.len() > CUSTOM_ID_BYTES_MAX {
        let message = format!("expected 1 to {CUSTOM_ID_BYTES_MAX} bytes");
        return Err(("invalid_custom_id", message, Some("custom_id")));
    }
    if method != "POST" {
        return Err(("invalid_method", "expected POST".into(), Some("method")));
    }
    if url != endpoint {
        let message = format!("expected {endpoint}, the endpoint of the batch");
        return Err(("mismatched_endpoint", message, Some("url")));
    }
    if !body.get().starts_with('{') {
        return Err(("invalid_body", "expected an object".into(), Some("body")));
    }
    if let Some((field, why)) = refused_field(body.get()) {
        let param = if field == "stream" { "body.stream" } else { "body.background" };
        return Err(("invalid_body", why.into(), Some(param)));
    }
    Ok(Line { custom_id, body: body.get().into() })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const ENDPOINT: &str = "/v1/chat/completions";

    fn check(text: &str, lines_max: usize) -> Result<Input, InputError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input");
        std::fs::write(&path, text).unwrap();
        let rules = Rules { endpoint: ENDPOINT.into(), lines_max, line_bytes_max: 200 };
        let input = Input::check(File::open(&path).unwrap().into(), &rules)?;
        for line in 0..input.len() {
            input.read(line).unwrap();
        }
        Ok(input)
    }

    fn line(id: &str) -> String {
        format!(
            r#"{{"custom_id":"{id}","method":"POST","url":"{ENDPOINT}","body":{{"model":"m"}}}}"#
        )
    }

    fn errors(text: &str) -> Vec<(String, Option<u64>)> {
        match check(text, 3) {
            Err(InputError::Invalid(errors)) => {
                errors.into_iter().map(|error| (error.code, error.line)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_are_found_again_with_or_without_an_end_and_empty_ones_between() {
        let text = format!("{}\n\n  \r\n{}\r\n{}", line("a"), line("ä"), line("c"));
        let input = check(&text, 3).unwrap();
        assert_eq!(input.len(), 3);
        // The file is gone.
        let read = |at| input.read(at).unwrap();
        assert_eq!(read(1), Line { custom_id: "ä".into(), body: r#"{"model":"m"}"#.into() });
        assert_eq!(read(2).custom_id, "c");
        assert!(input.read(3).is_err());
    }

    #[test]
    fn each_mistake_is_reported_with_its_line() {
        let other = line("d").replace(ENDPOINT, "/v1/embeddings");
        let streamed = line("e").replace(r#""model":"m""#, r#""stream":true"#);
        let text = format!("{}\nnonsense\n{}\n{other}\n{streamed}\n", line("a"), line("a"));
        let expected = [
            ("invalid_json_line", 2),
            ("duplicate_custom_id", 3),
            ("mismatched_endpoint", 4),
            ("invalid_body", 5),
        ];
        let expected = expected.map(|(code, line)| (code.to_string(), Some(line)));
        assert_eq!(errors(&text), expected);
        for (text, code) in [
            ("", "empty_file"),
            ("\n\n", "empty_file"),
            (&line(""), "invalid_custom_id"),
            (&line("a").replace("POST", "GET"), "invalid_method"),
            (&line("a").replace(r#"{"model":"m"}"#, "[1]"), "invalid_body"),
            (&line(&"x".repeat(300)), "line_too_long"),
            (&["a", "b", "c", "d"].map(line).join("\n"), "too_many_lines"),
            ("\u{0}\n", "invalid_json_line"),
        ] {
            assert_eq!(errors(text)[0].0, code, "{text}");
        }
        assert_eq!(errors(&"x\n".repeat(1000)).len(), ERRORS_MAX);
    }
}
