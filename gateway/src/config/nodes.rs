//! Reads the settings of nodes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::StaticNode;
use super::files::Files;
use super::section::{Problems, Section};
use crate::config::tls::{Authority, Dialer};
use crate::config::values::{header, long_key, report, server_url};
use crate::config::yaml::Problem;
use crate::types::secret::KeyDigest;

/// Settings of nodes.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// Digest of the join key.
    pub join_key: Option<KeyDigest>,
    /// File of the join key.
    pub join_key_file: Option<PathBuf>,
    /// The CA for client certificates of joining nodes.
    pub authority: Option<Authority>,
    /// Static nodes, which the gateway dials.
    pub listed: Vec<StaticNode>,
    /// Price of a node per hour.
    pub price_per_hour: f64,
    /// Leaving nodes hand their saved prefixes to others.
    pub hand_over: bool,
}

/// Reads `nodes`.
pub(super) fn read(section: Option<Section>, files: &Files, problems: &mut Problems) -> Nodes {
    let none = "there are none: set nodes.join_key_file or nodes.static";
    let Some(mut section) = section else {
        problems.push(Problem { path: "nodes".into(), message: none.into() });
        return Nodes::default();
    };
    let join_key_file = section.text("join_key_file", problems);
    let authority_file = section.text("client_ca_file", problems);
    let items = section.list("static", problems);
    let price_per_hour = section.decimal("price_per_hour", problems);
    let hand_over = section.boolean("hand_over", false, problems);
    if join_key_file.is_none() && items.is_empty() {
        problems.push(Problem { path: "nodes".into(), message: none.into() });
    }
    let join_key = join_key_file
        .as_ref()
        .and_then(|file| report("nodes.join_key_file", long_key(files, file), problems));
    let join_key_file = join_key_file.map(|file| files.resolve(&file));
    let authority = authority_file.and_then(|file| {
        report("nodes.client_ca_file", Authority::new(&files.path(&file)), problems)
    });
    let mut urls = BTreeSet::new();
    let listed = items.into_iter().filter_map(|item| read_static(item, files, &mut urls, problems));
    let listed = listed.collect();
    section.finish(problems);
    Nodes { join_key, join_key_file, authority, listed, price_per_hour, hand_over }
}

fn read_static(
    mut item: Section,
    files: &Files,
    urls: &mut BTreeSet<String>,
    problems: &mut Problems,
) -> Option<StaticNode> {
    let url = item.required_text("url", problems);
    item.pattern("url", "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@]+/?$");
    let key_file = item.text("key_file", problems);
    let mut file = |key| item.text(key, problems).map(|file| files.path(&file));
    let (ca_file, cert_file) = (file("ca_file"), file("cert_file"));
    let client_key_file = file("client_key_file");
    if url.as_ref().is_some_and(|url| !urls.insert(url.clone())) {
        item.report("url", "this node is listed twice", problems);
    }
    let own = match (&cert_file, &client_key_file) {
        (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
        (None, None) => None,
        _ => {
            item.report("cert_file", "set both cert_file and client_key_file", problems);
            None
        }
    };
    let path = item.path.clone();
    item.finish(problems);
    let authorization = match key_file {
        Some(file) => {
            let key = files.key(&file).and_then(|key| header(&key));
            Some(report(&format!("{path}.key_file"), key, problems)?)
        }
        None => None,
    };
    let url = url?;
    let (host, port, secure) = report(&format!("{path}.url"), split_url(&url), problems)?;
    let tls = match secure {
        true => Some(dialer(&path, ca_file.as_deref(), own, problems)?),
        false => None,
    };
    Some(StaticNode { url, host, port, tls, authorization })
}

/// Creates the TLS client in two steps, so that each problem is reported with the key it concerns.
fn dialer(
    path: &str,
    ca_file: Option<&Path>,
    own: Option<(&Path, &Path)>,
    problems: &mut Problems,
) -> Option<Dialer> {
    let trusting = report(&format!("{path}.ca_file"), Dialer::new(ca_file, None), problems)?;
    match own {
        Some(_) => report(&format!("{path}.cert_file"), Dialer::new(ca_file, own), problems),
        None => Some(trusting),
    }
}

fn split_url(url: &str) -> Result<(String, u16, bool), String> {
    let wrong = || "expected http://host:port or https://host:port".to_string();
    let uri = server_url(url).ok_or_else(wrong)?;
    // A user's name would be dropped silently.
    if !matches!(uri.path(), "" | "/") || url.contains('@') {
        return Err(wrong());
    }
    let secure = uri.scheme_str() == Some("https");
    let host = uri.host().ok_or_else(wrong)?;
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    Ok((host.trim_matches(['[', ']']).to_string(), port, secure))
}
