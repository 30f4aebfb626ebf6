//! examples/ansible, examples/cloud-init and examples/systemd on machines of their own, with the
//! real tools: from a signed release to a gateway with an ACME certificate and a node.

use std::path::{Path, PathBuf};
use std::process::Command;

use fleet_tests::process::{Folder, run};
use fleet_tests::tools::{has, output};
use fleet_tests::{demo_model, eventually, root};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::machine::Machine;
use crate::packages::{Packages, can_build};
use crate::text;

const DOMAIN: &str = "llm.example.com";
const RELEASE: &str = "http://127.0.0.1:8000";
const MODEL: &str = "/var/lib/flotilla/models/model.gguf";
const JOIN_KEY: &str = "5e0d3f3a6a6d4cbe8f1c";
const HUB: &str = "hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M";
const ACME: &str = "directory: https://127.0.0.1:14000/dir";

/// A tool that the Makefile or scripts/examples.sh puts there.
fn tool(path: &str) -> Option<PathBuf> {
    let path = root().join("target").join(path);
    if !path.exists() {
        eprintln!("skipped: this test needs {} (make setup-test)", path.display());
        return None;
    }
    Some(path)
}

/// Replaces what a user of an example replaces, too.
fn changed(text: &str, changes: &[(&str, &str)]) -> String {
    changes.iter().fold(text.to_string(), |text, (from, to)| {
        assert!(text.contains(from), "no '{from}' in {text}");
        text.replace(from, to)
    })
}

/// A machine that finds a release, an ACME server that the system trusts, and a model.
struct Site {
    machine: Machine,
    public_key: String,
    sums_sha256: String,
}

impl Site {
    async fn start() -> Option<Self> {
        let tools = [("minisign", "minisign"), ("pebble", "pebble"), ("curl", "curl")];
        if !can_build() || !tools.iter().all(|(tool, package)| has(tool, package)) {
            return None;
        }
        let machine = Machine::start().await?;
        machine.does(&format!("echo 127.0.0.1 {DOMAIN} >>/etc/hosts; rm -f /usr/sbin/policy-rc.d"));
        // What is installed is the newest: there is no network.
        machine.does("rm -rf /var/lib/apt/lists/* /etc/apt/sources.list*");
        machine.does("mkdir -p /srv/release /srv/acme /var/lib/flotilla/models");
        std::fs::copy(demo_model(), machine.path(MODEL)).unwrap();
        for part in ["gateway", "agent"] {
            let deb = Packages::usual().of(part);
            let name = deb.file_name().unwrap().to_str().unwrap();
            std::fs::copy(deb, machine.path(&format!("/srv/release/{name}"))).unwrap();
        }
        let sign =
            "cd /srv/release; sha256sum *.deb >SHA256SUMS; minisign -G -W -s ../key -p ../key.pub
            minisign -S -s ../key -m SHA256SUMS";
        machine.does(sign);
        machine.does(
            "systemd-run --unit=release python3 -m http.server -b 127.0.0.1 -d /srv/release 8000",
        );
        let public_key = machine.does("sed -n 2p /srv/key.pub").trim().to_string();
        let sums_sha256 = machine.does("sha256sum /srv/release/SHA256SUMS")[..64].to_string();
        let site = Self { machine, public_key, sums_sha256 };
        site.start_acme().await;
        Some(site)
    }

    /// Pebble, which validates at port 443, as Let's Encrypt does.
    async fn start_acme(&self) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "CA of a test");
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let own = CertificateParams::new(["127.0.0.1".to_string()]).unwrap();
        let certificate = own.signed_by(&key, &ca).unwrap().pem();
        let config = serde_json::json!({"pebble": {
            "listenAddress": "127.0.0.1:14000", "managementListenAddress": "127.0.0.1:15000",
            "certificate": "/srv/acme/own.pem", "privateKey": "/srv/acme/own.key",
            "httpPort": 80, "tlsPort": 443,
        }});
        for (name, content) in [
            ("ca.pem", ca.pem()),
            ("own.pem", certificate),
            ("own.key", key.serialize_pem()),
            ("pebble.json", config.to_string()),
        ] {
            std::fs::write(self.machine.path(&format!("/srv/acme/{name}")), content).unwrap();
        }
        self.machine.does(
            "systemd-run --unit=names pebble-challtestsrv -defaultIPv6 '' -http01 '' -https01 '' \
             -tlsalpn01 '' -dns01 127.0.0.1:8053 -management 127.0.0.1:8055
             systemd-run --unit=acme -E PEBBLE_VA_NOSLEEP=1 -E PEBBLE_WFE_NONCEREJECT=0 \
             pebble -config /srv/acme/pebble.json -dnsserver 127.0.0.1:8053
             cat /srv/acme/ca.pem >>/etc/ssl/certs/ca-certificates.crt",
        );
        let trusted =
            "curl -sf https://127.0.0.1:15000/roots/0 >>/etc/ssl/certs/ca-certificates.crt";
        eventually("pebble", async || self.machine.run(trusted).ok.then_some(())).await;
    }

    /// Whether the machine sees this repository's tools; says so where it does not.
    fn has(&self, tool: &Path) -> bool {
        let found = self.machine.run(&format!("test -e {}", tool.display())).ok;
        if !found {
            eprintln!("skipped: {} is not on the file system of /", tool.display());
        }
        found
    }

    fn answers(&self, key: &str) {
        let asked = format!(
            r#"curl -s --max-time 60 https://{DOMAIN}/v1/chat/completions \
                -H "Authorization: Bearer {key}" -H 'Content-Type: application/json' \
                -d '{{"model": "model", "temperature": 0,
                     "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'"#
        );
        let said = self.machine.does(&asked);
        assert!(said.contains("Paris"), "{said}");
    }

    async fn serves(&self, authority: &str) {
        let line = format!("curl -sf --cacert {authority} https://{DOMAIN}/livez");
        eventually("the certificate", async || self.machine.run(&line).ok.then_some(())).await;
    }

    fn gateway_pid(&self) -> String {
        self.machine.does("systemctl show -P MainPID flotilla-gateway")
    }
}

/// The playbook, in the folder where somebody changed it for this machine.
struct Playbook<'a> {
    site: &'a Site,
    ansible: PathBuf,
}

impl Playbook<'_> {
    fn write(&self, keys: &str) {
        let folder = self.site.machine.path("/root/ansible");
        output(Command::new("cp").arg("-rT").arg(root().join("examples/ansible")).arg(&folder));
        let settings = text("examples/ansible/group_vars/all/main.yml");
        let settings = changed(
            &settings,
            &[
                ("https://flotilla.example/releases/v0.1.0", RELEASE),
                ("flotilla_version: 0.1.0", "flotilla_version: 1.0.0"),
                ("REPLACE-WITH-64-HEX-DIGITS", &self.site.sums_sha256),
                ("    email: ops@example.com", &format!("    {ACME}")),
                ("flotilla_keys: []", &format!("flotilla_keys: {keys}")),
                (HUB, MODEL),
            ],
        );
        std::fs::write(folder.join("group_vars/all/main.yml"), settings).unwrap();
        self.site.machine.does(&format!(
            "echo of-a-test >password; cd ansible; f=group_vars/all/vault.yml
             echo 'flotilla_join_key: {JOIN_KEY}' >$f
             {}/ansible-vault encrypt --vault-password-file ../password $f",
            self.ansible.display()
        ));
    }

    fn runs(&self, more: &str) -> String {
        let bin = self.ansible.display();
        // This machine is both hosts, one after the other, and there is no sudo for root.
        self.site.machine.does(&format!(
            "cd ansible; export ANSIBLE_NOCOLOR=1 ANSIBLE_PIPELINING=1
             {bin}/ansible-playbook -f 1 -i inventory.yml playbook.yml --vault-password-file ../password \
             --limit node-1.example.com,gateways -e ansible_connection=local \
             -e ansible_become=false {more} 2>&1"
        ))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_playbook_sets_up_a_fleet_and_changes_nothing_the_second_time() {
    let Some(ansible) = tool("tools/ansible/bin") else { return };
    let Some(site) = Site::start().await else { return };
    let machine = &site.machine;
    if !site.has(&ansible.join("ansible-playbook")) {
        return;
    }
    if !machine.run("/usr/bin/python3 -c 'import apt'").ok {
        eprintln!("skipped: Ansible needs apt-get install python3-apt");
        return;
    }
    let playbook = Playbook { site: &site, ansible };
    let key = run("flotilla-gateway", &["key", "new", "--name", "me"]).stdout;
    let digest = key.lines().find_map(|line| line.trim().strip_prefix("sha256: ")).unwrap();
    playbook.write(&format!("[{{name: me, sha256: {digest}}}]"));
    let said = playbook.runs("-vvv --diff");
    assert!(said.contains("TASK [Write the join key]") && !said.contains(JOIN_KEY), "{said}");
    assert_eq!(machine.does("stat -c %a /etc/flotilla/join.key"), "600\n");
    site.answers(key.lines().find(|line| line.starts_with("sk-")).unwrap());
    let before = site.gateway_pid();
    assert_eq!(playbook.runs("").matches(" changed=0 ").count(), 2);
    renews_by_hook(&site).await;
    assert_eq!(site.gateway_pid(), before, "it was never restarted");
}

/// The hook of examples/systemd with the packaged unit: its user may read what the hook writes.
async fn renews_by_hook(site: &Site) {
    let machine = &site.machine;
    let lineage = format!("/etc/letsencrypt/live/{DOMAIN}");
    let hooks = "/etc/letsencrypt/renewal-hooks/deploy";
    machine.does(&format!("mkdir -p {lineage} {hooks}; chmod 700 {lineage}"));
    let hook = machine.path(&format!("{hooks}/flotilla-certificate"));
    std::fs::copy(root().join("examples/systemd/flotilla-certificate"), hook).unwrap();
    for turn in ["first", "second"] {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new([DOMAIN.to_string()]).unwrap().self_signed(&key).unwrap();
        let key = key.serialize_pem();
        for (path, content) in [
            (format!("{lineage}/fullchain.pem"), made.pem()),
            (format!("{lineage}/privkey.pem"), key),
            (format!("/root/{turn}.pem"), made.pem()),
        ] {
            std::fs::write(machine.path(&path), content).unwrap();
        }
        machine.does(&format!("RENEWED_LINEAGE={lineage} {hooks}/flotilla-certificate"));
        let tls = "s|^tls:.*|tls: {cert_file: tls/cert.pem, key_file: tls/key.pem}|";
        machine.does(&format!("sed -i '{tls}' /etc/flotilla/gateway.yaml"));
        site.serves(&format!("/root/{turn}.pem")).await;
    }
    assert_eq!(
        machine.does("stat -c '%a %U %G' /etc/flotilla/tls/key.pem"),
        "640 root flotilla-gateway\n"
    );
}

/// cloud-init, with the packages of Python that it needs.
fn cloud_init(program: &Path) -> Command {
    let packages = program.parent().unwrap().join("../lib/python3/dist-packages");
    let mut command = Command::new("/usr/bin/python3");
    command.arg(program).env("PYTHONPATH", packages);
    command
}

#[test]
fn cloud_inits_schema_accepts_the_user_data() {
    let Some(program) = tool("examples/usr/bin/cloud-init") else { return };
    for name in ["gateway", "node"] {
        let file = root().join(format!("examples/cloud-init/{name}.yaml"));
        let said = output(cloud_init(&program).args(["schema", "--config-file"]).arg(file));
        assert!(said.contains("Valid cloud-config"), "{said}");
    }
    let folder = Folder::new();
    let bad = folder.write("bad.yaml", "#cloud-config\nruncmd: 1\n");
    let said = cloud_init(&program).args(["schema", "--config-file"]).arg(bad).output().unwrap();
    assert!(!said.status.success());
}

/// The modules of cloud-init that the user data is for; others would give the machine a locale and
/// users.
const MODULES: &str = "datasource_list: [NoCloud]\nsystem_info: {distro: debian}\n\
    cloud_init_modules: [write-files]\ncloud_config_modules: [runcmd]\n\
    cloud_final_modules: [package-update-upgrade-install, scripts-user]\n";

/// Boots the machine again, as far as cloud-init is concerned, with other user data.
fn first_boot(site: &Site, program: &Path, name: &str) {
    let machine = &site.machine;
    let seed = "/var/lib/cloud/seed/nocloud";
    let own = program.parent().unwrap().join("../..");
    machine.does(&format!(
        "rm -rf /var/lib/cloud /run/cloud-init; mkdir -p {seed}; cp -rn {}/etc/cloud /etc/",
        own.display()
    ));
    let data = changed(
        &text(&format!("examples/cloud-init/{name}.yaml")),
        &[
            ("https://flotilla.example/releases/v0.1.0", RELEASE),
            ("version=0.1.0", "version=1.0.0"),
            ("REPLACE-WITH-THE-PUBLIC-KEY", &site.public_key),
            ("REPLACE-WITH-64-HEX-DIGITS", JOIN_KEY),
        ],
    );
    let data = match name {
        "gateway" => changed(&data, &[("email: ops@example.com", ACME)]),
        _ => changed(&data, &[(HUB, MODEL)]),
    };
    for (file, content) in [
        (format!("{seed}/user-data"), data),
        (format!("{seed}/meta-data"), format!("instance-id: {name}\n")),
        ("/etc/cloud/cloud.cfg".into(), MODULES.into()),
    ] {
        std::fs::write(machine.path(&file), content).unwrap();
    }
    machine.does(&format!(
        "export PYTHONPATH={}/usr/lib/python3/dist-packages
         for stage in 'init --local' init 'modules --mode=config' 'modules --mode=final'; do
             /usr/bin/python3 {} $stage
         done",
        own.display(),
        program.display()
    ));
    let errors = machine.does("cat /run/cloud-init/result.json");
    assert!(
        errors.contains("\"errors\": []"),
        "{errors}\n{}",
        machine.does("cat /var/log/cloud-init-output.log")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_with_the_user_data_become_a_fleet_at_their_first_boot() {
    let Some(program) = tool("examples/usr/bin/cloud-init") else { return };
    let Some(site) = Site::start().await else { return };
    if !site.has(&program) {
        return;
    }
    for name in ["gateway", "node"] {
        first_boot(&site, &program, name);
    }
    let ready = format!("curl -sf https://{DOMAIN}/readyz");
    eventually("the node to join", async || site.machine.run(&ready).ok.then_some(())).await;
    let key = site.machine.does("grep ^sk- /root/api-key");
    site.answers(key.trim());
    assert_eq!(site.machine.does("stat -c %a /root/api-key /etc/flotilla/join.key"), "600\n600\n");
    let log = site.machine.does("cat /var/log/cloud-init*.log");
    assert!(!log.contains(key.trim()) && !log.contains(JOIN_KEY));

    // A package that somebody changed on the way is not installed.
    let changed = "cd /srv/release; echo >>\"$(ls flotilla-agent_*)\"; ! /usr/local/sbin/install-flotilla agent 2>&1";
    let said = site.machine.does(changed);
    assert!(said.contains("FAILED"), "{said}");
}
