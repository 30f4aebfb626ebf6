//! Streams of server-sent events with numbers, as the Responses API has them.

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use inference_protocol::sse::{Splitter, payloads};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::SOON;
use crate::client::Client;

/// A running stream. Dropping it closes the connection.
pub struct Events {
    /// Status of the response.
    pub status: u16,
    body: Incoming,
    splitter: Splitter,
    ready: std::collections::VecDeque<Value>,
    connection: JoinHandle<()>,
}

impl Drop for Events {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Events {
    /// Asks for a stream; the error says why there was no head.
    pub async fn ask(
        client: &Client,
        method: Method,
        path: &str,
        body: &str,
    ) -> Result<Self, String> {
        let begin = client.begin(method, path, body.to_string().into());
        let (response, connection) =
            timeout(SOON, begin).await.map_err(|_| "no head in time".to_string())??;
        Ok(Self {
            status: response.status().as_u16(),
            body: response.into_body(),
            splitter: Splitter::new(1 << 20),
            ready: Default::default(),
            connection,
        })
    }

    /// The next event; `None` at the end, or if the connection breaks.
    pub async fn next(&mut self) -> Option<Value> {
        while self.ready.is_empty() {
            let frame = timeout(4 * SOON, self.body.frame()).await.expect("no event in time");
            let frame = frame?.ok()?;
            let Some(bytes) = frame.data_ref() else { continue };
            let block = self.splitter.push(bytes).expect("an event is too large");
            let events = payloads(&block).map(|payload| serde_json::from_slice(payload).unwrap());
            self.ready.extend(events);
        }
        self.ready.pop_front()
    }

    /// All events to the end.
    pub async fn rest(mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}
