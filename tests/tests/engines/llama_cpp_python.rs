//! llama-cpp-python's own server.

use std::process::Command;

use fleet_tests::demo_model;

use crate::engine::{Engine, installed};
use crate::speaks;

fn command(port: u16) -> Command {
    let mut command = Command::new(installed("llama-cpp-python/bin/python"));
    command.args(["-m", "llama_cpp.server", "--model_alias", "flotilla-demo", "--n_ctx", "1024"]);
    command.arg("--model").arg(demo_model());
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    command
}

#[tokio::test]
#[ignore = "needs engines: make test-engines"]
async fn llama_cpp_python_works_behind_a_gateway() {
    let mut engine = Engine::start(command).await;
    let fleet = engine.gateway().await;
    speaks::chats(&fleet, false).await;
    speaks::completions(&fleet).await;
    speaks::other_apis(&fleet).await;
    speaks::errors(&fleet).await;
    // It does not tell what it works on; it works on one request at a time.
    speaks::leaving(&fleet, async || 0.0).await;
    speaks::chats(&fleet, false).await;
    speaks::dying(&fleet, &mut engine).await;
}
