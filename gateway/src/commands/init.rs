//! `flotilla-gateway init`, and the first `run`: a configuration with all keys, in one folder.

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::access::keys::ApiKey;
use crate::commands::error::CommandError;
use crate::commands::key::{KeysFile, NewKey, random_hex};
use crate::config::acme::{check_domain, is_email};
use crate::config::locate::CONFIG_FILE;
use crate::types::atomic_file::replace;

/// Name of the first API key.
const TENANT: &str = "default";
const KEYS_FILE: &str = "keys.yaml";
const JOIN_KEY_FILE: &str = "join.key";
const ADMIN_KEY_FILE: &str = "admin.key";
const CERTIFICATE_FILE: &str = "cert.pem";
const CERTIFICATE_KEY_FILE: &str = "cert-key.pem";
/// Only the gateway's user reads keys.
const SECRET_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const CONFIG_MODE: u32 = 0o644;

/// What the new configuration says.
#[derive(Debug, Clone)]
pub struct Choices {
    /// Address for clients and nodes.
    pub public: SocketAddr,
    /// Address for operators.
    pub admin: SocketAddr,
    /// Names in the self-signed certificate.
    pub names: Vec<String>,
    /// Domains of a certificate from Let's Encrypt, instead of a self-signed one.
    pub domains: Vec<String>,
    /// Contact for Let's Encrypt.
    pub email: Option<String>,
}

impl Choices {
    /// True if a self-signed certificate is needed: other machines reach a listener that gets none
    /// from Let's Encrypt.
    fn need_certificate(&self) -> bool {
        let public = !self.public.ip().is_loopback() && self.domains.is_empty();
        public || !self.admin.ip().is_loopback()
    }

    /// The same with domains as the configuration writes them.
    fn checked(mut self) -> Result<Self, CommandError> {
        for domain in &mut self.domains {
            let fail = |why| CommandError::Usage(format!("--domain {domain}: {why}"));
            *domain = check_domain(domain).map_err(fail)?;
        }
        match &self.email {
            Some(email) if !is_email(email) => Err(CommandError::Usage(format!(
                "--acme-email {email}: expected an address, such as ops@example.com"
            ))),
            _ => Ok(self),
        }
    }
}

const TLS_COMMENT: &str = "\
# TLS with a self-signed certificate: nodes pin it, clients need it as a file. To use a certificate from
# an authority, name its files here.
";

const ACME_COMMENT: &str = "\
# TLS with a certificate from Let's Encrypt, which the gateway gets and renews by itself. Port 443 of each
# domain must lead to the address above. With this section you agree to Let's Encrypt's terms of service.
";

fn acme_text(choices: &Choices) -> String {
    let email = match &choices.email {
        Some(email) => format!("    email: '{}'\n", email.replace('\'', "''")),
        None => String::new(),
    };
    let domains = choices.domains.join(", ");
    format!("\n{ACME_COMMENT}tls:\n  acme:\n    domains: [{domains}]\n{email}")
}

fn config_text(choices: &Choices) -> String {
    let Choices { public, admin, .. } = *choices;
    let files = "{cert_file: cert.pem, key_file: cert-key.pem}";
    let unless_local = |address: SocketAddr, text: String| match address.ip().is_loopback() {
        true => String::new(),
        false => text,
    };
    let tls = match choices.domains.is_empty() {
        true => unless_local(public, format!("\n{TLS_COMMENT}tls: {files}\n")),
        false => acme_text(choices),
    };
    let admin_tls = unless_local(admin, format!("  tls: {files}\n"));
    format!(
        "\
# The gateway's configuration. It applies changes to this file within two seconds. All keys, with their
# defaults: 'flotilla-gateway config reference'. File names are relative to this file.

# Clients and nodes connect here. To serve other machines, set an address of this one, and tls.
listen: '{public}'
{tls}
# The fleet page, metrics, and the commands 'nodes', 'top', 'batches', 'jobs', 'cordon', 'drain'
# and 'uncordon'.
admin:
  listen: '{admin}'
  key_file: admin.key
{admin_tls}
# API keys: 'flotilla-gateway key new', 'key list' and 'key revoke'.
keys_file: keys.yaml

# Nodes join with this key: 'flotilla-gateway join-command'.
nodes:
  join_key_file: join.key

# Keeps usage, spend and cordons across restarts.
state_file: state.json

# Keeps files and batches (/v1/files, /v1/batches, /v1/messages/batches).
store:
  dir: store
"
    )
}

/// What was created.
#[derive(Debug)]
pub struct Created {
    /// The configuration file.
    pub config: PathBuf,
    /// The certificate that was created for listeners that other machines reach.
    pub certificate: Option<PathBuf>,
    /// The first API key, which is stored as a digest only. `None` if another process has created
    /// the configuration at the same time.
    pub api_key: Option<String>,
}

impl Created {
    /// A configuration that existed.
    pub fn existing(config: PathBuf) -> Self {
        Self { config, certificate: None, api_key: None }
    }
}

/// Creates a configuration and its keys in `folder`, which need not exist. The configuration is
/// written last, so a folder has either all or no configuration; keys for nodes and operators that
/// are there already stay. A listener that other machines reach gets TLS, with a self-signed
/// certificate unless there are domains.
///
/// # Errors
/// A file cannot be read or written, or a domain cannot have a certificate.
pub fn create(folder: &Path, choices: Choices) -> Result<Created, CommandError> {
    let choices = choices.checked()?;
    let fail = |path: &Path, e| CommandError::Write(format!("{}: {e}", path.display()));
    let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder);
    made.map_err(|e| fail(folder, e))?;
    let config = folder.join(CONFIG_FILE);
    // Holds the lock of the folder.
    let mut keys = KeysFile::open(&folder.join(KEYS_FILE))?;
    if config.exists() {
        return Ok(Created::existing(config));
    }
    let new = NewKey::generate(TENANT, |digest| ApiKey::new(TENANT, digest))?;
    keys.keys.retain(|key| key.name != TENANT);
    keys.keys.push(new.entry);
    keys.save()?;
    create_keys(folder, &choices)?;
    replace(&config, &config_text(&choices), CONFIG_MODE).map_err(|e| fail(&config, e))?;
    let certificate = choices.need_certificate().then(|| folder.join(CERTIFICATE_FILE));
    Ok(Created { config, certificate, api_key: Some(new.secret) })
}

/// Creates the keys for nodes and operators in `folder`, and a self-signed certificate if a
/// listener needs one. Files that are there already stay. Packages call this: they bring their own
/// configuration.
///
/// # Errors
/// A file cannot be written.
pub fn create_keys(folder: &Path, choices: &Choices) -> Result<(), CommandError> {
    let fail = |path: &Path, e| CommandError::Write(format!("{}: {e}", path.display()));
    for name in [JOIN_KEY_FILE, ADMIN_KEY_FILE] {
        let path = folder.join(name);
        if !path.exists() {
            let key = random_hex()? + "\n";
            replace(&path, &key, SECRET_MODE).map_err(|e| fail(&path, e))?;
        }
    }
    if choices.need_certificate() && !folder.join(CERTIFICATE_FILE).exists() {
        create_certificate(folder, &choices.names)?;
    }
    Ok(())
}

/// Writes a self-signed certificate and its key; the certificate last.
fn create_certificate(folder: &Path, names: &[String]) -> Result<(), CommandError> {
    let fail = |e: rcgen::Error| CommandError::Usage(format!("cannot create a certificate: {e}"));
    let key = rcgen::KeyPair::generate().map_err(fail)?;
    let certificate = rcgen::CertificateParams::new(names).map_err(fail)?;
    let certificate = certificate.self_signed(&key).map_err(fail)?;
    for (name, pem, mode) in [
        (CERTIFICATE_KEY_FILE, key.serialize_pem(), SECRET_MODE),
        (CERTIFICATE_FILE, certificate.pem(), CONFIG_MODE),
    ] {
        let path = folder.join(name);
        let fail = |e| CommandError::Write(format!("{}: {e}", path.display()));
        replace(&path, &pem, mode).map_err(fail)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::commands::join_command::{Join, JoinKey};
    use crate::config::load::load;

    fn choices(public: &str, admin: &str) -> Choices {
        let (public, admin) = (public.parse().unwrap(), admin.parse().unwrap());
        Choices { public, admin, names: Vec::new(), domains: Vec::new(), email: None }
    }

    fn create(folder: &Path) -> Created {
        super::create(folder, choices("127.0.0.1:18080", "127.0.0.1:18081")).unwrap()
    }

    #[test]
    fn what_is_created_is_valid_and_only_its_owner_reads_the_keys() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("new/flotilla");
        let created = create(&folder);
        let config = load(&created.config).unwrap();
        let key = created.api_key.unwrap();
        assert!(config.keys.iter().any(|known| known.digest.matches(key.as_bytes())));
        assert!(config.join_key.is_some() && config.admin.unwrap().key.is_some());
        assert_eq!(config.listen.port(), 18080);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join(JOIN_KEY_FILE)), 0o600);
        assert_eq!(mode(&folder.join(ADMIN_KEY_FILE)), 0o600);
    }

    #[test]
    fn what_other_machines_reach_has_tls_and_nodes_get_its_pin() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["gateway.example".to_string(), "10.0.0.7".to_string()].to_vec();
        let choices = Choices { names, ..choices("0.0.0.0:18443", "[::]:18444") };
        let created = super::create(folder.path(), choices).unwrap();
        let config = load(&created.config).unwrap();
        assert!(config.tls.is_some() && config.admin.as_ref().unwrap().tls.is_some());
        let line = |url| Join::new(&config, url, JoinKey::File).map(|join| join.command());
        assert!(line(None).unwrap_err().to_string().contains("--url"));
        let pinned = line(Some("https://gateway.example:18443")).unwrap();
        assert!(pinned.contains(" --join https://gateway.example:18443 --join-pin sha256:"));
        let key = folder.path().join(CERTIFICATE_KEY_FILE);
        assert_eq!(fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_package_gets_only_the_keys_that_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at(ADMIN_KEY_FILE), "mine\n").unwrap();
        let names = ["gateway.example".to_string()].to_vec();
        let choices = Choices { names, ..choices("0.0.0.0:18443", "127.0.0.1:18081") };
        create_keys(folder.path(), &choices).unwrap();
        let certificate = fs::read(at(CERTIFICATE_FILE)).unwrap();
        create_keys(folder.path(), &choices).unwrap();
        assert_eq!(fs::read(at(CERTIFICATE_FILE)).unwrap(), certificate);
        assert_eq!(fs::read_to_string(at(ADMIN_KEY_FILE)).unwrap(), "mine\n");
        assert!(at(JOIN_KEY_FILE).exists() && at(CERTIFICATE_KEY_FILE).exists());
        assert!(!at(CONFIG_FILE).exists() && !at(KEYS_FILE).exists());
    }

    #[test]
    fn a_node_joins_by_a_command_or_by_the_variables_of_its_service() {
        let folder = tempfile::tempdir().unwrap();
        let choices = choices("0.0.0.0:18443", "127.0.0.1:18081");
        let created = super::create(folder.path(), choices).unwrap();
        let config = load(&created.config).unwrap();
        let join = Join::new(&config, Some("https://gateway.example:18443/"), JoinKey::Inline);
        let join = join.unwrap();
        let variables = join.environment();
        let lines: Vec<&str> = variables.lines().collect();
        let key = fs::read_to_string(folder.path().join(JOIN_KEY_FILE)).unwrap();
        assert_eq!(lines[0], "FLOTILLA_JOIN=https://gateway.example:18443");
        assert!(lines[1].starts_with("FLOTILLA_JOIN_PIN=sha256:"), "{}", lines[1]);
        assert_eq!(lines[2], format!("FLOTILLA_JOIN_KEY={}", key.trim()));
        assert!(join.command().starts_with(&format!("{} flotilla-agent serve", lines[2])));
    }

    #[test]
    fn a_domain_gets_a_certificate_that_needs_no_pin() {
        let folder = tempfile::tempdir().unwrap();
        let with = |domain: &str, email: &str| Choices {
            domains: vec![domain.into(), "other.example".into()],
            email: Some(email.into()),
            ..choices("0.0.0.0:443", "127.0.0.1:18081")
        };
        for (domain, email, wrong) in [
            ("10.0.0.7", "ops@example.com", "--domain 10.0.0.7: is an address"),
            ("llm.example.com", "ops", "--acme-email ops: expected"),
        ] {
            let error = super::create(folder.path(), with(domain, email)).unwrap_err().to_string();
            assert!(error.starts_with(wrong), "{error}");
        }
        let choices = with("LLM.example.com", "o'ps@example.com");
        let created = super::create(folder.path(), choices).unwrap();
        assert_eq!(created.certificate, None);
        let config = load(&created.config).unwrap();
        let acme = config.acme.as_ref().unwrap();
        assert_eq!(acme.domains, ["llm.example.com", "other.example"]);
        assert_eq!(acme.email.as_deref(), Some("o'ps@example.com"));
        assert_eq!(acme.folder, folder.path().join("acme/acme-v02.api.letsencrypt.org"));
        let line = Join::new(&config, None, JoinKey::File).unwrap().command();
        assert!(line.contains(" --join https://llm.example.com --join-key-file "), "{line}");
    }

    #[test]
    fn a_configuration_that_exists_stays_and_a_half_made_one_is_completed() {
        let folder = tempfile::tempdir().unwrap();
        let first = create(folder.path());
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        let (join_key, keys) = (read(JOIN_KEY_FILE), read(KEYS_FILE));
        let again = create(folder.path());
        assert_eq!((again.api_key, read(KEYS_FILE)), (None, keys.clone()));
        fs::remove_file(&first.config).unwrap();
        let third = create(folder.path());
        assert_ne!(third.api_key, first.api_key);
        assert_eq!(read(JOIN_KEY_FILE), join_key);
        assert_eq!(load(&third.config).unwrap().keys.len(), 1);
    }
}
