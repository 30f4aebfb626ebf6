//! vLLM for CPUs.

use std::process::Command;

use fleet_tests::process::metric;

use crate::engine::{Engine, installed};
use crate::speaks;

fn command(port: u16) -> Command {
    // The command `vllm` asks for the version of a package that is called otherwise for CPUs.
    let mut command = Command::new(installed("vllm/bin/python"));
    command.args(["-m", "vllm.entrypoints.openai.api_server", "--model"]);
    command.arg(installed("demo-model"));
    command.args(["--served-model-name", "flotilla-demo", "--dtype", "float32", "--enforce-eager"]);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command.env("VLLM_CPU_KVCACHE_SPACE", "1").env("VLLM_NO_USAGE_STATS", "1");
    command.env("HF_HUB_OFFLINE", "1").env("VLLM_LOGGING_STREAM", "ext://sys.stderr");
    command
}

#[tokio::test]
#[ignore = "needs engines: make test-engines"]
async fn vllm_works_behind_a_gateway() {
    let mut engine = Engine::start(command).await;
    let fleet = engine.gateway().await;
    speaks::chats(&fleet, true).await;
    speaks::completions(&fleet).await;
    speaks::other_apis(&fleet).await;
    speaks::errors(&fleet).await;
    let own = engine.client();
    let running = "vllm:num_requests_running{engine=\"0\",model_name=\"flotilla-demo\"}";
    speaks::leaving(&fleet, async || metric(&own, running).await).await;
    speaks::dying(&fleet, &mut engine).await;
}
