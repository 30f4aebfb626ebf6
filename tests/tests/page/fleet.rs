//! Keys, nodes that come and go, load, and what operators do to nodes.

use fleet_tests::browser::Browser;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{ADMIN_KEY, Fleet, Folder};
use fleet_tests::{chat, eventually, streamed};
use inference_protocol::resume::Usage;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{QUIET, UNLOCK, address, is_clean, joins_at, look_at, row_shows};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_for_everybody_and_what_it_shows_is_not() {
    let fleet = Fleet::start(QUIET).await;
    let stranger = fleet.admin.with_key(None);
    let page = stranger.get("/").await;
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    for path in ["/admin/v1/overview", "/admin/v1/recent", "/admin/v1/nodes"] {
        assert_eq!(stranger.get(path).await.error_code(), "invalid_admin_key", "{path}");
        assert_eq!(fleet.admin.get(path).await.status, 200, "{path}");
        assert_eq!(fleet.client.get(path).await.status, 404, "{path} of the public listener");
    }
    assert_eq!(fleet.client.get("/page/main.js").await.status, 404);
    let asked = chat("Hello").to_string();
    let path = "/admin/v1/chat";
    assert_eq!(stranger.post(path, asked.clone()).await.error_code(), "invalid_admin_key");
    let client = fleet.admin.with_key(Some(&fleet.key));
    assert_eq!(client.post(path, asked).await.error_code(), "invalid_admin_key", "a tenant's");
    assert_eq!(fleet.admin.get(path).await.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_asked_for_once_and_kept_in_the_tab_only() {
    let fleet = Fleet::start(QUIET).await;
    let Some(mut browser) = Browser::start() else { return };
    browser.open(&address(&fleet), json!({}));
    browser.run(UNLOCK, "not-the-key");
    browser.shows("The admin key is wrong.");
    // Chromium tells of every answer with a status like that.
    let told = std::mem::take(&mut browser.problems);
    assert!(told.len() == 1 && told[0].contains("401"), "{told:?}");
    browser.run(UNLOCK, ADMIN_KEY);
    browser.shows("No nodes are linked.");
    browser.run("await page.reload()", Value::Null);
    browser.shows("No nodes are linked.");
    let kept = browser.run(
        "const kept = await page.evaluate(() => [localStorage.length, document.cookie, sessionStorage.length]);
         return [...kept, page.url().includes(arg)]",
        ADMIN_KEY,
    );
    assert_eq!(kept, json!([0, "", 1, false]));
    browser.run("await page.getByRole('button', { name: 'Forget key' }).click()", Value::Null);
    browser.run("await page.getByLabel('Key', { exact: true }).waitFor()", Value::Null);
    assert_eq!(browser.run("return page.evaluate(() => sessionStorage.length)", Value::Null), 0);
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_appear_change_and_disappear() {
    let fleet = Fleet::start(QUIET).await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    let mut status = healthy("alpha", 2);
    status.decode_tokens_per_second = Some(18.4);
    let alpha = MockNode::join(joins_at(&fleet), status).await;
    row_shows(&mut browser, "alpha", "ready");
    row_shows(&mut browser, "alpha", "0/2");
    row_shows(&mut browser, "alpha", "18.4");
    let _beta = MockNode::join(joins_at(&fleet), healthy("beta", 30)).await;
    row_shows(&mut browser, "beta", "0/30");
    alpha.says(|status| status.slots_busy_elsewhere = 1);
    row_shows(&mut browser, "alpha", "1/2");
    browser.shows("1/32");
    alpha.dies();
    row_shows(&mut browser, "alpha", "gone");
    browser.becomes("return document.title.startsWith('1/1 ready')", Value::Null);
    let _again = MockNode::join(joins_at(&fleet), healthy("alpha", 4)).await;
    row_shows(&mut browser, "alpha", "0/4");
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_in_the_background_is_counted_while_there_is_a_store() {
    let folder = Folder::new();
    let store = format!("{QUIET}store: {{dir: '{}'}}\n", folder.path().display());
    let fleet = Fleet::start(&store).await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    let job = json!({"url": "/v1/chat/completions", "body": chat("Hello")}).to_string();
    assert_eq!(fleet.client.post("/v1/jobs", job).await.status, 202);
    let row = "const row = [...document.querySelectorAll('#store-table tbody tr')].find((r) => r.cells[0].textContent === 'responses, jobs'); return";
    browser.becomes(
        &format!("{row} row?.cells[1].textContent === '1' && row.cells[2].textContent !== '–'"),
        Value::Null,
    );
    browser.becomes(
        "return document.getElementById('store-state').textContent.endsWith('stored')",
        Value::Null,
    );
    let mut node = MockNode::join(joins_at(&fleet), healthy("alpha", 1)).await;
    node.asked().await.answer("Hi");
    browser.becomes(&format!("{row} row.cells[1].textContent === '0'"), Value::Null);
    let plain = Fleet::start(QUIET).await;
    let Some(mut browser) = look_at(&plain, json!({})) else { return };
    browser.becomes("return document.getElementById('store-card').hidden", Value::Null);
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn load_shows_in_slots_queue_tenants_and_charts() {
    let fleet = Fleet::start(QUIET).await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    let mut node = MockNode::join(joins_at(&fleet), healthy("alpha", 1)).await;
    fleet.wait_for_slots("alpha").await;
    let client = fleet.client.with_header("x-flotilla-class", "batch");
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.stream(&streamed(chat("Hello"))).await.finish().await })
    };
    let first = ask();
    let asked = node.asked().await;
    let second = ask();
    row_shows(&mut browser, "alpha", "1/1");
    let class = "const row = [...document.querySelectorAll('#queue-table tbody tr')].find((r) => r.cells[0].textContent === 'batch'); return";
    browser.becomes(
        &format!("{class} row.cells[1].textContent === '1' && row.cells[2].textContent !== '–'"),
        Value::Null,
    );
    answer(asked.stream()).await;
    answer(node.asked().await.stream()).await;
    assert!(first.await.unwrap().done && second.await.unwrap().done);
    row_shows(&mut browser, "alpha", "0/1");
    let tenant = "const row = [...document.querySelectorAll('#tenant-table tbody tr')].find((r) => r.cells[0].textContent === 'test'); return";
    browser.becomes(
        &format!("{tenant} row.cells[2].textContent === '2' && row.cells[5].textContent === '60'"),
        Value::Null,
    );
    // Steps are told when they are over.
    browser
        .becomes("return document.querySelectorAll('figure path.line').length >= 5", Value::Null);
    let table = browser.run(
        "await page.locator('figure', { hasText: 'Tokens per second' }).getByText('As a table').click();
         return page.locator('figure', { hasText: 'Tokens per second' }).locator('tbody').innerText()",
        Value::Null,
    );
    assert!(table.as_str().unwrap().contains("ago"), "{table}");
    let recent = fleet.admin.get("/admin/v1/recent").await.json();
    let steps = recent["steps"].as_array().unwrap();
    let sum = |key: &str| steps.iter().map(|s| s[key].as_f64().unwrap() * 5.0).sum::<f64>();
    assert!((sum("requests") - 2.0).abs() < 0.01, "{recent}");
    assert!((sum("completion_tokens") - 60.0).abs() < 0.01, "{recent}");
    assert!(steps.iter().any(|step| step["first_token_p95"].as_f64().is_some()), "{recent}");
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn external_endpoints_show_what_they_cost() {
    let (url, mut gpu) = MockNode::external().await;
    let prices =
        "prompt_price_per_million: 1, completion_price_per_million: 4, spend_per_day_max: 2.0";
    let entry = format!("{{name: gpu, url: '{url}', models: {{big: big}}, {prices}}}");
    let fleet = Fleet::start(&format!("{QUIET}external: [{entry}]\n")).await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    let row = "const row = document.querySelector('#external-table tbody tr'); return row?.textContent.includes(arg)";
    browser.becomes(row, "ready");
    browser.becomes(row, "0 of 2.00");
    let client = fleet.client.clone();
    let asking = tokio::spawn(async move {
        let mut request = chat("Hello");
        request["model"] = json!("big");
        client.chat(&request).await.status
    });
    let usage =
        json!({"prompt_tokens": 500_000, "completion_tokens": 250_000, "total_tokens": 750_000});
    let message = json!({"role": "assistant", "content": "Hello"});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let answer = json!({"choices": [choice], "usage": usage}).to_string();
    gpu.asked().await.reply(200, "application/json", answer);
    assert_eq!(asking.await.unwrap(), 200);
    browser.becomes(row, "1.50 of 2.00");
    let tenant = "const row = [...document.querySelectorAll('#tenant-table tbody tr')].find((r) => r.cells[0].textContent === 'test'); return";
    browser.becomes(&format!("{tenant} row.cells[6].textContent === '1.50'"), Value::Null);
    is_clean(&browser);
}

/// Thirty tokens.
async fn answer(stream: fleet_tests::mock_node::Streaming) {
    // As many tokens as it reports: others do not count.
    let tokens: Vec<u32> = (1..=30).collect();
    stream.say_marked(&tokens, "Hello").await;
    let usage = Usage { prompt: 20, completion: 30, cached: 0 };
    let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    stream.send(format!("data: {end}\n\n")).await;
    stream.close_marked(usage, "[DONE]").await;
}

/// Tab, as long as it takes to get to the button of that name.
const TAB_TO: &str = "
    for (let i = 0; i < 60; i += 1) {
      await page.keyboard.press('Tab');
      if (await page.evaluate(() => document.activeElement.ariaLabel) === arg) return;
    }
    throw new Error(`no Tab leads to ${arg}`);";

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_cordoned_drained_and_let_back_in_by_keyboard() {
    let fleet = Fleet::start(QUIET).await;
    let mut node = MockNode::join(joins_at(&fleet), healthy("alpha", 2)).await;
    fleet.wait_for_slots("alpha").await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    row_shows(&mut browser, "alpha", "ready");
    let cordoned = async || {
        fleet.admin.get("/admin/v1/nodes").await.json()["nodes"][0]["cordoned"].as_bool().unwrap()
    };
    browser.run(TAB_TO, "cordon alpha");
    browser.run("await page.keyboard.press('Enter')", Value::Null);
    browser.shows("Cordon alpha?");
    browser.run("await page.keyboard.press('Escape')", Value::Null);
    let focused = "return page.evaluate(() => document.activeElement.ariaLabel)";
    assert_eq!(browser.run(focused, Value::Null), "cordon alpha", "the focus comes back");
    assert!(!cordoned().await);
    // As when a question follows another at once: that the first was closed is told late.
    let late = "await page.keyboard.press('Enter');
        await page.evaluate(() => document.getElementById('confirm').dispatchEvent(new Event('close')));
        await page.keyboard.press('Tab'); await page.keyboard.press('Enter');";
    let confirm = "await page.keyboard.press('Enter'); await page.keyboard.press('Tab'); await page.keyboard.press('Enter');";
    browser.run(late, Value::Null);
    row_shows(&mut browser, "alpha", "cordoned");
    browser.shows("alpha is cordoned.");
    assert!(cordoned().await);
    assert_eq!(browser.run(focused, Value::Null), "uncordon alpha");
    browser.run(confirm, Value::Null);
    browser.shows("alpha is uncordoned.");
    assert!(!cordoned().await);
    let client = fleet.client.clone();
    let asking = tokio::spawn(async move { client.chat(&chat("Hello")).await });
    let asked = node.asked().await;
    row_shows(&mut browser, "alpha", "1/2");
    browser.run("await page.getByRole('button', { name: 'drain alpha' }).focus()", Value::Null);
    browser.run(confirm, Value::Null);
    row_shows(&mut browser, "alpha", "draining");
    browser.shows("alpha is draining: 1 request left.");
    asked.answer("Hello");
    browser.shows("alpha is drained: it runs no requests of this gateway.");
    assert_eq!(asking.await.unwrap().status, 200);
    is_clean(&browser);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_is_lost_is_told_of_and_found_again() {
    let fleet = Fleet::start(QUIET).await;
    let Some(mut browser) = look_at(&fleet, json!({})) else { return };
    fleet.server.signal(Signal::STOP);
    browser.shows("connection lost, reconnecting");
    fleet.server.signal(Signal::CONT);
    browser.shows("live");
    eventually("the page to ask on", async || {
        (fleet.health().await["requests_in_flight"] == 0).then_some(())
    })
    .await;
    is_clean(&browser);
}
