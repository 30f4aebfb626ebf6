//! A leaving node hands its saved prefixes to another one, through the gateway.

use bytes::Bytes;
use fleet_tests::eventually;
use fleet_tests::mock_node::{Asked, MockNode, healthy};
use fleet_tests::process::metric;
use inference_protocol::fleet::{HEIR_HEADER, NodeState, NodeStatus, PrefixStatus};
use serde_json::{Value, json};

use super::Gateway;

const ON: &str = "nodes: {join_key_file: join.key, hand_over: true}\n";

/// A healthy node whose engine has this key.
fn saving(name: &str, key: &str) -> NodeStatus {
    let prefixes = Some(PrefixStatus { key: key.into(), ..PrefixStatus::default() });
    NodeStatus { prefixes, prefill_tokens_per_second: Some(100.0), ..healthy(name, 4) }
}

/// The node drains, and offers so many prefixes.
fn leaves(node: &MockNode, offered: u32) {
    node.says(|status| {
        (status.state, status.slots) = (NodeState::Draining, 0);
        status.prefixes.iter_mut().for_each(|prefixes| prefixes.offered = offered);
    });
}

/// A request with a long beginning.
fn long_chat() -> Value {
    let system = json!({"role": "system", "content": "Be brief. ".repeat(200)});
    json!({"model": "flotilla-demo", "messages": [system, {"role": "user", "content": "Hi"}]})
}

/// The outcomes of all prefixes, by name.
async fn outcomes(gateway: &Gateway) -> [u64; 4] {
    let mut counts = [0; 4];
    for (count, outcome) in counts.iter_mut().zip(["moved", "slower", "refused", "failed"]) {
        let name = format!("gateway_prefixes_handed_over_total{{outcome=\"{outcome}\"}}");
        *count = metric(&gateway.admin, &name).await as u64;
    }
    counts
}

/// The gateway claims what `a` offers; the list says what that is.
async fn claims(a: &mut MockNode, heir: &str, list: Value) {
    let claim = a.asked().await;
    assert_eq!((&*claim.method, &*claim.path), ("POST", "/fleet/v1/prefixes"));
    assert_eq!(claim.headers[HEIR_HEADER], heir);
    claim.reply(200, "application/json", list.to_string());
}

async fn reads(a: &mut MockNode, file: u64) -> Asked {
    let asked = a.asked().await;
    assert_eq!((&*asked.method, &asked.path), ("GET", &format!("/fleet/v1/prefixes/{file}")));
    asked
}

async fn is_done(a: &mut MockNode) {
    let done = a.asked().await;
    assert_eq!((&*done.method, &*done.path), ("DELETE", "/fleet/v1/prefixes"));
    done.reply(204, "text/plain", String::new());
}

#[tokio::test]
async fn the_files_of_a_leaving_node_go_to_one_that_computes_the_same_and_so_do_its_conversations()
{
    let gateway = Gateway::start(ON).await;
    let mut a = MockNode::join(gateway.address, saving("a", "k")).await;
    eventually("a to be linked", async || (gateway.linked().await == 1).then_some(())).await;
    let asking = super::posts(&gateway, "/v1/chat/completions", long_chat());
    a.asked().await.answer("Hello");
    assert_eq!(asking.await.unwrap().status, 200);
    let _other = MockNode::join(gateway.address, saving("other", "another key")).await;
    let _plain = MockNode::join(gateway.address, healthy("plain", 4)).await;
    let mut b = MockNode::join(gateway.address, saving("b", "k")).await;
    eventually("all to be linked", async || (gateway.linked().await == 4).then_some(())).await;

    leaves(&a, 2);
    // More than fits the window of a stream at once.
    let file = Bytes::from((0..3_000_000_u32).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    let list = json!([{"file": 7, "tokens": 3000, "bytes": file.len()},
        {"file": 3, "tokens": 300, "bytes": 5}]);
    claims(&mut a, "b", list).await;
    a.says(|status| {
        status.prefixes.iter_mut().for_each(|prefixes| prefixes.heir = Some("b".into()));
    });
    let sending = reads(&mut a, 7).await.stream();
    let sent = file.clone();
    let sending = tokio::spawn(async move {
        for chunk in sent.chunks(60_000) {
            sending.send(Bytes::copy_from_slice(chunk)).await;
        }
    });
    let stored = b.asked().await;
    assert_eq!((&*stored.method, &*stored.path), ("PUT", "/fleet/v1/prefixes"));
    assert!(stored.raw == file, "{} bytes", stored.raw.len());
    stored.reply(204, "text/plain", String::new());
    sending.await.unwrap();
    // The next one is too large for what the node has.
    reads(&mut a, 3).await.reply(200, "application/octet-stream", "state".into());
    b.asked().await.refuse(413);
    is_done(&mut a).await;
    assert_eq!(outcomes(&gateway).await, [1, 0, 1, 0]);

    a.dies();
    eventually("a to be gone", async || (gateway.linked().await == 3).then_some(())).await;
    for _ in 0..4 {
        let asking = super::posts(&gateway, "/v1/chat/completions", long_chat());
        b.asked().await.answer("Hello again");
        assert_eq!(asking.await.unwrap().status, 200);
    }
    gateway.is_idle().await;
}

/// The engine of a node has written what it has.
fn has_written(node: &MockNode) {
    node.says(|status| status.prefixes.iter_mut().for_each(|prefixes| prefixes.written = true));
}

#[tokio::test]
async fn what_a_drained_node_has_goes_to_another_one_once_it_works_on_nothing_and_has_written_it() {
    let gateway = Gateway::start(ON).await;
    let mut a = MockNode::join(gateway.address, saving("a", "k")).await;
    eventually("a to be linked", async || (gateway.linked().await == 1).then_some(())).await;
    let asking = super::posts(&gateway, "/v1/chat/completions", long_chat());
    let running = a.asked().await;
    let mut b = MockNode::join(gateway.address, saving("b", "k")).await;
    eventually("both to be linked", async || (gateway.linked().await == 2).then_some(())).await;
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/cordon", "").await.status, 200);
    has_written(&a);
    running.answer("Hello");
    assert_eq!(asking.await.unwrap().status, 200);

    // Asked for the first time, it has to write something.
    a.says(|status| status.prefixes.iter_mut().for_each(|prefixes| prefixes.written = false));
    let claim = a.asked().await;
    assert_eq!((&*claim.method, &*claim.path), ("POST", "/fleet/v1/prefixes"));
    claim.refuse(409);
    has_written(&a);
    claims(&mut a, "b", json!([{"file": 7, "tokens": 3000, "bytes": 5}])).await;
    a.says(|status| {
        status.prefixes.iter_mut().for_each(|prefixes| prefixes.heir = Some("b".into()));
    });
    reads(&mut a, 7).await.reply(200, "application/octet-stream", "state".into());
    b.asked().await.reply(204, "text/plain", String::new());
    is_done(&mut a).await;
    assert_eq!(outcomes(&gateway).await, [1, 0, 0, 0]);

    // It serves again, but its conversation has moved.
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/uncordon", "").await.status, 200);
    for _ in 0..4 {
        let asking = super::posts(&gateway, "/v1/chat/completions", long_chat());
        b.asked().await.answer("Hello again");
        assert_eq!(asking.await.unwrap().status, 200);
    }
    assert!(a.is_asked().is_none());
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_drained_node_is_asked_once_if_it_does_not_say_that_it_has_written_anything() {
    let gateway = Gateway::start(ON).await;
    let mut a = MockNode::join(gateway.address, saving("a", "k")).await;
    let mut b = MockNode::join(gateway.address, saving("b", "k")).await;
    eventually("both to be linked", async || (gateway.linked().await == 2).then_some(())).await;
    // Its own clients keep it busy.
    a.says(|status| status.slots_busy_elsewhere = 1);
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/cordon", "").await.status, 200);
    let asking = super::posts(&gateway, "/v1/chat/completions", long_chat());
    b.asked().await.answer("Hello");
    assert_eq!(asking.await.unwrap().status, 200);
    assert!(a.is_asked().is_none());
    a.says(|status| status.slots_busy_elsewhere = 0);
    let claim = a.asked().await;
    assert_eq!(claim.method, "POST");
    claim.refuse(409);
    for queued in [1, 0, 1] {
        a.says(|status| status.queued = queued);
        let asking = super::posts(&gateway, "/v1/chat/completions", long_chat());
        b.asked().await.answer("Hello");
        assert_eq!(asking.await.unwrap().status, 200);
    }
    assert!(a.is_asked().is_none());
    assert_eq!(outcomes(&gateway).await, [0; 4]);
}

#[tokio::test]
async fn a_drained_node_that_was_never_idle_when_it_was_asked_hands_over_when_it_stops() {
    let gateway = Gateway::start(ON).await;
    let mut a = MockNode::join(gateway.address, saving("a", "k")).await;
    let _b = MockNode::join(gateway.address, saving("b", "k")).await;
    eventually("both to be linked", async || (gateway.linked().await == 2).then_some(())).await;
    has_written(&a);
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/cordon", "").await.status, 200);
    for asked in 0..16 {
        a.says(|status| status.queued = asked);
        a.asked().await.refuse(409);
    }
    leaves(&a, 1);
    claims(&mut a, "b", json!([])).await;
    is_done(&mut a).await;
}

#[tokio::test]
async fn a_file_that_takes_longer_than_its_tokens_is_given_up_with_all_others() {
    let gateway = Gateway::start(ON).await;
    let mut a = MockNode::join(gateway.address, saving("a", "k")).await;
    let mut b = MockNode::join(gateway.address, saving("b", "k")).await;
    eventually("both to be linked", async || (gateway.linked().await == 2).then_some(())).await;
    leaves(&a, 2);
    // At 100 tokens per second, this takes a tenth of a second to compute.
    let list = json!([{"file": 1, "tokens": 10, "bytes": 9_000_000},
        {"file": 2, "tokens": 10, "bytes": 9_000_000}]);
    claims(&mut a, "b", list).await;
    let sending = reads(&mut a, 1).await.stream();
    sending.is_given_up().await;
    is_done(&mut a).await;
    assert_eq!(outcomes(&gateway).await, [0, 1, 0, 0]);
    assert!(b.is_asked().is_none(), "a broken file reaches no engine");
}

#[tokio::test]
async fn a_node_that_sends_less_or_more_than_it_said_ends_its_hand_over() {
    for body in ["short", "much too long for that"] {
        let gateway = Gateway::start(ON).await;
        let mut a = MockNode::join(gateway.address, saving("a", "k")).await;
        let _b = MockNode::join(gateway.address, saving("b", "k")).await;
        eventually("both to be linked", async || (gateway.linked().await == 2).then_some(())).await;
        leaves(&a, 2);
        let list = json!([{"file": 1, "tokens": 9000, "bytes": 10},
            {"file": 2, "tokens": 9000, "bytes": 10}]);
        claims(&mut a, "b", list).await;
        reads(&mut a, 1).await.reply(200, "application/octet-stream", body.into());
        is_done(&mut a).await;
        assert_eq!(outcomes(&gateway).await, [0, 0, 0, 1], "{body}");
    }
}

#[tokio::test]
async fn nothing_is_handed_over_unless_the_operator_wants_it_and_a_node_can_use_it() {
    for (config, key) in [("", "k"), (ON, "another key")] {
        let gateway = Gateway::start(config).await;
        let mut a = MockNode::join(gateway.address, saving("a", "k")).await;
        let mut b = MockNode::join(gateway.address, saving("b", key)).await;
        eventually("both to be linked", async || (gateway.linked().await == 2).then_some(())).await;
        leaves(&a, 2);
        let asking = super::posts(&gateway, "/v1/chat/completions", long_chat());
        b.asked().await.answer("Hello");
        assert_eq!(asking.await.unwrap().status, 200);
        assert!(a.is_asked().is_none(), "{config}");
        a.dies();
        eventually("a to be gone", async || (gateway.linked().await == 1).then_some(())).await;
        assert_eq!(outcomes(&gateway).await, [0; 4]);
    }
}

#[tokio::test]
async fn a_claim_that_is_refused_or_makes_no_sense_is_the_end_of_it() {
    for answer in [(409, "{}"), (200, "nonsense"), (200, "[{\"file\": -1}]"), (200, "[]")] {
        let gateway = Gateway::start(ON).await;
        let mut a = MockNode::join(gateway.address, saving("a", "k")).await;
        let mut b = MockNode::join(gateway.address, saving("b", "k")).await;
        eventually("both to be linked", async || (gateway.linked().await == 2).then_some(())).await;
        leaves(&a, 1);
        let claim = a.asked().await;
        assert_eq!(claim.method, "POST");
        claim.reply(answer.0, "application/json", answer.1.into());
        if answer.1 == "[]" {
            is_done(&mut a).await;
        }
        a.dies();
        eventually("a to be gone", async || (gateway.linked().await == 1).then_some(())).await;
        assert!(a.is_asked().is_none() && b.is_asked().is_none(), "{answer:?}");
        assert_eq!(outcomes(&gateway).await, [0; 4]);
    }
}
