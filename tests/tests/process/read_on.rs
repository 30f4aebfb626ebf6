//! A stream that a client reads on at another gateway, after its own was killed. Real agents, and a
//! real PostgreSQL.

use std::time::Duration;

use fleet_tests::postgres::Postgres;
use fleet_tests::{chat, eventually_within, streamed};
use hyper::Method;
use rustix::process::Signal;

use super::shared_store::Shared;

const CHAT: &str = "/v1/chat/completions";
/// What another gateway takes over when it is silent for ten seconds, and makes to its end.
const TAKEN_OVER: Duration = Duration::from_secs(60);

/// Ids and data of whole events.
fn events(text: &str) -> Vec<(String, String)> {
    let whole = text.split_inclusive("\n\n").filter(|event| event.ends_with("\n\n"));
    let events = whole.filter_map(|event| {
        let (id, data) = event.strip_prefix("id: ")?.split_once("\ndata: ")?;
        Some((id.to_string(), data.trim_end().to_string()))
    });
    events.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_read_on_at_another_gateway_after_its_own_was_killed() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let mut a = shared.gateway().await;
    let b = a.another();
    let _agent = a.join("n", &["--join", &b.url, "--slots", "2"]).await;
    b.wait_for_slots("n").await;
    let mut request = streamed(chat("Count from 1 to 40."));
    request["temperature"] = 0.into();
    let undisturbed = b.client.with_header("x-flotilla-resumable", "true");
    let undisturbed = undisturbed.post(CHAT, request.to_string()).await;
    let data = |events: &[(String, String)]| -> Vec<String> {
        // Ids and times of responses differ.
        let choices = events.iter().map(|(_, data)| data.split("\"choices\"").last());
        choices.map(|choices| choices.unwrap().to_string()).collect()
    };
    let expected = data(&events(&String::from_utf8_lossy(&undisturbed.body)));
    assert!(expected.len() > 10, "{expected:?}");

    let client = a.client.with_header("x-flotilla-resumable", "true");
    let mut stream = client.try_stream(&request).await.unwrap();
    let id = stream.headers["x-flotilla-stream"].to_str().unwrap().to_string();
    assert!(stream.next_chunk().await);
    a.server.signal(Signal::KILL);
    a.server.ended().await;
    // The first event may be all that the client has.
    let client = b.client.with_header("last-event-id", &format!("{id}:0"));
    let rest = eventually_within(TAKEN_OVER, "the rest", async || {
        let read = client.try_send(Method::POST, CHAT, request.to_string().into()).await.ok()?;
        let rest = events(&String::from_utf8_lossy(&read.body));
        (rest.last()?.1 == "[DONE]").then_some(rest)
    })
    .await;
    let ids: Vec<String> = (1..=rest.len()).map(|number| format!("{id}:{number}")).collect();
    assert_eq!(rest.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), ids, "each once");
    assert_eq!(data(&rest), expected[1..], "as an undisturbed run");
}
