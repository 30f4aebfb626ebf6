//! Lines for programs: one JSON object each.
//!
//! The formatter of `tracing-subscriber` took a tenth of what a short request costs the gateway,
//! which logs one line for each.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::registry::LookupSpan;

use super::{RequestFields, visit_context};

/// Bytes of most lines.
const LINE_BYTES: usize = 512;

/// Writes timestamp, level, fields, target, and the fields of the request and the connection.
pub(super) struct JsonLines {
    pub(super) request: RequestFields,
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line { text: String::with_capacity(LINE_BYTES), logger: None };
        line.text.push_str("{\"timestamp\":\"");
        SystemTime.format_time(&mut Writer::new(&mut line.text))?;
        line.text.push('"');
        line.add_str("level", event.metadata().level().as_str());
        event.record(&mut line);
        let target = line.logger.take();
        line.add_str("target", target.as_deref().unwrap_or(event.metadata().target()));
        visit_context(self.request, event, &mut |name, value| line.add_str(name, value));
        line.text.push_str("}\n");
        writer.write_str(&line.text)
    }
}

/// A line that is being written.
struct Line {
    text: String,
    /// Who logged it, if that is a library that uses `log`.
    logger: Option<String>,
}

impl Line {
    fn add(&mut self, name: &str, value: fmt::Arguments<'_>) {
        // Nothing fails when it is written into a string.
        let _ = write!(self.text, ",\"{name}\":{value}");
    }

    fn add_str(&mut self, name: &str, value: &str) {
        for part in [",\"", name, "\":"] {
            self.text.push_str(part);
        }
        if value.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
            let _ = write!(self.text, "{}", serde_json::Value::from(value));
        } else {
            for part in ["\"", value, "\""] {
                self.text.push_str(part);
            }
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.target" => self.logger = Some(value.to_string()),
            name if name.starts_with("log.") => {}
            name => self.add_str(name, value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field.name(), format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field.name(), format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if !field.name().starts_with("log.") {
            self.add(field.name(), format_args!("{value}"));
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field.name(), format_args!("{}", serde_json::Value::from(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
