//! The page docs/vps.md, command by command, on a machine of its own: installed packages, services
//! under a real systemd with everything that their units forbid, upgrade and removal.

use fleet_tests::process::run;
use fleet_tests::{demo_model, eventually};

use crate::machine::Machine;
use crate::packages::{Packages, can_build};
use crate::{block, text};

const PAGE: &str = "docs/vps.md";
const CONTAINERS: &str = "docs/containers.md";
const ASK: &str = r#"curl -s --max-time 60 http://127.0.0.1:8080/v1/chat/completions \
    -H "Authorization: Bearer KEY" -H 'Content-Type: application/json' \
    -d '{"model": "model", "temperature": 0,
         "messages": [{"role": "user", "content": "What is the capital of France?"}]}'"#;

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
    let line = commands("node").into_iter().find(|line| line.contains(" pull ")).unwrap();
    let source = line.split("hf:").nth(1).unwrap().split(' ').next().unwrap();
    let (repo, file) = source.rsplit_once('/').unwrap();
    let folder = format!("/srv/{repo}/resolve/main");
    machine.does(&format!("mkdir -p {folder}"));
    std::fs::copy(demo_model(), machine.path(&format!("{folder}/{file}"))).unwrap();
    machine.does("systemd-run --unit=hub python3 -m http.server -b 127.0.0.1 -d /srv 8000");
}

async fn install_gateway(machine: &Machine) -> String {
    let commands = commands("gateway");
    assert!(commands.len() <= 5);
    machine.does(&commands[0]);
    assert!(!machine.run("systemctl is-active flotilla-gateway").ok, "nobody has looked at it");
    let key = machine.does(&commands[1]);
    machine.does(&commands[2]);
    assert_eq!(machine.does("curl -s http://127.0.0.1:8080/livez"), "ok\n", "it serves at once");
    key.lines().find(|line| line.starts_with("sk-")).unwrap().to_string()
}

async fn install_node(machine: &Machine) {
    let commands = commands("node");
    assert!(commands.len() <= 5);
    machine.does("cp /etc/flotilla/join.key join.key");
    for command in &commands {
        machine.does(&format!("export HF_ENDPOINT=http://127.0.0.1:8000\n{command}"));
    }
    assert!(property(machine, "flotilla-agent", "StatusText").starts_with("serving model, "));
    eventually("the gateway to know its node", async || {
        machine.run("curl -sf http://127.0.0.1:8080/readyz").ok.then_some(())
    })
    .await;
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
    let said = machine.does(&ASK.replace("KEY", key));
    assert!(said.contains("Paris"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_machine_becomes_a_fleet_as_the_page_says() {
    if !can_build() {
        return;
    }
    let Some(machine) = Machine::start().await else { return };
    prepare(&machine);
    let key = install_gateway(&machine).await;
    install_node(&machine).await;
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
    assert!(said.contains("http://gateway.example:8080/ accepts the join key"), "{said}");
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
    upgrade(&machine, &key).await;
    purge(&machine);
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
    machine.does("apt-get install -y ./flotilla-gateway_*.deb ./flotilla-agent_*.deb");
    assert_ne!(property(machine, "flotilla-agent", "MainPID"), before, "it was started again");
    assert!(machine.does("cat /etc/flotilla/gateway.yaml").contains("retries_max: 1"));
    assert!(machine.does("cat /etc/flotilla/agent.env").contains("FLOTILLA_TUNE=yes"));
    assert!(machine.does("dpkg -s flotilla-agent").contains("Version: 1.0.1"));
    eventually("the gateway to know its node again", async || {
        machine.run("curl -sf http://127.0.0.1:8080/readyz").ok.then_some(())
    })
    .await;
    answers(machine, key);
}

fn purge(machine: &Machine) {
    machine.does("apt-get purge -y flotilla-gateway");
    assert!(machine.run("test -e /etc/flotilla/join.key").ok, "the agent joins with it");
    assert!(!machine.run("test -e /etc/flotilla/admin.key").ok);
    machine.does("apt-get purge -y flotilla-agent");
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
    let run = ["gateway", "node", "look", "doctor", "change", "restart", "health"];
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
