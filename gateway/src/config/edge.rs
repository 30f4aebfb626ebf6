//! Reads the settings of the public listener's edge.

use super::acme::{self, Acme};
use super::files::Files;
use super::section::{Problems, Section};
use super::tls::{Acceptor, Authority};
use super::values::report;
use crate::config::cors::{Cors, origin};
use crate::config::proxies::{Proxies, network};
use crate::config::yaml::Problem;

/// Most networks or origins; every request scans the list.
const LIST_MAX: usize = 256;

/// Reads a certificate in files.
pub(super) fn read_tls(
    section: Option<Section>,
    files: &Files,
    problems: &mut Problems,
) -> Option<Acceptor> {
    let mut section = section?;
    let certificate = section.required_text("cert_file", problems);
    let key = section.required_text("key_file", problems);
    let path = section.path.clone();
    section.finish(problems);
    let acceptor = Acceptor::new(&files.path(&certificate?), &files.path(&key?), None);
    report(&path, acceptor, problems)
}

/// Reads the public listener's certificate: in files, or from an ACME server.
pub(super) fn read_public_tls(
    section: Option<Section>,
    authority: Option<Authority>,
    files: &Files,
    problems: &mut Problems,
) -> (Option<Acceptor>, Option<Acme>) {
    let Some(mut section) = section else { return (None, None) };
    let path = section.path.clone();
    let certificate = section.text("cert_file", problems);
    let key = section.text("key_file", problems);
    let has_files = certificate.is_some() || key.is_some();
    let acme = section.section("acme", problems);
    let has_acme = acme.is_some();
    let acme = acme::read(acme, files, problems);
    let absent = [("cert_file", &certificate), ("key_file", &key)];
    for (name, _) in absent.iter().filter(|(_, file)| !has_acme && file.is_none()) {
        section.report(name, "is missing, unless acme is set", problems);
    }
    section.finish(problems);
    if has_acme && has_files {
        let message = "acme and cert_file exclude each other: remove one of them".into();
        problems.push(Problem { path, message });
        return (None, None);
    }
    let acceptor = match (&acme, certificate, key) {
        (Some(acme), ..) => Acceptor::with_live_certificate(acme.certificate.clone(), authority),
        (None, Some(certificate), Some(key)) => {
            Acceptor::new(&files.path(&certificate), &files.path(&key), authority)
        }
        _ => return (None, None),
    };
    (report(&path, acceptor, problems), acme)
}

/// Reads the trusted proxies.
pub(super) fn read_proxies(root: &mut Section, problems: &mut Problems) -> Proxies {
    let texts = root.texts("trusted_proxies", problems);
    root.pattern("trusted_proxies", r"^[0-9A-Fa-f:.]+(/\d{1,3})?$");
    let expected = "expected an address or a network, such as 10.0.0.0/8";
    Proxies::new(parse_all("trusted_proxies", &texts, network, expected, problems))
}

/// Reads the CORS settings.
pub(super) fn read_cors(section: Option<Section>, problems: &mut Problems) -> Cors {
    let Some(mut section) = section else { return Cors::Off };
    let texts = section.texts("allowed_origins", problems);
    section.pattern("allowed_origins", r"^(\*|[a-z0-9._:+\[\]-]+://[a-z0-9._:+\[\]-]+)$");
    section.finish(problems);
    if texts == ["*"] {
        return Cors::Any;
    }
    let expected = "expected an origin, such as https://app.example.com, or '*' alone";
    let origins = parse_all("cors.allowed_origins", &texts, origin, expected, problems);
    if origins.is_empty() { Cors::Off } else { Cors::Origins(origins) }
}

fn parse_all<T>(
    path: &str,
    texts: &[String],
    parse: impl Fn(&str) -> Option<T>,
    expected: &str,
    problems: &mut Problems,
) -> Vec<T> {
    if texts.len() > LIST_MAX {
        let message = format!("expected at most {LIST_MAX} entries");
        problems.push(Problem { path: path.into(), message });
        return Vec::new();
    }
    let mut parsed = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        match parse(text) {
            Some(value) => parsed.push(value),
            None => {
                let path = format!("{path}[{at}]");
                problems.push(Problem { path, message: expected.into() });
            }
        }
    }
    parsed
}

#[cfg(test)]
mod tests {
    use crate::config::cors::Cors;
    use crate::config::document::check;
    use crate::config::files::Files;
    use crate::config::yaml::parse;

    const MINIMAL: &str =
        "allow_anonymous: true\nnodes: {static: [{url: 'http://10.0.0.1:8080'}]}\n";

    fn read(more: &str) -> Result<crate::config::Config, Vec<String>> {
        let checked = check(parse(&format!("{MINIMAL}{more}")).unwrap(), Files::default());
        checked.map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn nobody_is_trusted_and_no_page_may_ask_unless_that_is_said() {
        let config = read("").unwrap();
        assert!(!config.trusted_proxies.trusts("127.0.0.1".parse().unwrap()));
        assert!(matches!(config.cors, Cors::Off));
        assert!(matches!(read("cors: {allowed_origins: []}").unwrap().cors, Cors::Off));
        assert!(matches!(read("cors: {allowed_origins: ['*']}").unwrap().cors, Cors::Any));
        let config = read("trusted_proxies: [10.0.0.0/8, '::1']").unwrap();
        assert!(config.trusted_proxies.trusts("::1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_network_and_no_origin_is_said_by_its_place() {
        let found = read(
            "trusted_proxies: [10.0.0.0/8, 10.0.0.0/99]\ncors: {allowed_origins: [a.b, '*']}\n\
             limits: {connections_per_ip_max: 0}",
        )
        .unwrap_err();
        for begin in [
            "trusted_proxies[1]: expected an address or a network",
            "cors.allowed_origins[0]: expected an origin",
            "cors.allowed_origins[1]: expected an origin",
            "limits.connections_per_ip_max: expected a whole number, 1 to",
        ] {
            assert!(found.iter().any(|p| p.starts_with(begin)), "{begin} in {found:#?}");
        }
        assert_eq!(found.len(), 4, "{found:#?}");
    }
}
