//! What an agent tells: under its own names, and under those of other servers.

use fleet_tests::process::Agent;
use fleet_tests::{chat, eventually, streamed};

async fn told(agent: &Agent, path: &str) -> String {
    let answer = agent.client.get(path).await;
    assert_eq!(answer.status, 200, "{path}");
    String::from_utf8(answer.body.to_vec()).unwrap()
}

#[tokio::test]
async fn other_servers_names_are_told_only_where_they_are_asked_for() {
    let plain = Agent::start(&[]).await;
    assert_eq!(plain.client.get("/metrics/vllm").await.status, 404);
    drop(plain);
    let both = ["--metrics-compat", "vllm", "--metrics-compat", "llama-server", "--name", "n"];
    let agent = Agent::start(&both).await;
    let stream = agent.client.stream(&streamed(chat("Count from 1 to 10."))).await;
    assert!(stream.finish().await.done);

    let labels = "{engine=\"0\",model_name=\"flotilla-demo\"}";
    // The request is over a moment after its last event.
    let counted = format!("vllm:e2e_request_latency_seconds_count{labels} 1");
    let vllm = eventually("the request to be counted", async || {
        let vllm = told(&agent, "/metrics/vllm").await;
        (vllm.contains(&counted) && vllm.contains(&format!("num_requests_running{labels} 0")))
            .then_some(vllm)
    })
    .await;
    for line in [
        format!("vllm:num_requests_waiting{labels} 0"),
        format!("vllm:time_to_first_token_seconds_count{labels} 1"),
        format!("vllm:request_generation_tokens_count{labels} 1"),
        "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",\
         model_name=\"flotilla-demo\"} 1"
            .to_string(),
    ] {
        assert!(vllm.lines().any(|l| l == line), "no {line} in\n{vllm}");
    }
    let llama = told(&agent, "/metrics/llama-server").await;
    for name in ["prompt_tokens_total", "prompt_seconds_total", "tokens_predicted_seconds_total"] {
        let line = llama.lines().find_map(|l| l.strip_prefix(&format!("llamacpp:{name} ")));
        assert!(line.unwrap().parse::<f64>().unwrap() > 0.0, "{llama}");
    }
    for text in [&vllm, &llama] {
        let ours = text.lines().filter(|line| !line.starts_with('#'));
        assert!(ours.clone().count() > 10 && ours.clone().all(|l| l.contains(':')), "{text}");
    }
}

#[tokio::test]
async fn an_agent_tells_where_the_time_of_a_request_went() {
    let agent = Agent::start(&["--name", "n"]).await;
    for _ in 0..2 {
        assert_eq!(agent.client.chat(&chat("What is the capital of Peru?")).await.status, 200);
    }
    for name in [
        "node_queue_wait_seconds_count",
        "node_prefill_seconds_count",
        "node_decode_seconds_count",
        "node_request_prompt_tokens_count",
        "node_answers_finished_total{reason=\"stop\"}",
    ] {
        assert_eq!(agent.metric(name).await, 2.0, "{name}");
    }
    for name in [
        "node_inter_token_gap_seconds_count",
        "node_engine_decode_seconds_total",
        "node_engine_memory_resident_bytes",
        "node_memory_available_bytes",
        "node_engine_slot_steps_total",
        "process_resident_memory_bytes",
    ] {
        eventually(name, async || (agent.metric(name).await > 0.0).then_some(())).await;
    }
}
