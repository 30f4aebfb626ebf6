//! Usage in the store: budgets that outlive the gateway, and `/admin/v1/usage`.

use fleet_tests::client::{Answer, Client};
use fleet_tests::mock_node::MockNode;
use fleet_tests::postgres::{database_of, psql};
use fleet_tests::process::Folder;
use fleet_tests::{chat, eventually};
use inference_protocol::resume::Usage;
use serde_json::json;
use tokio::task::JoinHandle;

use super::batches::{ADA, Kept};

const PATH: &str = "/admin/v1/usage";

/// Asks in the background.
fn asks(client: &Client) -> JoinHandle<Answer> {
    let client = client.clone();
    tokio::spawn(async move { client.chat(&chat("Hi")).await })
}

/// Answers the next request with so many tokens.
async fn answers(node: &mut MockNode, prompt: u64, completion: u64) {
    let stream = node.asked().await.stream();
    stream.note(&(0..completion as u32).collect::<Vec<_>>()).await;
    let message = json!({"role": "assistant", "content": "Hi"});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let used = json!({"prompt_tokens": prompt, "completion_tokens": completion});
    let whole = json!({"choices": [choice], "usage": used});
    stream.close_marked(Usage { prompt, completion, cached: 2 }, &whole.to_string()).await;
}

/// The rows of the table that has `text`.
async fn rows_with(kept: &Kept, query: &str, text: &str) -> Vec<String> {
    let answer = kept.gateway.admin.get(&format!("{PATH}?{query}")).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let table = String::from_utf8(answer.body.to_vec()).unwrap();
    table.lines().filter(|line| line.contains(text)).map(String::from).collect()
}

#[tokio::test]
async fn usage_and_budgets_outlive_the_gateway_without_a_state_file() {
    let folder = Folder::new();
    let ada = format!("{{name: ada, sha256: {ADA}, tokens_per_month: 30}}, ");
    let kept = Kept::start_with(folder.path(), "", &ada).await;
    let mut node = kept.gateway.node("a", 1).await;
    let asked = asks(&kept.ada);
    answers(&mut node, 20, 7).await;
    assert_eq!(asked.await.unwrap().status, 200);
    let rows = eventually("a row of the usage", async || {
        Some(rows_with(&kept, "", ",ada,").await).filter(|rows| !rows.is_empty())
    })
    .await;
    assert!(
        rows.len() == 1 && rows[0].ends_with(",ada,standard,flotilla-demo,,20,2,7,0"),
        "{rows:?}"
    );
    let minutes = rows_with(&kept, "by=minute", ",ada,").await;
    assert_eq!(minutes.len(), 1);
    assert_eq!((&minutes[0][..14], &minutes[0][16..]), (&rows[0][..14], &rows[0][16..]));
    assert!(minutes[0][14..].starts_with(|c: char| c.is_ascii_digit()), "{minutes:?}");
    kept.stop().await;

    let kept = Kept::start_with(folder.path(), "", &ada).await;
    let mut node = kept.gateway.node("a", 1).await;
    let asked = asks(&kept.ada);
    answers(&mut node, 20, 1).await;
    assert_eq!(asked.await.unwrap().status, 200, "27 of 30 are used");
    kept.stop().await;

    let kept = Kept::start_with(folder.path(), "", &ada).await;
    let _node = kept.gateway.node("a", 1).await;
    let refused = asks(&kept.ada).await.unwrap();
    assert_eq!((refused.status, refused.error_code().as_str()), (429, "insufficient_quota"));
    let rows = rows_with(&kept, "format=focus&currency=EUR", "ada").await;
    assert!(rows.len() == 2 && rows.iter().all(|row| row.contains(",EUR,")), "{rows:?}");
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn usage_is_for_operators_who_say_which_days_they_mean() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let admin = &kept.gateway.admin;
    assert_eq!(admin.with_key(None).get(PATH).await.status, 401);
    assert_eq!(admin.with_key(Some("key-of-ada")).get(PATH).await.status, 401);
    assert_eq!(admin.post(PATH, "").await.status, 405);
    for (query, param) in
        [("from=x", "from"), ("from=2026-02-01&to=2026-01-01", "to"), ("format=x", "format")]
    {
        let refused = admin.get(&format!("{PATH}?{query}")).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    let empty = admin.get(&format!("{PATH}?from=1971-01-01&to=1972-01-01")).await;
    assert_eq!(empty.header("content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(String::from_utf8_lossy(&empty.body).lines().count(), 1);
    let without = super::Gateway::start("").await;
    assert_eq!(without.admin.get(PATH).await.error_code(), "store_disabled");
}

#[tokio::test]
async fn a_table_has_at_most_a_hundred_thousand_rows() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let minute = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / 60;
    eventually("the tables to be there", async || {
        (kept.gateway.admin.get(PATH).await.status == 200).then_some(())
    })
    .await;
    let insert = format!(
        "WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 100000) \
         INSERT INTO usage SELECT {minute}, 't' || n, 'batch', 'm', '', 1, 0, 1, 0 FROM counted"
    );
    change(folder.path(), &insert);
    let table = kept.gateway.admin.get(PATH).await;
    assert_eq!(table.status, 200);
    assert_eq!(String::from_utf8_lossy(&table.body).lines().count(), 100_001, "and a head");
    change(
        folder.path(),
        &format!("INSERT INTO usage VALUES ({minute}, 'a', 'batch', 'm', '', 1, 0, 1, 0)"),
    );
    let refused = kept.gateway.admin.get(PATH).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("from")));
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("100000 rows"));
}

/// Changes the store in a folder behind its gateway's back.
fn change(folder: &std::path::Path, sql: &str) {
    if let Some(url) = database_of(folder) {
        psql(&url, sql).unwrap();
        return;
    }
    let database = rusqlite::Connection::open(folder.join("store.sqlite")).unwrap();
    database.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    database.execute(sql, []).unwrap();
}
