//! The MTP head in a model's file changes when tokens are computed, and nothing else.

use fleet_tests::process::{Agent, Fleet, Folder, run};
use fleet_tests::streamed;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::draft_model::{choice, compare, file, request};

/// Models of which each token follows from the one before, and whose heads know most of them: with
/// a recurrent state, without and with experts, with attention alone, and with one latent for keys
/// and values.
fn chains(folder: &Folder) -> [String; 5] {
    ["tiny-delta-mtp", "tiny-delta-experts-mtp", "tiny-next-mtp", "tiny-glm-mtp", "tiny-mla-mtp"]
        .map(|shape| file(folder, shape, &["--chain", "100", "--head", "80"]))
}

#[tokio::test]
async fn a_head_changes_no_token_whatever_is_asked_beside_it() {
    let folder = Folder::new();
    for model in chains(&folder) {
        compare(&model, &[]).await;
    }
    // Its guesses are wrong more often than not.
    compare(&file(&folder, "tiny-delta-mtp", &[]), &[]).await;
}

/// So hot that a text repeats nothing.
fn hot() -> Value {
    let mut hot = request(2.0, 1);
    for (name, value) in [("top_k", 0.0), ("top_p", 1.0), ("min_p", 0.0)] {
        hot[name] = json!(value);
    }
    hot
}

#[tokio::test]
async fn a_head_drafts_unless_it_is_left_out_or_replaced() {
    let folder = Folder::new();
    let model = file(&folder, "tiny-delta-mtp", &[]);
    let draft = file(&folder, "tiny-delta-mtp", &["--layers", "4"]);
    let cases: [(&[&str], bool, bool); 4] = [
        (&[], true, true),
        (&["--no-mtp"], false, false),
        (&["--no-speculation"], false, false),
        (&["--draft-model", &draft], false, true),
    ];
    for (flags, is_loaded, drafts) in cases {
        let named = [&["--model-name", "m"], flags].concat();
        let agent = Agent::start_with_model(model.as_ref(), &named).await;
        choice(&agent, &hot()).await;
        let drafted = agent.metric("node_drafted_tokens_total").await;
        assert_eq!(drafted > 0.0, drafts, "{drafted} with {flags:?}");
        agent.server.wait_for_line("engine ready");
        assert_eq!(agent.server.log().contains("MTP head loaded"), is_loaded, "{flags:?}");
    }
}

#[tokio::test]
async fn a_response_continues_on_a_node_that_does_not_use_the_head() {
    let folder = Folder::new();
    for model in chains(&folder) {
        let fleet = Fleet::start("").await;
        let named = ["--model-name", "m"];
        let without = [&named[..], &["--no-mtp"]].concat();
        let one = fleet.join_with_model("one", model.as_ref(), &named).await;
        let mut request = request(1.5, 2);
        request["logprobs"] = json!(false);
        request["max_tokens"] = json!(300);
        let whole = one.client.chat(&request).await.content();
        let mut stream = fleet.client.stream(&streamed(request)).await;
        assert!(stream.next_chunk().await);
        // It would be done before anybody could go on.
        kill_process(one.engine(), Signal::STOP).unwrap();
        let _two = fleet.join_with_model("two", model.as_ref(), &without).await;
        one.kill();
        let said = stream.finish().await;
        assert_eq!((said.text, said.done, said.errors.len()), (whole, true, 0), "{model}");
    }
}

#[test]
fn a_head_counts_in_the_memory_plan_and_can_be_checked() {
    let folder = Folder::new();
    let model = file(&folder, "qwen3.5-0.8b-mtp", &[]);
    let needed = |flags: &[&str]| {
        let ran = run("flotilla-agent", &[&["plan", &model, "--json", "--quick"], flags].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let plan: Value = serde_json::from_str(&ran.stdout).unwrap();
        plan["needed_bytes"].as_u64().unwrap()
    };
    let (with, without) = (needed(&[]), needed(&["--no-mtp"]));
    assert!(with > without + (20 << 20), "{with} and {without}");
    let tiny = file(&folder, "tiny-glm-mtp", &[]);
    let ran = run("flotilla-agent", &["check", &tiny]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
