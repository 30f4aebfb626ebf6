//! Items of the output while they are written.

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::super::SEALED;
use super::super::request::Asked;
use super::super::tools::Kind;
use super::super::unescape::Input;
use super::super::view::{
    self, Arguments, At, Content, Delta, InputText, ItemEvent, NewPart, Part, Sink, Status,
    Summary, Text, TextWithLogprobs,
};

/// An item of the output.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) id: String,
    pub(crate) status: Status,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    Reasoning(String),
    Message { text: String, logprobs: Vec<Box<RawValue>> },
    Call(CallBody),
}

/// A call of a tool.
#[derive(Debug)]
pub(crate) struct CallBody {
    pub(crate) kind: Kind,
    call_id: String,
    name: String,
    namespace: Option<String>,
    /// As the model writes them; for custom tools, in `input`.
    arguments: String,
    input: Input,
}

const ARGUMENTS_DELTA: &str = "response.function_call_arguments.delta";
const INPUT_DELTA: &str = "response.custom_tool_call_input.delta";

impl CallBody {
    pub(crate) fn new(
        kind: Kind,
        call_id: String,
        name: String,
        namespace: Option<String>,
    ) -> Self {
        let (arguments, input) = (String::new(), Input::default());
        Self { kind, call_id, name, namespace, arguments, input }
    }

    /// Adds arguments. `emit` gets the event for them, if there is one.
    pub(crate) fn push(&mut self, text: &str, emit: &mut dyn FnMut(&'static str, &str)) {
        if self.kind == Kind::Custom {
            let delta = self.input.push(text);
            if !delta.is_empty() {
                emit(INPUT_DELTA, delta);
            }
            return;
        }
        self.arguments.push_str(text);
        if self.kind == Kind::Function {
            emit(ARGUMENTS_DELTA, text);
        }
    }

    fn finish(&mut self, is_cut: bool, emit: &mut dyn FnMut(&'static str, &str)) {
        if self.kind == Kind::Custom {
            let delta = self.input.finish();
            if !delta.is_empty() {
                emit(INPUT_DELTA, delta);
            }
        } else if self.arguments.is_empty() && !is_cut {
            // A function without parameters.
            self.push("{}", emit);
        }
    }

    /// The arguments as an object; empty if they are cut off.
    fn object(&self) -> Map<String, Value> {
        serde_json::from_str(&self.arguments).unwrap_or_default()
    }

    fn action(&self) -> Value {
        let mut arguments = self.object();
        let mut take = |name: &str| arguments.get_mut(name).map(Value::take);
        let command = match take("command") {
            Some(Value::String(line)) => json!(["bash", "-lc", line]),
            Some(Value::Array(words)) => words.into_iter().filter(Value::is_string).collect(),
            _ => json!([]),
        };
        json!({
            "type": "exec",
            "command": command,
            "env": take("env").filter(Value::is_object).unwrap_or_else(|| json!({})),
            "timeout_ms": take("timeout_ms").filter(Value::is_u64),
            "user": take("user").filter(Value::is_string),
            "working_directory": take("working_directory").filter(Value::is_string),
        })
    }

    fn view<'a>(&'a self, id: &'a str, status: Status) -> view::Item<'a> {
        let (call_id, name) = (self.call_id.as_str(), self.name.as_str());
        let namespace = self.namespace.as_deref();
        match self.kind {
            Kind::Function => {
                let arguments = &self.arguments;
                view::Item::FunctionCall { id, status, call_id, name, namespace, arguments }
            }
            Kind::Custom => {
                let input = self.input.text();
                view::Item::CustomToolCall { id, status, call_id, name, namespace, input }
            }
            Kind::LocalShell => {
                view::Item::LocalShellCall { id, status, call_id, action: self.action() }
            }
            Kind::Search => {
                let (execution, arguments) = ("client", Value::Object(self.object()));
                view::Item::ToolSearchCall { id, status, call_id, execution, arguments }
            }
        }
    }
}

impl Item {
    /// The item as JSON shows it. Parts appear when they are complete.
    pub(crate) fn view<'a>(&'a self, asked: &Asked) -> view::Item<'a> {
        let (id, status) = (self.id.as_str(), self.status);
        let is_begun = status == Status::InProgress;
        match &self.body {
            Body::Reasoning(text) => {
                let summary = Some(Part::Summary { text }).filter(|_| asked.has_summary);
                let sealed = asked.has_sealed_reasoning && !is_begun;
                view::Item::Reasoning {
                    id,
                    summary: summary.into_iter().filter(|_| !is_begun).collect(),
                    content: self.content().into_iter().filter(|_| !is_begun).collect(),
                    encrypted_content: sealed.then(|| format!("{SEALED}{text}")),
                    status,
                }
            }
            Body::Message { .. } => {
                let content = self.content().into_iter().filter(|_| !is_begun).collect();
                view::Item::Message { id, status, role: "assistant", content }
            }
            Body::Call(call) => call.view(id, status),
        }
    }

    fn content(&self) -> Option<Part<'_>> {
        match &self.body {
            Body::Reasoning(text) => Some(Part::Reasoning { text }),
            Body::Message { text, logprobs } => {
                Some(Part::Output { text, annotations: [], logprobs })
            }
            Body::Call(_) => None,
        }
    }

    fn summary(&self, asked: &Asked) -> Option<Part<'_>> {
        match &self.body {
            Body::Reasoning(text) if asked.has_summary => Some(Part::Summary { text }),
            _ => None,
        }
    }

    /// Writes the events that begin the item at `output_index`.
    pub(crate) fn write_start(&self, output_index: usize, asked: &Asked, sink: &mut Sink<'_>) {
        let item_id = self.id.as_str();
        let item = self.view(asked);
        sink.event("response.output_item.added", &ItemEvent { output_index, item });
        if let Some(part) = self.content() {
            let news = Content { content_index: 0, news: NewPart { part } };
            sink.event("response.content_part.added", &At { item_id, output_index, news });
        }
        if let Some(part) = self.summary(asked) {
            let news = Summary { summary_index: 0, news: NewPart { part } };
            sink.event(
                "response.reasoning_summary_part.added",
                &At { item_id, output_index, news },
            );
        }
    }

    /// Completes the item.
    pub(crate) fn finish(&mut self, status: Status, output_index: usize, sink: &mut Sink<'_>) {
        self.status = status;
        if let Body::Call(call) = &mut self.body {
            let item_id = self.id.as_str();
            call.finish(status == Status::Incomplete, &mut |name, delta| {
                sink.event(name, &At { item_id, output_index, news: Delta { delta } });
            });
        }
    }

    /// Writes the events that end the item at `output_index`.
    pub(crate) fn write_end(&self, output_index: usize, asked: &Asked, sink: &mut Sink<'_>) {
        let item_id = self.id.as_str();
        match &self.body {
            Body::Reasoning(text) => {
                let news = Content { content_index: 0, news: Text { text } };
                sink.event("response.reasoning_text.done", &At { item_id, output_index, news });
            }
            Body::Message { text, logprobs } => {
                let news = TextWithLogprobs { text, logprobs };
                let news = Content { content_index: 0, news };
                sink.event("response.output_text.done", &At { item_id, output_index, news });
            }
            Body::Call(call) => call.write_end(item_id, output_index, sink),
        }
        if let Some(part) = self.content() {
            let news = Content { content_index: 0, news: NewPart { part } };
            sink.event("response.content_part.done", &At { item_id, output_index, news });
        }
        if let (Some(part), Body::Reasoning(text)) = (self.summary(asked), &self.body) {
            let news = Summary { summary_index: 0, news: Text { text } };
            let done = At { item_id, output_index, news };
            sink.event("response.reasoning_summary_text.done", &done);
            let news = Summary { summary_index: 0, news: NewPart { part } };
            sink.event("response.reasoning_summary_part.done", &At { item_id, output_index, news });
        }
        let item = self.view(asked);
        sink.event("response.output_item.done", &ItemEvent { output_index, item });
    }
}

impl CallBody {
    fn write_end(&self, item_id: &str, output_index: usize, sink: &mut Sink<'_>) {
        match self.kind {
            Kind::Function => {
                let news = Arguments { name: &self.name, arguments: &self.arguments };
                let done = At { item_id, output_index, news };
                sink.event("response.function_call_arguments.done", &done);
            }
            Kind::Custom => {
                let news = InputText { input: self.input.text() };
                let done = At { item_id, output_index, news };
                sink.event("response.custom_tool_call_input.done", &done);
            }
            Kind::LocalShell | Kind::Search => {}
        }
    }
}
