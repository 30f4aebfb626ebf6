//! The page docs/vps.md, command by command, on a machine of its own: installed packages, services
//! under a real systemd with everything that their units forbid, upgrade and removal.

use fleet_tests::process::run;
use fleet_tests::{demo_model, eventually};

use crate::machine::Machine;
use crate::packages::{Packages, can_build};
use crate::{block, text};

const PAGE: &str = "docs/vps.md";
const CONTAINERS: &str = "docs/containers.md";
const READY: &str = "curl -sf --cacert /etc/flotilla/cert.pem https://localhost:8443/readyz";

/// The commands of a block, one by one.
fn commands(mark: &str) -> Vec<String> {
    block(PAGE, mark).lines().map(String::from).collect()
}

fn copy(machine: &Machine, packages: &Packages) {
    for part in ["gateway", "agent"] {
        let deb = packages.of(part);
        let name = deb.file_name().unwrap().to_str().unwrap();
        std::fs::copy(deb, machine.path(&format!("/root/{name}"))).unwrap();
    }
}

/// A property of a service.
fn property(machine: &Machine, service: &str, name: &str) -> String {
    machine.does(&format!("systemctl show -P {name} {service}")).trim().to_string()
}

/// The packages are where the page says, the hub is this machine's own, and so is the gateway.
fn prepare(machine: &Machine) {
    copy(machine, Packages::usual());
    // What images for containers have, and machines do not: packages may start nothing.
    machine.does("rm -f /usr/sbin/policy-rc.d");
    machine.does("echo 127.0.0.1 gateway.example >>/etc/hosts");
    let line = commands("node").into_iter().find(|line| line.contains("=hf:")).unwrap();
    let name = line.split("hf:").nth(1).unwrap().split(' ').next().unwrap();
    let (repo, quantization) = name.rsplit_once(':').unwrap();
    let file = format!("model-{}.gguf", quantization.to_lowercase());
    let (list, folder) = (format!("/srv/api/models/{repo}/revision"), format!("/srv/{repo}"));
    machine.does(&format!("mkdir -p {list} {folder}/resolve/main"));
    let listed = serde_json::json!({"siblings": [{"rfilename": file}]}).to_string();
    std::fs::write(machine.path(&format!("{list}/main")), listed).unwrap();
    let there = machine.path(&format!("{folder}/resolve/main/{file}"));
    std::fs::copy(demo_model(), there).unwrap();
    machine.does("systemd-run --unit=hub python3 -m http.server -b 127.0.0.1 -d /srv 8000");
}

/// Installs it, and returns an API key and what a node needs.
fn install_gateway(machine: &Machine) -> (String, String) {
    let commands = commands("gateway");
    assert_eq!(commands.len(), 3);
    machine.does(&commands[0]);
    assert!(!machine.run("systemctl is-active flotilla-gateway").ok, "nobody has looked at it");
    for secret in ["join.key", "admin.key", "cert-key.pem"] {
        let mode = machine.does(&format!("stat -c '%a %U' /etc/flotilla/{secret}"));
        assert_eq!(mode.trim(), "600 root", "{secret}");
    }
    let key = machine.does(&commands[1]);
    machine.does(&commands[2]);
    let live = READY.replace("readyz", "livez");
    assert_eq!(machine.does(&live), "ok\n", "it serves at once");
    let key = key.lines().find(|line| line.starts_with("sk-")).unwrap().to_string();
    (key, machine.does(&block(PAGE, "join")))
}

async fn install_node(machine: &Machine, joins: &str) {
    let commands = commands("node");
    assert_eq!(commands.len(), 4);
    for command in &commands {
        // An editor, for somebody who cannot type.
        machine.does(&command.replace("editor ", "cat joins >>"));
        std::fs::write(machine.path("/root/joins"), format!("{joins}{HUB}")).unwrap();
    }
    let mode = machine.does("stat -c '%a %U' /etc/flotilla/agent.env");
    assert_eq!(mode.trim(), "600 root", "the join key is in it");
    let status = property(machine, "flotilla-agent", "StatusText");
    assert!(status.starts_with("serving Qwen2.5-1.5B-Instruct, "), "{status}");
    is_ready(machine).await;
}

/// The hub is this machine's own.
const HUB: &str = "HF_ENDPOINT=http://127.0.0.1:8000\n";

async fn is_ready(machine: &Machine) {
    eventually("the gateway to know its node", async || machine.run(READY).ok.then_some(())).await;
}

/// The only capability of the gateway: to bind ports below 1024.
const NET_BIND_SERVICE: &str = "0000000000000400";
const NO_CAPABILITY: &str = "0000000000000000";

/// What the kernel knows of a service's process.
fn is_confined(machine: &Machine, service: &str, capabilities: &str) {
    let pid = property(machine, service, "MainPID");
    let status = machine.does(&format!("cat /proc/{pid}/status"));
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim_start_matches(':').trim().to_string()
    };
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2");
    assert_eq!(field("CapEff"), capabilities);
    assert_eq!(field("CapBnd"), capabilities);
    assert_ne!(field("Uid").split_whitespace().next(), Some("0"));
    let secure = machine.run(&format!("systemd-analyze security --threshold=20 {service}"));
    assert!(secure.ok, "{}", secure.said);
    let unit = format!("/lib/systemd/system/{service}.service");
    assert_eq!(machine.does(&format!("systemd-analyze verify {unit}")), "");
}

fn answers(machine: &Machine, key: &str) {
    let first = block(PAGE, "first");
    let said = machine.does(&format!("export OPENAI_API_KEY={key}\n{first}"));
    assert!(said.contains("Paris"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_machine_becomes_a_fleet_as_the_page_says() {
    if !can_build() {
        return;
    }
    let Some(machine) = Machine::start().await else { return };
    prepare(&machine);
    let (key, joins) = install_gateway(&machine);
    install_node(&machine, &joins).await;
    answers(&machine, &key);
    is_confined(&machine, "flotilla-gateway", NET_BIND_SERVICE);
    is_confined(&machine, "flotilla-agent", NO_CAPABILITY);

    eventually("the status to be told", async || {
        let status = property(&machine, "flotilla-gateway", "StatusText");
        status.starts_with("1 of 1 nodes ready").then_some(())
    })
    .await;
    let said = machine.does(&block(PAGE, "look"));
    assert!(said.contains("Status: \"1 of 1 nodes ready"), "{said}");
    assert!(said.ends_with("ready\n"), "{said}");
    let said = machine.does(&block(PAGE, "doctor"));
    assert!(said.contains("https://gateway.example:8443/ accepts the join key"), "{said}");
    assert!(said.contains("ok    model "), "{said}");

    let before = property(&machine, "flotilla-gateway", "MainPID");
    machine.does("sed -i 's/^admin:/retries_max: 1\\nadmin:/' /etc/flotilla/gateway.yaml");
    machine.does(&block(PAGE, "change"));
    eventually("the change to be told", async || {
        let status = property(&machine, "flotilla-gateway", "StatusText");
        (status == "configuration loaded").then_some(())
    })
    .await;
    assert_eq!(property(&machine, "flotilla-gateway", "MainPID"), before);
    supervises(&machine).await;
    machine.does("echo FLOTILLA_LISTEN=127.0.0.1:8082 >>/etc/flotilla/agent.env");
    machine.does("echo FLOTILLA_CPUS=0 >>/etc/flotilla/agent.env");
    machine.does("echo FLOTILLA_LOAD=mlock >>/etc/flotilla/agent.env");
    machine.does("echo FLOTILLA_TUNE=yes >>/etc/flotilla/agent.env");
    machine.does(&block(PAGE, "restart"));
    is_as_told(&machine);
    let health = block(CONTAINERS, "health");
    let said = machine.does(&format!("export FLOTILLA_LISTEN=127.0.0.1:8082\n{health}"));
    assert_eq!(said, "ready\nok\nready\n");
    renews_its_certificate(&machine, &key).await;
    is_restored(&machine, &key).await;
    upgrade(&machine, &key).await;
    purge(&machine);
}

/// A certificate for another name, which a node then must know.
async fn renews_its_certificate(machine: &Machine, key: &str) {
    machine.does(&block(PAGE, "certificate"));
    let joins = machine.does(&block(PAGE, "join"));
    machine.does("sed -i '/^FLOTILLA_JOIN/d' /etc/flotilla/agent.env");
    std::fs::write(machine.path("/root/joins"), joins).unwrap();
    machine.does("cat joins >>/etc/flotilla/agent.env\nsystemctl restart flotilla-agent");
    is_ready(machine).await;
    answers(machine, key);
}

/// What is lost comes back from the backup.
async fn is_restored(machine: &Machine, key: &str) {
    let metrics = machine.does(&block(PAGE, "metrics"));
    assert!(metrics.contains("gateway_requests_total"), "{metrics}");
    machine.does(&block(PAGE, "backup"));
    assert_eq!(machine.does("stat -c %a flotilla-backup.tar.gz").trim(), "600");
    machine.does("systemctl stop flotilla-gateway");
    machine.does("rm -r /etc/flotilla/*.key /etc/flotilla/*.pem /etc/flotilla/*.yaml");
    machine.does(&block(PAGE, "restore"));
    is_ready(machine).await;
    answers(machine, key);
}

/// An engine that dies is the agent's matter, a program that stands still is systemd's.
async fn supervises(machine: &Machine) {
    let agent = property(machine, "flotilla-agent", "MainPID");
    machine.does(&format!("pkill -KILL -P {agent}"));
    eventually("another engine", async || {
        let status = property(machine, "flotilla-agent", "StatusText");
        (machine.run(&format!("pgrep -P {agent}")).ok && status.starts_with("serving"))
            .then_some(())
    })
    .await;
    assert_eq!(property(machine, "flotilla-agent", "MainPID"), agent);
    for service in ["flotilla-gateway", "flotilla-agent"] {
        // Half a minute is what operators want, and too long for a test.
        let folder = format!("/etc/systemd/system/{service}.service.d");
        machine.does(&format!(
            "mkdir {folder}\nprintf '[Service]\\nWatchdogSec=2\\n' >{folder}/soon.conf\n\
             systemctl daemon-reload\nsystemctl restart {service}"
        ));
        let pid = property(machine, service, "MainPID");
        machine.does(&format!("kill -STOP {pid}"));
        eventually("systemd to start it again", async || {
            let restarted = property(machine, service, "NRestarts") == "1";
            (restarted && machine.run(&format!("systemctl is-active {service}")).ok).then_some(())
        })
        .await;
        assert_ne!(property(machine, service, "MainPID"), pid);
        machine.does(&format!("rm -r {folder}\nsystemctl daemon-reload"));
    }
}

/// What the unit leaves to the agent: its CPUs, locked memory, a cache of its own.
fn is_as_told(machine: &Machine) {
    let agent = property(machine, "flotilla-agent", "MainPID");
    let engine = machine.does(&format!("pgrep -P {agent}")).trim().to_string();
    let status = machine.does(&format!("cat /proc/{engine}/status"));
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().split_whitespace().next().unwrap().to_string()
    };
    assert_eq!(field("Cpus_allowed_list:"), "0");
    assert!(field("VmLck:").parse::<u64>().unwrap() > 1000, "{status}");
    assert!(!machine.does("find /var/cache/flotilla -type f").is_empty(), "nothing was tuned");
    // As on this kernel without the unit, whose own filter must not be in the way.
    let whole = run("flotilla-agent", &["sandbox-trial"]).stdout.matches("\"on\"").count() == 2;
    let log = machine.does("journalctl -u flotilla-agent -o cat");
    assert!(!whole || log.contains("\"sandbox\":\"files and system calls\""), "{log}");
}

async fn upgrade(machine: &Machine, key: &str) {
    let newer = Packages::build("1.0.1");
    machine.does("rm *.deb");
    copy(machine, &newer);
    let before = property(machine, "flotilla-agent", "MainPID");
    let install = block(PAGE, "upgrade");
    machine.does(&(install.replace("agent", "gateway") + &install));
    assert_ne!(property(machine, "flotilla-agent", "MainPID"), before, "it was started again");
    assert!(machine.does("cat /etc/flotilla/gateway.yaml").contains("retries_max: 1"));
    assert!(machine.does("cat /etc/flotilla/agent.env").contains("FLOTILLA_TUNE=yes"));
    assert!(machine.does("dpkg -s flotilla-agent").contains("Version: 1.0.1"));
    is_ready(machine).await;
    answers(machine, key);
    // And back.
    machine.does("rm *.deb");
    copy(machine, Packages::usual());
    machine.does(&block(PAGE, "rollback"));
    assert!(machine.does("dpkg -s flotilla-agent").contains("Version: 1.0.0"));
    assert!(machine.does("cat /etc/flotilla/agent.env").contains("FLOTILLA_TUNE=yes"));
    is_ready(machine).await;
    answers(machine, key);
}

fn purge(machine: &Machine) {
    machine.does("apt-get purge -y flotilla-gateway");
    assert!(machine.run("test -e /etc/flotilla/join.key").ok, "the agent joins with it");
    assert!(!machine.run("test -e /etc/flotilla/admin.key").ok);
    machine.does(&block(PAGE, "remove"));
    for path in
        ["/etc/flotilla", "/var/lib/flotilla", "/var/cache/flotilla", "/usr/bin/flotilla-agent"]
    {
        assert!(!machine.run(&format!("test -e {path}")).ok, "{path} stays behind");
    }
    assert!(!machine.run("systemctl cat flotilla-agent").ok);
}

/// The names of the blocks are those that the test above runs.
#[test]
fn every_command_of_the_pages_is_run_here_or_says_what_it_needs() {
    let machine = ["gateway", "join", "node", "first", "look", "doctor", "change", "restart"];
    let later =
        ["certificate", "metrics", "backup", "restore", "upgrade", "rollback", "remove", "health"];
    let run = [&machine[..], &later].concat();
    for page in [PAGE, CONTAINERS] {
        let text = text(page);
        let mut before = "";
        for line in text.lines() {
            if line == "```sh" {
                let name = before.strip_prefix("<!-- block: ").and_then(|b| b.strip_suffix(" -->"));
                let left = before.starts_with("<!-- not run: needs ");
                assert!(left || name.is_some_and(|name| run.contains(&name)), "{page}: {before}");
            }
            before = line;
        }
    }
    let makefile = text("Makefile");
    assert!(
        makefile.contains("deb: dist\n\t@packaging/deb/build.sh $(TARGET)/dist $(TARGET)/deb\n")
    );
}
