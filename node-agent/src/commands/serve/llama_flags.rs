//! PURE. Understands the flags of llama-server, which many people know by heart: `serve` takes them
//! under those names, too. They are translated before the command line is parsed, because most have
//! one dash and several letters.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

/// Flags with a value: every name that llama-server has for one, and ours.
const WITH_VALUE: &[(&[&str], &str)] = &[
    (&["-m"], "--model"),
    (&["-mu", "--model-url"], "--model"),
    (&["-md", "--model-draft"], "--draft-model"),
    (&["-a", "--alias"], "--model-name"),
    (&["-c", "--ctx-size"], "--context-tokens"),
    (&["-np", "--parallel"], "--slots"),
    (&["-t"], "--threads"),
    (&["--api-key-file"], "--key-file"),
];
/// Flags without a value, and ours.
const WITHOUT_VALUE: &[(&str, [&str; 2])] =
    &[("--mlock", ["--load", "mlock"]), ("--no-mmap", ["--load", "none"])];
/// Flash attention. Its value may be missing.
const FLASH_ATTENTION: [&str; 2] = ["-fa", "--flash-attn"];
const FLASH_ATTENTION_VALUES: [&str; 3] = ["on", "off", "auto"];
/// Flags of which two make one of ours, or one of them does.
const IN_PAIRS: &[(&[&str], &str)] = &[
    (&["-ctk", "--cache-type-k"], "K"),
    (&["-ctv", "--cache-type-v"], "V"),
    (&["--host"], "host"),
    (&["--port"], "port"),
    (&["-hf", "-hfr", "--hf-repo"], "repository"),
    (&["-hff", "--hf-file"], "file"),
    (&["-hfd", "-hfrd", "--hf-repo-draft"], "draft repository"),
];

/// Replaces llama-server's flags of `serve` by ours.
///
/// # Errors
/// Keys and values of the cache have different types, which we do not support.
pub(crate) fn translate(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Vec<OsString>, String> {
    let mut given = arguments.into_iter();
    let mut out: Vec<OsString> = given.by_ref().take(2).collect();
    if out.get(1).is_none_or(|command| command != "serve") {
        out.extend(given);
        return Ok(out);
    }
    let mut pairs: BTreeMap<&str, OsString> = BTreeMap::new();
    let mut given = given.peekable();
    while let Some(argument) = given.next() {
        let (name, attached) = split(&argument);
        let mut value = || attached.clone().or_else(|| given.next());
        if let Some(ours) = find(WITH_VALUE, name) {
            let value = value();
            // llama-server's way to say that it decides itself.
            let is_automatic =
                ["0", "-1"].iter().any(|automatic| value.as_deref() == Some(OsStr::new(automatic)));
            if !(is_automatic && ["--context-tokens", "--slots", "--threads"].contains(&ours)) {
                out.push(ours.into());
                out.extend(value);
            }
        } else if let Some(half) = find(IN_PAIRS, name) {
            pairs.extend(value().map(|value| (half, value)));
        } else if let Some((_, ours)) = WITHOUT_VALUE.iter().find(|(known, _)| *known == name) {
            out.extend(ours.map(Into::into));
        } else if FLASH_ATTENTION.contains(&name) {
            let is_value =
                |next: &OsString| FLASH_ATTENTION_VALUES.iter().any(|value| next == value);
            let value = attached.or_else(|| given.next_if(is_value));
            out.extend(["--flash-attention".into(), value.unwrap_or_else(|| "on".into())]);
        } else {
            out.push(argument);
        }
    }
    out.extend(kv_type(&pairs));
    out.extend(hub_model(&pairs)?);
    out.extend(hub_draft(&pairs));
    out.extend(listen(&pairs));
    Ok(out)
}

/// The name of a flag, and the value that is attached with `=`.
fn split(argument: &OsStr) -> (&str, Option<OsString>) {
    let text = argument.to_str().unwrap_or_default();
    match text.split_once('=') {
        Some((name, value)) if name.starts_with("--") => (name, Some(value.into())),
        _ => (text, None),
    }
}

fn find(table: &'static [(&[&str], &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(names, _)| names.contains(&name)).map(|(_, ours)| *ours)
}

/// The one that is not given is `f16`, llama-server's default.
fn kv_type(pairs: &BTreeMap<&str, OsString>) -> Vec<OsString> {
    let given = [pairs.get("K"), pairs.get("V")];
    if given.iter().all(Option::is_none) {
        return Vec::new();
    }
    let [keys, values] = given.map(|kind| kind.map_or("f16".into(), |kind| kind.to_string_lossy()));
    let both = if keys == values { keys.to_string() } else { format!("{keys}/{values}") };
    vec!["--kv-type".into(), both.into()]
}

fn hub_model(pairs: &BTreeMap<&str, OsString>) -> Result<Vec<OsString>, String> {
    let text = |name: &str| pairs.get(name).map(|value| value.to_string_lossy());
    let (repo, file) = (text("repository"), text("file"));
    let Some(repo) = repo else {
        return match file {
            Some(_) => Err("--hf-file needs --hf-repo OWNER/REPO".into()),
            None => Ok(Vec::new()),
        };
    };
    let repo = repo.strip_prefix("hf:").unwrap_or(&repo);
    let model = match file {
        None => format!("hf:{repo}"),
        // The file decides about the quantization.
        Some(file) => format!("hf:{}/{file}", repo.split(':').next().unwrap_or(repo)),
    };
    Ok(vec!["--model".into(), model.into()])
}

fn hub_draft(pairs: &BTreeMap<&str, OsString>) -> Vec<OsString> {
    let Some(repo) = pairs.get("draft repository") else { return Vec::new() };
    let repo = repo.to_string_lossy();
    let repo = repo.strip_prefix("hf:").unwrap_or(&repo);
    vec!["--draft-model".into(), format!("hf:{repo}").into()]
}

fn listen(pairs: &BTreeMap<&str, OsString>) -> Vec<OsString> {
    let text = |name: &str| Some(pairs.get(name)?.to_string_lossy().into_owned());
    let (host, port) = (text("host"), text("port"));
    if host.is_none() && port.is_none() {
        return Vec::new();
    }
    let host = match host.as_deref() {
        None | Some("localhost") => "127.0.0.1".to_string(),
        Some(v6) if v6.contains(':') && !v6.starts_with('[') => format!("[{v6}]"),
        Some(host) => host.to_string(),
    };
    let port = port.unwrap_or_else(|| "8080".into());
    vec!["--listen".into(), format!("{host}:{port}").into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Result<String, String> {
        let words = translate(line.split(' ').map(OsString::from))?;
        let words: Vec<String> = words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
        Ok(words.join(" "))
    }

    #[test]
    fn the_flags_of_llama_server_become_ours() {
        for (theirs, ours) in [
            (
                "-m a.gguf -c 4096 -np 4 -t 8",
                "--model a.gguf --context-tokens 4096 --slots 4 --threads 8",
            ),
            ("--ctx-size=512 --parallel=2", "--context-tokens 512 --slots 2"),
            ("-c 0 -np -1 -t -1", ""),
            ("-fa", "--flash-attention on"),
            ("-fa off --slots 2", "--flash-attention off --slots 2"),
            ("--flash-attn --mlock", "--flash-attention on --load mlock"),
            ("--no-mmap -a name", "--load none --model-name name"),
            ("-ctk q8_0 -ctv q8_0", "--kv-type q8_0"),
            ("-ctk q8_0 --cache-type-v=q4_0", "--kv-type q8_0/q4_0"),
            ("-ctk q8_0", "--kv-type q8_0/f16"),
            ("-ctv q5_1 -fa", "--flash-attention on --kv-type f16/q5_1"),
            ("--host 0.0.0.0 --port 9000", "--listen 0.0.0.0:9000"),
            ("--host ::1", "--listen [::1]:8080"),
            ("--port 0 --host localhost", "--listen 127.0.0.1:0"),
            ("--api-key-file keys", "--key-file keys"),
            ("--model b.gguf --join http://a -h", "--model b.gguf --join http://a -h"),
            ("-m", "--model"),
            ("-hf o/r:Q8_0 -c 512", "--context-tokens 512 --model hf:o/r:Q8_0"),
            ("--hf-repo=hf:o/r", "--model hf:o/r"),
            ("-hf o/r:Q8_0 -hff q/m.gguf", "--model hf:o/r/q/m.gguf"),
            ("-m a -hfd o/r:Q8_0", "--model a --draft-model hf:o/r:Q8_0"),
            ("-m a --hf-repo-draft=hf:o/r", "--model a --draft-model hf:o/r"),
            ("-mu https://h/m.gguf", "--model https://h/m.gguf"),
        ] {
            let expected = format!("agent serve {ours}");
            assert_eq!(translated(&format!("agent serve {theirs}")).unwrap(), expected.trim());
        }
    }

    #[test]
    fn other_commands_keep_their_flags() {
        assert_eq!(translated("agent bench -m a").unwrap(), "agent bench -m a");
        assert_eq!(translated("agent").unwrap(), "agent");
        assert!(translated("agent serve -hff m.gguf").unwrap_err().contains("--hf-repo"));
    }
}
