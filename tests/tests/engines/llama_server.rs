//! llama-server, as Debian packages it.

use std::process::Command;

use fleet_tests::demo_model;
use serde_json::Value;

use crate::engine::{Engine, installed};
use crate::speaks;

fn command(port: u16) -> Command {
    let (root, libraries) = (installed("root"), "usr/lib/x86_64-linux-gnu");
    let paths = [root.join(libraries), root.join(libraries).join("llama")];
    let paths = paths.map(|path| path.display().to_string()).join(":");
    // With the libraries of its own Debian.
    let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
    command.args(["--library-path", &paths]);
    command.arg(root.join("usr/bin/llama-server")).arg("--model").arg(demo_model());
    command.args(["--alias", "flotilla-demo", "--parallel", "2", "--ctx-size", "2048", "--jinja"]);
    command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
    // Where it finds its kernels.
    command.current_dir(root.join(libraries).join("ggml/backends0"));
    command
}

#[tokio::test]
#[ignore = "needs engines: make test-engines"]
async fn llama_server_works_behind_a_gateway() {
    let mut engine = Engine::start(command).await;
    let fleet = engine.gateway().await;
    speaks::chats(&fleet, true).await;
    speaks::completions(&fleet).await;
    speaks::other_apis(&fleet).await;
    speaks::errors(&fleet).await;
    let own = engine.client();
    speaks::leaving(&fleet, async || {
        let slots: Value = own.get("/slots").await.json();
        let busy = slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true);
        busy.count() as f64
    })
    .await;
    speaks::dying(&fleet, &mut engine).await;
}
