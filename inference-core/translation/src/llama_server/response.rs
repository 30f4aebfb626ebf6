//! Writes the responses of `POST /completion` and `POST /infill`: a JSON object, or server-sent
//! events that end with the same object without its text.

use inference_protocol::openai::{ErrorBody, ErrorDetail};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::answer::{Answer, Chunk, Finish, Part, TextToken, Usage};
use crate::fault::Fault;
use crate::json;
use crate::writer::Format;

/// Most paths of `response_fields`.
const PATHS_MAX: usize = 64;

/// The fields that a response has, as the request names them; all if it names none.
#[derive(Debug)]
pub(crate) struct Paths(Vec<String>);

impl Paths {
    /// Checks how many there are.
    pub(crate) fn new(paths: Vec<String>) -> Result<Self, Fault> {
        match paths.len() <= PATHS_MAX {
            true => Ok(Self(paths)),
            false => Err(Fault::of("response_fields", format!("at most {PATHS_MAX} fields"))),
        }
    }

    /// Writes the fields of an object that the paths name, each under its whole path.
    fn write<T: Serialize>(&self, object: &T, out: &mut Vec<u8>) {
        if self.0.is_empty() {
            return json::write(object, out);
        }
        let whole = serde_json::to_value(object).unwrap_or_default();
        let named = self.0.iter().filter_map(|path| {
            let found = path.split('/').try_fold(&whole, |value, name| value.get(name))?;
            Some((path.clone(), found.clone()))
        });
        json::write(&named.collect::<Map<_, _>>(), out);
    }
}

/// State of one response.
#[derive(Debug)]
pub(crate) struct Writer {
    model: Option<String>,
    settings: Map<String, Value>,
    paths: Paths,
    /// How many of the most likely tokens the request asks for.
    likeliest: Option<usize>,
    has_new_line: bool,
    finish: Option<Finish>,
    stop: Option<String>,
    usage: Usage,
    timings: Option<Box<RawValue>>,
}

impl Writer {
    /// Starts a response.
    pub(crate) fn new(
        model: Option<String>,
        settings: Map<String, Value>,
        paths: Paths,
        likeliest: Option<usize>,
    ) -> Self {
        Self {
            model,
            settings,
            paths,
            likeliest,
            has_new_line: false,
            finish: None,
            stop: None,
            usage: Usage::default(),
            timings: None,
        }
    }

    /// The object of a whole response, or the end of a stream.
    fn last<'a>(&'a self, content: &'a str, tokens: &'a [TextToken]) -> Last<'a> {
        let stop_type = match (self.finish, &self.stop) {
            (Some(Finish::Length), _) => "limit",
            (_, Some(_)) => "word",
            _ => "eos",
        };
        let new = New::of(content, tokens, self.likeliest);
        Last {
            new: New { stop: true, timings: self.timings.as_deref(), ..new },
            model: self.model.as_deref().unwrap_or_default(),
            tokens_predicted: self.usage.completion,
            tokens_evaluated: self.usage.prompt,
            tokens_cached: self.usage.cached,
            generation_settings: &self.settings,
            has_new_line: self.has_new_line || content.contains('\n'),
            truncated: false,
            stop_type,
            stopping_word: self.stop.as_deref().unwrap_or_default(),
        }
    }
}

fn event(object: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    object(out);
    out.extend_from_slice(b"\n\n");
}

impl Format for Writer {
    fn chunk(&mut self, chunk: &Chunk<'_>, out: &mut Vec<u8>) {
        if self.model.is_none() {
            self.model = chunk.model().map(Into::into);
        }
        self.finish = chunk.finish().or(self.finish);
        self.stop = chunk.stop().or(self.stop.take());
        self.usage = chunk.usage.unwrap_or(self.usage);
        self.timings = chunk.timings.map(RawValue::to_owned).or(self.timings.take());
        let mut text = String::new();
        chunk.parts(0, &mut |part| match part {
            Part::Text(new, _) => text.push_str(new),
            Part::Reasoning(_) | Part::Call { .. } | Part::Arguments(_) => {}
        });
        self.has_new_line |= text.contains('\n');
        let tokens = chunk.text_tokens();
        if text.is_empty() && tokens.is_empty() && chunk.prompt_progress.is_none() {
            return;
        }
        let new = New {
            timings: chunk.timings,
            prompt_progress: chunk.prompt_progress,
            ..New::of(&text, &tokens, self.likeliest)
        };
        event(|out| json::write(&new, out), out);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        let mut last = self.last("", &[]);
        last.new.completion_probabilities = None;
        event(|out| self.paths.write(&last, out), out);
    }

    fn fail(&mut self, _status: u16, error: &ErrorDetail, out: &mut Vec<u8>) {
        let body = ErrorBody { error: error.clone() }.to_json();
        event(|out| out.extend_from_slice(body.as_bytes()), out);
    }

    fn whole(&mut self, answer: Answer) -> Vec<u8> {
        self.model = self.model.take().or(answer.model);
        (self.finish, self.stop) = (answer.finish, answer.stop);
        self.usage = answer.usage.unwrap_or_default();
        self.timings = answer.written_timings;
        let mut out = Vec::with_capacity(answer.text.len() + 1024);
        self.paths.write(&self.last(&answer.text, &answer.text_tokens), &mut out);
        out
    }
}

/// New text.
#[derive(Serialize)]
struct New<'a> {
    index: u32,
    content: &'a str,
    tokens: [u32; 0],
    stop: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<Probability<'a>>>,
}

impl<'a> New<'a> {
    fn of(content: &'a str, tokens: &'a [TextToken], likeliest: Option<usize>) -> Self {
        let probabilities = |count| tokens.iter().map(move |token| Probability::of(token, count));
        Self {
            index: 0,
            content,
            tokens: [],
            stop: false,
            timings: None,
            prompt_progress: None,
            completion_probabilities: likeliest.map(|count| probabilities(count).collect()),
        }
    }
}

/// The last object of a response.
#[derive(Serialize)]
struct Last<'a> {
    #[serde(flatten)]
    new: New<'a>,
    model: &'a str,
    tokens_predicted: u64,
    tokens_evaluated: u64,
    tokens_cached: u64,
    generation_settings: &'a Map<String, Value>,
    has_new_line: bool,
    truncated: bool,
    stop_type: &'static str,
    stopping_word: &'a str,
}

/// A token, and the most likely ones at its place.
#[derive(Serialize)]
struct Probability<'a> {
    #[serde(flatten)]
    token: Likely<'a>,
    top_logprobs: Vec<Likely<'a>>,
}

#[derive(Serialize)]
struct Likely<'a> {
    token: &'a str,
    bytes: &'a [u8],
    logprob: f64,
}

impl<'a> Probability<'a> {
    /// OpenAI adds the token to the most likely ones if it is none of them.
    fn of(TextToken { text, logprob, likeliest }: &'a TextToken, count: usize) -> Self {
        let likely = |(token, logprob): (&'a String, &f64)| Likely {
            token,
            bytes: token.as_bytes(),
            logprob: *logprob,
        };
        let likeliest = likeliest.iter().take(count);
        let top_logprobs = likeliest.map(|(text, logprob)| likely((text, logprob)));
        Self { token: likely((text, logprob)), top_logprobs: top_logprobs.collect() }
    }
}

#[cfg(test)]
mod tests;
