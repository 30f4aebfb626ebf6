//! The picture of the README: `make screenshot`. A real fleet under real load, in which a node has
//! just died and another is cordoned.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet_tests::client::Client;
use fleet_tests::process::{Fleet, run};
use fleet_tests::{questions, streamed};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::interval;

use super::{is_clean, look_at, row_shows};

/// So long there is load before the picture is taken.
const LOAD: Duration = Duration::from_secs(200);
/// Between two requests of a tenant, in tenths of a second, at the quietest time.
const TENANTS: [(&str, u64, &str); 3] =
    [("chat-app", 5, "interactive"), ("newsletter", 9, "batch"), ("shop", 7, "standard")];

/// Asks questions until it is aborted, in waves.
async fn load(client: Client, pause: u64) {
    let questions = Arc::new(questions());
    let (mut ticks, begun, mut running) =
        (interval(Duration::from_millis(pause * 25)), Instant::now(), JoinSet::new());
    for at in 0.. {
        ticks.tick().await;
        let wave = 1.5 + (begun.elapsed().as_secs_f64() / 14.0).sin();
        // Of the quarters of a pause, more or fewer are used.
        if (at % 4) as f64 >= wave * 1.6 {
            continue;
        }
        let (client, questions) = (client.clone(), questions.clone());
        running.spawn(async move {
            let (_, request, _) = &questions[(at * 7 + pause as usize) % questions.len()];
            let mut request = streamed(request.clone());
            request["max_tokens"] = json!(120);
            request["ignore_eos"] = json!(at % 3 > 0);
            let _ = client.stream(&request).await.finish().await;
        });
        while running.try_join_next().is_some() {}
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes a picture; takes minutes"]
async fn the_fleet_page() {
    let Some(path) = std::env::var_os("FLOTILLA_SCREENSHOT") else { return };
    let (mut keys, mut entries) = (Vec::new(), String::new());
    for (name, ..) in TENANTS {
        let arguments = ["key", "new", "--name", name, "--tokens-per-minute", "200000"];
        let made = run("flotilla-gateway", &arguments).stdout;
        let (head, entry) = made.split_once("keys:\n").unwrap();
        keys.push(head.lines().nth(1).unwrap().to_string());
        entries += entry;
    }
    let fleet = Fleet::start(&format!("{entries}nodes: {{join_key_file: join.key}}\n")).await;
    let (_fra, _hel) =
        (fleet.join("fra-1", &[]).await, fleet.join("hel-1", &["--slots", "2"]).await);
    let (_nbg, nyc) = (fleet.join("nbg-1", &[]).await, fleet.join("nyc-1", &[]).await);
    let mut tasks = JoinSet::new();
    for ((_, pause, class), key) in TENANTS.iter().zip(&keys) {
        let client = fleet.client.with_key(Some(key)).with_header("x-flotilla-class", class);
        tasks.spawn(load(client, *pause));
    }
    let mut browser = look_at(&fleet, json!({"height": 1000})).expect("chromium and node");
    row_shows(&mut browser, "nyc-1", "ready");
    let mut ticks = interval(LOAD);
    ticks.tick().await;
    ticks.tick().await;
    assert_eq!(fleet.admin.post("/admin/v1/nodes/hel-1/cordon", "").await.status, 200);
    nyc.kill();
    browser.run(
        "await page.getByRole('textbox', { name: 'Message' }).fill('What is the capital of France?');
         await page.keyboard.press('Enter');
         await page.getByText('tokens/s ·').waitFor();",
        Value::Null,
    );
    row_shows(&mut browser, "nyc-1", "gone");
    row_shows(&mut browser, "hel-1", "cordoned");
    browser.run(
        "await page.evaluate(() => document.activeElement.blur());
         await page.screenshot({ path: arg, fullPage: true })",
        path.to_str().unwrap(),
    );
    tasks.abort_all();
    is_clean(&browser);
}
