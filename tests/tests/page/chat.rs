//! The playground.

use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::Fleet;
use inference_protocol::resume::Usage;
use serde_json::{Value, json};

use super::{QUIET, is_clean, joins_at, look_at};

const ASK: &str = "
    await page.getByRole('textbox', { name: 'Message' }).fill(arg);
    await page.keyboard.press('Enter');";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_streams_and_tells_its_node_and_speed() {
    let fleet = Fleet::start(QUIET).await;
    let mut node = MockNode::join(joins_at(&fleet), healthy("alpha", 1)).await;
    fleet.wait_for_slots("alpha").await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    browser
        .becomes("return document.querySelector('#model').value === 'flotilla-demo'", Value::Null);
    browser.run(ASK, "Say <b>hello</b>");
    let asked = node.asked().await;
    assert_eq!(asked.body["messages"][0]["content"], "Say <b>hello</b>");
    assert_eq!(asked.tenant, "operators:chat");
    let stream = asked.stream();
    stream.say_marked(&[1], "<i>He").await;
    browser.shows("<i>He");
    browser.shows("node alpha · first token");
    stream.say_marked(&[2], "llo</i>").await;
    browser.shows("<i>Hello</i>");
    let usage = Usage { prompt: 9, completion: 2, cached: 0 };
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}});
    stream.send(format!("data: {end}\n\n")).await;
    stream.close_marked(usage, "[DONE]").await;
    browser.becomes(
        "const facts = document.querySelector('.facts').textContent;
         return /^node alpha · first token .+ · [0-9.,]+ tokens\\/s · 2 tokens$/.test(facts)",
        Value::Null,
    );
    browser.run(ASK, "And then?");
    let asked = node.asked().await;
    let roles: Vec<&Value> =
        asked.body["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    asked.answer("no stream");
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_ends_an_answer_at_its_node() {
    let fleet = Fleet::start(QUIET).await;
    let mut node = MockNode::join(joins_at(&fleet), healthy("alpha", 1)).await;
    fleet.wait_for_slots("alpha").await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    browser.run(ASK, "Count for ever");
    let stream = node.asked().await.stream();
    stream.say_marked(&[1], "1 2 3").await;
    browser.shows("1 2 3");
    // The focus is on it.
    browser.run("await page.keyboard.press('Enter')", Value::Null);
    stream.is_given_up().await;
    browser.shows("stopped");
    assert_eq!(browser.run("return page.locator('#send').isEnabled()", Value::Null), true);
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_that_is_refused_says_why() {
    let fleet = Fleet::start(QUIET).await;
    let mut node = MockNode::join(joins_at(&fleet), healthy("alpha", 1)).await;
    fleet.wait_for_slots("alpha").await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    browser
        .becomes("return document.querySelector('#model').value === 'flotilla-demo'", Value::Null);
    browser.run(ASK, "Hello?");
    node.asked().await.refuse(400);
    browser.shows("failed: no");
    let told = std::mem::take(&mut browser.problems);
    assert!(told.len() == 1 && told[0].contains("400"), "{told:?}");
    browser.run(ASK, "Hello again");
    let stream = node.asked().await.stream();
    stream.say_marked(&[1], "Hel").await;
    stream.fails("out_of_luck").await;
    browser.shows("failed: the node failed: no");
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_node_answers() {
    let fleet = Fleet::start(QUIET).await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    let _node = fleet.join("real", &[]).await;
    browser
        .becomes("return document.querySelector('#model').value === 'flotilla-demo'", Value::Null);
    browser.run(ASK, "What is the capital of France?");
    browser.shows("Paris");
    browser.shows("node real · first token");
    is_clean(&browser);
}
