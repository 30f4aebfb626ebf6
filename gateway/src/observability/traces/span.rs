//! PURE. Builds the span of a request, with OpenTelemetry's semantic conventions for generative AI
//! where they apply.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::SpanData;

use super::Trace;
use crate::types::api::Api;

/// Data of a finished request.
#[derive(Debug)]
pub(crate) struct SpanInputs<'a> {
    /// The API endpoint.
    pub api: Api,
    /// Hostname of this gateway.
    pub host: Arc<str>,
    /// Request id.
    pub request_id: &'a str,
    /// Tenant.
    pub tenant: &'a str,
    /// Class.
    pub class: &'static str,
    /// Model, once an endpoint was found for it.
    pub model: Option<&'a str>,
    /// The last node or external endpoint.
    pub node: Option<&'a str>,
    /// Outcome label, from a fixed set.
    pub outcome: &'static str,
    /// True if the gateway or an endpoint is at fault.
    pub is_fault: bool,
    /// From arrival to the end of the response.
    pub duration: Duration,
    /// From arrival to a slot.
    pub queue_wait: Option<Duration>,
    /// From arrival to the first token.
    pub first_token: Option<Duration>,
    /// Attempts after the first.
    pub retries: u32,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Completion tokens.
    pub answer_tokens: Option<u64>,
}

/// The span of a request.
pub(crate) fn build(trace: &Trace, ended: &SpanInputs<'_>) -> SpanData {
    let context = trace.context;
    let flags = TraceFlags::SAMPLED;
    let state = TraceState::default();
    let status = match ended.is_fault {
        true => Status::error(ended.outcome),
        false => Status::Unset,
    };
    let operation = operation(ended.api);
    SpanData {
        span_context: SpanContext::new(context.trace, context.span, flags, false, state),
        parent_span_id: context.parent.unwrap_or(SpanId::INVALID),
        parent_span_is_remote: context.parent.is_some(),
        span_kind: SpanKind::Server,
        name: match ended.model {
            Some(model) => format!("{operation} {model}").into(),
            None => operation.into(),
        },
        start_time: trace.begun,
        // From the monotonic clock, which nobody can set.
        end_time: trace.begun + ended.duration,
        attributes: attributes(operation, ended),
        dropped_attributes_count: 0,
        events: Default::default(),
        links: Default::default(),
        status,
        instrumentation_scope: InstrumentationScope::builder("flotilla").build(),
    }
}

/// The conventions define the first three of these.
fn operation(api: Api) -> &'static str {
    match api {
        Api::ChatCompletions => "chat",
        Api::Completions => "text_completion",
        Api::Embeddings => "embeddings",
        Api::Rerank => "rerank",
        Api::InputTokens | Api::Tokenize => "tokenize",
        Api::Detokenize => "detokenize",
        Api::ApplyTemplate => "apply_template",
        Api::Props => "props",
    }
}

fn attributes(operation: &'static str, ended: &SpanInputs<'_>) -> Vec<KeyValue> {
    let text = |text: Option<&str>| text.map(|t| Value::from(t.to_string()));
    let ms = |time: Option<Duration>| time.map(|t| Value::from(t.as_millis() as i64));
    let tokens = |tokens: Option<u64>| tokens.map(|n| Value::from(n as i64));
    let fault = ended.is_fault.then_some(ended.outcome);
    let all = [
        ("gen_ai.operation.name", Some(Value::from(operation))),
        ("gen_ai.provider.name", Some(Value::from("flotilla"))),
        ("gen_ai.request.model", text(ended.model)),
        ("gen_ai.usage.input_tokens", tokens(ended.prompt_tokens)),
        ("gen_ai.usage.output_tokens", tokens(ended.answer_tokens)),
        ("server.address", Some(Value::from(ended.host.clone()))),
        ("error.type", fault.map(Value::from)),
        ("flotilla.request_id", text(Some(ended.request_id))),
        ("flotilla.tenant", text(Some(ended.tenant))),
        ("flotilla.class", Some(Value::from(ended.class))),
        ("flotilla.node", text(ended.node)),
        ("flotilla.outcome", Some(Value::from(ended.outcome))),
        ("flotilla.retries", Some(Value::from(i64::from(ended.retries)))),
        ("flotilla.queue_wait_ms", ms(ended.queue_wait)),
        ("flotilla.time_to_first_token_ms", ms(ended.first_token)),
    ];
    all.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, value?))).collect()
}

#[cfg(test)]
pub(super) use tests::any;

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use opentelemetry::trace::TraceId;

    use super::*;
    use crate::observability::traces::context::Context;

    fn ended() -> SpanInputs<'static> {
        SpanInputs {
            api: Api::ChatCompletions,
            host: "here".into(),
            request_id: "r",
            tenant: "ada",
            class: "standard",
            model: None,
            node: None,
            outcome: "ok",
            is_fault: false,
            duration: Duration::from_millis(1500),
            queue_wait: None,
            first_token: None,
            retries: 0,
            prompt_tokens: None,
            answer_tokens: None,
        }
    }

    /// An arbitrary span.
    pub(crate) fn any() -> SpanData {
        let context = Context {
            trace: TraceId::from(1),
            span: SpanId::from(2),
            parent: Some(SpanId::from(3)),
        };
        build(&Trace { context, begun: SystemTime::UNIX_EPOCH }, &ended())
    }

    #[test]
    fn a_request_that_got_nowhere_tells_little() {
        let span = any();
        assert_eq!(span.name, "chat");
        assert_eq!(span.end_time, span.start_time + Duration::from_millis(1500));
        assert_eq!(span.status, Status::Unset);
        let keys: Vec<&str> = span.attributes.iter().map(|a| a.key.as_str()).collect();
        assert!(!keys.contains(&"flotilla.node") && !keys.contains(&"error.type"), "{keys:?}");
    }

    #[test]
    fn a_fault_is_one_of_the_span_too() {
        let trace = Trace {
            context: Context { trace: TraceId::from(1), span: SpanId::from(2), parent: None },
            begun: SystemTime::UNIX_EPOCH,
        };
        let ended =
            SpanInputs { is_fault: true, outcome: "node_lost", model: Some("m"), ..ended() };
        let span = build(&trace, &ended);
        assert_eq!((span.name.as_ref(), span.parent_span_id), ("chat m", SpanId::INVALID));
        assert_eq!(span.status, Status::error("node_lost"));
        assert!(span.attributes.contains(&KeyValue::new("error.type", "node_lost")));
    }
}
