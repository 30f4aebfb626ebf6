//! What the gateway tells of requests that end badly, and of its nodes.

use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{Fleet, metric};
use fleet_tests::{chat, eventually, streamed};
use flotilla_gateway::scheduler::routing_stats::Forecast;
use inference_protocol::fleet::Vitals;

async fn told(fleet: &Fleet) -> String {
    String::from_utf8(fleet.admin.get("/metrics").await.body.to_vec()).unwrap()
}

async fn tells(fleet: &Fleet, line: &str) {
    eventually(line, async || told(fleet).await.lines().any(|l| l == line).then_some(())).await;
}

#[tokio::test]
async fn a_request_that_waits_in_vain_counts_for_its_model_and_as_our_fault() {
    let fleet = Fleet::start("").await;
    let mut a = MockNode::join(fleet.client.address(), healthy("a", 1)).await;
    fleet.wait_for_slots("a").await;
    let client = fleet.client.clone();
    let holds = tokio::spawn(async move { client.chat(&chat("one")).await });
    let held = a.asked().await;
    let hurried = fleet.client.with_header("x-flotilla-deadline-ms", "50");
    assert_eq!(hurried.chat(&chat("two")).await.status, 503);
    let line = "gateway_requests_total{api=\"chat_completions\",class=\"standard\",\
                endpoint_kind=\"none\",fault=\"gateway\",model=\"flotilla-demo\",\
                outcome=\"queue_timeout\",tenant=\"test\"} 1";
    tells(&fleet, line).await;
    tells(&fleet, "gateway_refusals_total{reason=\"queue_timeout\",tenant=\"test\"} 1").await;
    held.answer("done");
    assert_eq!(holds.await.unwrap().status, 200);
}

#[tokio::test]
async fn whether_waits_were_foretold_rightly_is_told() {
    let fleet = Fleet::start("").await;
    let mut a = MockNode::join(fleet.client.address(), healthy("a", 1)).await;
    fleet.wait_for_slots("a").await;
    let ask = || {
        let client = fleet.client.clone();
        tokio::spawn(async move { client.chat(&chat("one")).await.status })
    };
    let answer = r#"{"choices": [], "usage": {"completion_tokens": 1, "total_tokens": 5}}"#;
    for _ in 0..10 {
        let asked = ask();
        a.asked().await.reply(200, "application/json", answer.into());
        assert_eq!(asked.await.unwrap(), 200);
        fleet.wait_for_slots("a").await;
    }
    let runs = ask();
    let held = a.asked().await;
    let waits = ask();
    tells(&fleet, "gateway_queue_depth{class=\"standard\"} 1").await;
    held.answer("done");
    a.asked().await.answer("done");
    assert_eq!([runs.await.unwrap(), waits.await.unwrap()], [200, 200]);
    let all = async || {
        let mut counts = Vec::new();
        for result in Forecast::ALL.map(Forecast::name) {
            let series = format!("gateway_wait_forecasts_total{{result=\"{result}\"}}");
            counts.push(metric(&fleet.admin, &series).await);
        }
        counts.into_iter().sum::<f64>()
    };
    eventually("the forecast", async || (all().await == 1.0).then_some(())).await;
}

#[tokio::test]
async fn gaps_are_counted_between_tokens_and_not_before_the_first() {
    let fleet = Fleet::start("").await;
    let mut a = MockNode::join(fleet.client.address(), healthy("a", 1)).await;
    fleet.wait_for_slots("a").await;
    let client = fleet.client.clone();
    let asks = async move { client.stream(&streamed(chat("Count."))).await.finish().await };
    let reading = tokio::spawn(asks);
    let stream = a.asked().await.stream();
    for token in 1..=5 {
        stream.say_marked(&[token], "x").await;
    }
    stream.close_marked(Default::default(), "[DONE]").await;
    assert!(reading.await.unwrap().done);
    let labels = "{class=\"standard\",endpoint_kind=\"node\",model=\"flotilla-demo\"}";
    let count = |name: &str| format!("gateway_{name}_seconds_count{labels}");
    tells(&fleet, &format!("{} 1", count("time_to_first_token"))).await;
    tells(&fleet, &format!("{} 1", count("request_duration"))).await;
    // Pieces that arrive together are one.
    let gaps = metric(&fleet.admin, &count("inter_token_gap")).await;
    assert!((0.0..=4.0).contains(&gaps), "{gaps}");
}

#[tokio::test]
async fn what_nodes_say_of_themselves_is_told_and_goes_with_them() {
    let fleet = Fleet::start("").await;
    let mut status = healthy("a", 3);
    status.vitals = Some(Vitals {
        memory_resident_bytes: 5,
        kv_cells: 100,
        kv_cells_in_use: 60,
        pressure_memory: Some(0.25),
        ..Vitals::default()
    });
    let a = MockNode::join(fleet.client.address(), status).await;
    fleet.wait_for_slots("a").await;
    for line in [
        "gateway_node_memory_resident_bytes{node=\"a\"} 5",
        "gateway_node_kv_cells_used{node=\"a\",use=\"busy\"} 60",
        "gateway_node_pressure_ratio{node=\"a\",resource=\"memory\"} 0.25",
        "gateway_node_model_info{model=\"flotilla-demo\",node=\"a\"} 1",
        "gateway_nodes{state=\"ready\"} 1",
    ] {
        tells(&fleet, line).await;
    }
    assert!(!told(&fleet).await.contains("resource=\"cpu\""), "its kernel does not tell");
    a.dies();
    tells(&fleet, "gateway_nodes{state=\"ready\"} 0").await;
    assert!(!told(&fleet).await.contains("node=\"a\""));
}

#[tokio::test]
async fn an_older_agent_that_says_nothing_of_memory_is_a_node_all_the_same() {
    let fleet = Fleet::start("").await;
    let _a = MockNode::join(fleet.client.address(), healthy("old", 1)).await;
    fleet.wait_for_slots("old").await;
    let told = told(&fleet).await;
    assert!(told.contains("gateway_node_slots{node=\"old\"} 1"));
    assert!(!told.contains("gateway_node_memory_resident_bytes{"), "and not 0");
}

#[tokio::test]
async fn the_process_and_the_build_are_told() {
    let fleet = Fleet::start("").await;
    let told = told(&fleet).await;
    for name in
        ["cpu_seconds_total", "resident_memory_bytes", "open_fds", "max_fds", "start_time_seconds"]
    {
        let value = metric(&fleet.admin, &format!("process_{name}")).await;
        assert!(value > 0.0 || name == "cpu_seconds_total", "{name}");
    }
    let build = told.lines().find(|line| line.starts_with("gateway_build_info{")).unwrap();
    assert!(build.contains("rustc=\"1.") && build.contains("version=\""), "{build}");
    let since = metric(&fleet.admin, "gateway_config_last_reload_success_timestamp_seconds").await;
    let started = metric(&fleet.admin, "process_start_time_seconds").await;
    assert!((since - started).abs() < 60.0, "{since} {started}");
}
