//! The container images, built without a daemon and run without rights.

use std::path::Path;
use std::process::{Command, Stdio};

use fleet_tests::client::Client;
use fleet_tests::process::{Folder, Server, binary};
use fleet_tests::{chat, demo_model, eventually, root};

use crate::is_root;
use crate::release::own_architecture;
use fleet_tests::tools::{has, output, skipped};

/// podman with storage in a folder. This machine's control groups may be of two versions, which
/// crun refuses, so it sees only the newer ones.
fn podman(folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-ec"])
        .arg(
            "umount -R /sys/fs/cgroup 2>/dev/null || true
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
            exec podman \"$@\"",
        )
        .args(["podman", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--root"])
        .arg(folder.join("storage"))
        .arg("--runroot")
        .arg(folder.join("run"))
        .stdin(Stdio::null());
    command
}

/// Arguments that run a container with a read-only root and no rights.
const RUN: [&str; 12] = [
    "run",
    "--rm",
    "--read-only",
    "--cap-drop",
    "all",
    "--network",
    "host",
    "--cgroups",
    "disabled",
    "--ulimit",
    "nofile=4096:4096",
    "--ulimit=nproc=4096:4096",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_images_answer_without_rights_and_without_a_place_to_write() {
    let tools = [("buildah", "buildah"), ("podman", "podman"), ("crun", "crun")];
    let tools = tools.iter().chain(&[("mmdebstrap", "mmdebstrap")]);
    if !is_root() || !tools.into_iter().all(|(tool, package)| has(tool, package)) {
        return;
    }
    let folder = Folder::new();
    let version = env!("CARGO_PKG_VERSION");
    let binaries = binary("flotilla-agent");
    let built = Command::new(root().join("scripts/images.sh"))
        .args([own_architecture(), binaries.parent().unwrap().to_str().unwrap()])
        .arg(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    if errors.contains("mmdebstrap failed to run") {
        skipped("Debian's packages for the images cannot be fetched");
        return;
    }
    assert!(built.status.success(), "{errors}");
    for part in ["gateway", "agent"] {
        let file = format!("flotilla-{part}-{version}-{}.oci.tar", own_architecture());
        output(podman(folder.path()).args(["load", "-q", "-i"]).arg(folder.path().join(file)));
    }
    let image = |part: &str| format!("localhost/flotilla-{part}:{version}");
    let printed = output(podman(folder.path()).args(RUN).args([&image("gateway"), "--version"]));
    assert!(printed.contains(&format!("flotilla-gateway {version}")), "{printed}");
    // As on OpenShift: a user that no file knows.
    for part in ["gateway", "agent"] {
        let as_stranger = ["--user", "1000650000:0", &image(part), "--version"];
        output(podman(folder.path()).args(RUN).args(as_stranger));
    }
    let shell = podman(folder.path())
        .args(RUN)
        .args(["--entrypoint", "/bin/sh", &image("agent")])
        .output()
        .unwrap();
    assert!(!shell.status.success(), "there is no shell");

    let (key, join) = configure(&folder);
    let mut command = podman(folder.path());
    command.args(RUN).args(["--name", "gateway", "--volume"]);
    command.arg(format!("{}:/etc/flotilla", folder.path().join("etc").display()));
    command.arg(image("gateway"));
    let mut gateway = Server::spawn(command);
    // The gateway logs the address of the admin listener first.
    gateway.address();
    let through = Client::new(gateway.address(), Some(&key));

    let mut command = podman(folder.path());
    command
        .args(RUN)
        .args(["--name", "agent", "--env", "FLOTILLA_LISTEN=127.0.0.1:0", "--volume"])
        .arg(format!("{}:/models:ro", demo_model().parent().unwrap().display()))
        .args(["--env", "FLOTILLA_MODEL=/models/flotilla-demo.gguf"])
        .args(["--env", &format!("FLOTILLA_JOIN=http://{}", through.address())])
        .args(["--env", &format!("FLOTILLA_JOIN_KEY={join}"), &image("agent")]);
    let mut agent = Server::spawn(command);
    let alone = Client::new(agent.address(), None);
    agent.wait_for_line("engine ready");
    eventually("the node to join", async || {
        (through.get("/readyz").await.status == 200).then_some(())
    })
    .await;
    for client in [alone, through] {
        let answer = client.chat(&chat("What is the capital of France?")).await;
        assert!(answer.content().contains("Paris"));
    }
    for (name, server) in [("agent", &mut agent), ("gateway", &mut gateway)] {
        output(podman(folder.path()).args(["stop", "--time", "20", name]));
        assert_eq!(server.ended().await, Some(0), "SIGTERM ends the {name} in good order");
    }
}

/// Creates a gateway's configuration in `etc`, for the user that the image names. Returns the API
/// key and the join key.
fn configure(folder: &Folder) -> (String, String) {
    let etc = folder.path().join("etc");
    let made = Command::new(binary("flotilla-gateway"))
        .args(["init", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--dir"])
        .arg(&etc)
        .output()
        .unwrap();
    let made = String::from_utf8(made.stdout).unwrap();
    let key = made.lines().find_map(|line| line.strip_prefix("API key, shown once: ")).unwrap();
    output(Command::new("chown").args(["-R", "65532:65532"]).arg(&etc));
    let join = std::fs::read_to_string(etc.join("join.key")).unwrap();
    (key.to_string(), join.trim().to_string())
}
