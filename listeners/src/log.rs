//! The log of a program, whose lines say which connection and which request they belong to.
//!
//! What they say of a request is what a span of `tracing` would hold. A span formats its fields
//! when it is made, has an entry in a registry, and looks it up whenever a future is polled: a
//! measurable part of what a request costs the gateway, for lines that hardly any request logs.
//! What is kept here is a pointer until a line is logged.

use std::fmt;
use std::io::IsTerminal;
use std::net::IpAddr;

use futures_util::future::Either;
use tokio::task::futures::TaskLocalFuture;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, MakeWriter, format};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

mod json;

use json::JsonLines;

tokio::task_local! {
    static PEER: IpAddr;
}

/// Calls its argument with the name and the value of each field that describes the request of the
/// current task.
pub type RequestFields = fn(&mut dyn FnMut(&'static str, &str));

/// Logs to stderr from here on: text on a terminal, otherwise JSON lines. `RUST_LOG` chooses the
/// lines; the default is `info`. Every line has the fields of `request`, and the address of the
/// connection that the current task serves as `peer`.
pub fn start_log(request: RequestFields) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let is_json = !std::io::stderr().is_terminal();
    subscriber(filter, is_json, request, std::io::stderr).init();
}

fn subscriber<W>(
    filter: EnvFilter,
    is_json: bool,
    request: RequestFields,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // Otherwise a log line that cannot be written (full disk) causes a panic.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(writer);
    if is_json {
        Box::new(log.event_format(JsonLines { request }).finish())
    } else {
        Box::new(log.event_format(TextLines { inner: format().with_ansi(true), request }).finish())
    }
}

/// Runs `serving`, which serves a connection from `peer`.
pub(crate) fn with_peer<F: Future>(peer: IpAddr, serving: F) -> TaskLocalFuture<IpAddr, F> {
    PEER.scope(peer, serving)
}

/// Wraps `serving`, which runs in a task of its own for the connection of the current task.
pub(crate) fn inherit_peer<F: Future>(serving: F) -> Either<TaskLocalFuture<IpAddr, F>, F> {
    match PEER.try_with(|peer| *peer) {
        Ok(peer) => Either::Left(with_peer(peer, serving)),
        Err(_) => Either::Right(serving),
    }
}

/// Calls `add` with the fields of the current request and connection that `event` does not have
/// itself: what it says is nearer to what happened.
fn visit_context(
    request: RequestFields,
    event: &Event<'_>,
    add: &mut dyn FnMut(&'static str, &str),
) {
    let own = event.metadata().fields();
    let mut add_missing = |name, value: &str| {
        if own.field(name).is_none() {
            add(name, value);
        }
    };
    request(&mut add_missing);
    let _ = PEER.try_with(|peer| add_missing("peer", &peer.to_string()));
}

/// Lines for people.
struct TextLines<F> {
    inner: F,
    request: RequestFields,
}

impl<S, N, F> FormatEvent<S, N> for TextLines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.inner.format_event(context, Writer::new(&mut line), event)?;
        writer.write_str(line.trim_end())?;
        let mut written = Ok(());
        visit_context(self.request, event, &mut |name, value| {
            written = written.and_then(|()| write!(writer, " {name}={value:?}"));
        });
        written.and_then(|()| writer.write_char('\n'))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tracing::subscriber::with_default;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(is_json: bool, log: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let request: RequestFields = |add| {
            add("request_id", "r-1");
            add("tenant", "the \"A\" team");
        };
        let to = written.clone();
        let subscriber = subscriber(EnvFilter::new("info"), is_json, request, move || to.clone());
        with_default(subscriber, log);
        let written = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        written.lines().map(String::from).collect()
    }

    #[test]
    fn a_line_of_json_has_the_fields_of_its_request_and_its_peer_beside_its_own() {
        let logged = lines(true, || {
            PEER.sync_scope([10, 0, 0, 1].into(), || tracing::info!(tokens = 7, "a message"));
            tracing::warn!(tenant = "its own", "another one");
        });
        let mut read: Vec<serde_json::Value> =
            logged.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        for line in &mut read {
            line.as_object_mut().unwrap().remove("timestamp").unwrap();
        }
        let target = "flotilla_listeners::log::tests";
        let first = json!({
            "level": "INFO", "message": "a message", "tokens": 7, "target": target,
            "request_id": "r-1", "tenant": "the \"A\" team", "peer": "10.0.0.1",
        });
        let second = json!({
            "level": "WARN", "message": "another one", "tenant": "its own", "target": target,
            "request_id": "r-1",
        });
        assert_eq!(read, [first, second]);
        assert_eq!(logged[1].matches("tenant").count(), 1, "{}", logged[1]);
    }

    #[test]
    fn every_kind_of_value_is_valid_json() {
        let logged = lines(true, || {
            let text = "quotes \", \\ and\nnew lines\u{1}";
            tracing::error!(
                text,
                debug = ?Some(text),
                display = %text,
                negative = -1,
                flag = true,
                float = 0.5,
                nan = f64::NAN,
                nothing = Option::<&str>::None,
                "{text}"
            );
        });
        let read: serde_json::Value = serde_json::from_str(&logged[0]).unwrap();
        let text = "quotes \", \\ and\nnew lines\u{1}";
        for name in ["text", "display", "message"] {
            assert_eq!(read[name], text);
        }
        assert_eq!(read["debug"], format!("{:?}", Some(text)));
        assert_eq!((&read["negative"], &read["flag"]), (&json!(-1), &json!(true)));
        assert_eq!((&read["float"], read.get("nan")), (&json!(0.5), Some(&json!(null))));
        assert_eq!(read.get("nothing"), None);
    }

    #[test]
    fn a_line_of_text_ends_with_the_fields_of_its_request() {
        let logged = lines(false, || tracing::info!("a message"));
        assert!(logged[0].contains("a message"), "{logged:?}");
        let end = r#" request_id="r-1" tenant="the \"A\" team""#;
        assert!(logged[0].ends_with(end), "{logged:?}");
        assert!(logged[0].contains('\u{1b}'), "{logged:?}");
    }
}
