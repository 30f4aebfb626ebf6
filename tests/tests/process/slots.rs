//! Slots saved under names, as in llama-server: what one held goes on after its agent is killed,
//! and nothing else in the folder is read or replaced.

use std::path::PathBuf;

use fleet_tests::client::{Answer, Client};
use fleet_tests::process::{Agent, Fleet, Folder, run};
use serde_json::{Value, json};

use super::prefix_disk::{Place, cached, text};

fn slots(place: &Place) -> PathBuf {
    place.folder.path().join("slots")
}

/// An agent that saves slots.
async fn serve(place: &Place, more: &[&str]) -> Agent {
    let folder = slots(place);
    place.agent(&[&["--slot-save-path", folder.to_str().unwrap()], more].concat()).await
}

async fn complete(client: &Client, prompt: &str, more: Value) -> Value {
    let mut body =
        json!({"prompt": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let response = client.post("/v1/completions", body.to_string()).await;
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

fn prompt(topic: &str) -> String {
    format!("{topic}, that is the question. ").repeat(30)
}

async fn act(client: &Client, slot: u32, action: &str, file: &str) -> Answer {
    let body = if action == "erase" { json!({}) } else { json!({"filename": file}) };
    client.post(&format!("/slots/{slot}?action={action}"), body.to_string()).await
}

async fn refused(client: &Client, slot: u32, action: &str, file: &str) -> (u16, String) {
    let response = act(client, slot, action, file).await;
    (response.status, response.json()["error"]["code"].as_str().unwrap().to_string())
}

#[tokio::test]
async fn a_conversation_that_was_saved_continues_after_its_agent_was_killed() {
    for (shape, more) in
        [("tiny", &[][..]), ("tiny-hybrid", &[]), ("tiny", &["--prefix-disk-mib", "64"])]
    {
        let place = Place::new(shape);
        let agent = serve(&place, more).await;
        let client = &agent.client;
        let first = complete(client, &prompt("To be or not to be"), json!({})).await;
        complete(client, &prompt("Whether it is nobler"), json!({"id_slot": 1})).await;
        let held = first["usage"]["total_tokens"].as_u64().unwrap() - 1;
        let saved = act(client, 0, "save", "hamlet 1.bin").await.json();
        let bytes = std::fs::metadata(slots(&place).join("hamlet 1.bin")).unwrap().len();
        assert_eq!(
            (&saved["id_slot"], &saved["filename"], &saved["n_saved"], &saved["n_written"]),
            (&json!(0), &json!("hamlet 1.bin"), &json!(held), &json!(bytes)),
            "{shape}"
        );
        assert!(saved["timings"]["save_ms"].as_f64().unwrap() > 0.0);
        let next = format!("{}{}. And then? ", prompt("To be or not to be"), text(&first));
        let expected = complete(client, &next, json!({})).await;
        agent.kill();
        drop(agent);

        let agent = serve(&place, more).await;
        let client = &agent.client;
        let restored = act(client, 1, "restore", "hamlet 1.bin").await.json();
        assert_eq!(
            (&restored["id_slot"], &restored["n_restored"], &restored["n_read"]),
            (&json!(1), &json!(held), &json!(bytes)),
            "{shape}"
        );
        assert!(restored["timings"]["restore_ms"].as_f64().unwrap() > 0.0);
        let second = complete(client, &next, json!({})).await;
        assert_eq!((text(&second), cached(&second)), (text(&expected), held), "{shape}");
        // It is slot 1's until something else is.
        assert_eq!(act(client, 1, "save", "copy").await.json()["n_saved"], held, "{shape}");
    }
}

#[tokio::test]
async fn an_erased_slot_and_its_conversation_are_forgotten() {
    let place = Place::new("tiny");
    let agent = serve(&place, &[]).await;
    let client = &agent.client;
    let asked = prompt("To be or not to be");
    let first = complete(client, &asked, json!({"id_slot": 1})).await;
    assert!(cached(&complete(client, &asked, json!({"max_tokens": 1})).await) > 0);
    let erased = act(client, 1, "erase", "").await.json();
    let held = first["usage"]["total_tokens"].as_u64().unwrap() - 1;
    assert_eq!(erased, json!({"id_slot": 1, "n_erased": held}));
    assert_eq!(act(client, 0, "erase", "").await.status, 200);
    assert_eq!(cached(&complete(client, &asked, json!({"max_tokens": 1})).await), 0);
    assert_eq!(refused(client, 1, "erase", "").await, (409, "slot_empty".into()));
}

#[tokio::test]
async fn requests_about_slots_that_cannot_be_met_say_why_and_change_nothing() {
    let place = Place::new("tiny");
    let agent = serve(&place, &["--slot-save-mib", "8"]).await;
    let client = &agent.client;
    assert_eq!(refused(client, 0, "save", "a").await, (409, "slot_empty".into()));
    let asked = prompt("To be or not to be");
    complete(client, &asked, json!({})).await;
    assert_eq!(act(client, 0, "save", "a").await.status, 200);
    let whole = std::fs::read(slots(&place).join("a")).unwrap();

    let wrong = (400, "invalid_value".to_string());
    for name in ["../a", "", ".a", "a/b", &"x".repeat(129)] {
        assert_eq!(refused(client, 0, "save", name).await, wrong, "{name}");
        assert_eq!(refused(client, 0, "restore", name).await, wrong, "{name}");
    }
    for path in [
        "/slots/2?action=save",
        "/slots/x?action=save",
        "/slots/-1?action=save",
        "/slots/0?action=melt",
        "/slots/0",
    ] {
        let response = client.post(path, json!({"filename": "a"}).to_string()).await;
        assert_eq!(
            (response.status, &response.json()["error"]["code"]),
            (400, &json!("invalid_value"))
        );
    }
    for body in ["", "{}", "[]", "{\"filename\": 1}", "\u{0}"] {
        assert_eq!(
            client.post("/slots/0?action=save", body.to_string()).await.status,
            400,
            "{body}"
        );
    }
    let out_of_range = json!({"prompt": "x", "id_slot": 2}).to_string();
    assert_eq!(
        client.post("/v1/completions", out_of_range).await.json()["error"]["param"],
        "id_slot"
    );
    assert_eq!(client.get("/slots/0").await.status, 405);
    assert_eq!(refused(client, 0, "restore", "b").await, (404, "slot_file_not_found".into()));

    // Others' files, damaged ones, and the end of the room for them.
    std::fs::write(slots(&place).join("letter"), "Dear Ada,").unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(slots(&place).join("damaged"), damaged).unwrap();
    for name in ["letter", "damaged"] {
        let unusable = (400, "slot_file_unusable".to_string());
        assert_eq!(refused(client, 0, "restore", name).await, unusable, "{name}");
    }
    assert_eq!(refused(client, 0, "save", "letter").await.1, "slot_file_unusable");
    std::fs::write(slots(&place).join("large"), vec![0; 8 << 20]).unwrap();
    assert_eq!(refused(client, 0, "save", "b").await, (409, "slot_folder_full".into()));
    std::fs::remove_file(slots(&place).join("large")).unwrap();
    assert_eq!(std::fs::read(slots(&place).join("a")).unwrap(), whole);
    assert_eq!(act(client, 0, "restore", "a").await.status, 200);
    assert_eq!(agent.metric("node_engine_restarts_total").await, 0.0);

    // Another key type makes other states.
    drop(agent);
    let agent = serve(&place, &["--kv-type", "q8_0"]).await;
    let code = refused(&agent.client, 0, "restore", "a").await;
    assert_eq!(code, (400, "slot_file_unusable".into()));
}

#[tokio::test]
async fn slots_are_saved_only_where_the_operator_allows_it() {
    let plain = Agent::start(&[]).await;
    let told = refused(&plain.client, 0, "save", "a").await;
    assert_eq!(told, (501, "slots_not_saved".into()));
    // Without it, the number of a slot means nothing.
    let question = json!({"prompt": "x", "max_tokens": 1, "id_slot": 99}).to_string();
    assert_eq!(plain.client.post("/v1/completions", question).await.status, 200);
    let file = Folder::new();
    let path = file.write("taken", "");
    let arguments = ["serve", "--slot-save-path", path.to_str().unwrap(), "--model"];
    let model = fleet_tests::demo_model();
    let failed = run("flotilla-agent", &[&arguments[..], &[model.to_str().unwrap()]].concat());
    assert_eq!(failed.code, Some(65), "{failed:?}");
    assert!(failed.stderr.contains("--slot-save-path"), "{failed:?}");
}

#[tokio::test]
async fn a_gateways_clients_reach_no_slot() {
    let fleet = Fleet::start("").await;
    let slots = Folder::new();
    let saves = ["--slot-save-path", slots.path().to_str().unwrap()];
    let agent = fleet.join("one", &saves).await;
    let mut asked = fleet_tests::chat("What is the capital of France?");
    asked["id_slot"] = 99.into();
    assert_eq!(fleet.client.chat(&asked).await.status, 200);
    assert_eq!(act(&fleet.client, 0, "save", "a").await.status, 404);
    // What they ask is remembered for no slot of the agent's own port.
    assert_eq!(refused(&agent.client, 0, "save", "a").await, (409, "slot_empty".into()));
    assert_eq!(std::fs::read_dir(slots.path()).unwrap().count(), 0);
}
