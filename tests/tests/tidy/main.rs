//! The laws of this repository that no compiler checks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod examples;
mod layers;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use fleet_tests::root;
use flotilla_gateway::config::document::KEYS;
use inference_core::tools::synth::PRE_TOKENIZERS;

/// Lines of the largest file; most have fewer than 300.
const FILE_LINES_MAX: usize = 500;
/// As in rustfmt.toml.
const COLUMNS_MAX: usize = 100;

/// Every member of the workspace.
const MEMBERS: [&str; 10] = [
    "gateway",
    "node-agent",
    "inference-core",
    "inference-core/protocol",
    "inference-core/translation",
    "inference-core/metrics",
    "listeners",
    "manual",
    "tests",
    "fuzz",
];

/// Members, and the crates that each may not reach: the gateway knows no engine, the engine
/// no network.
const FORBIDDEN: [(&str, &[&str]); 9] = [
    ("inference-core/protocol", &["tokio", "hyper", "rustls", "prometheus", "inference-core"]),
    ("inference-core/translation", &["tokio", "hyper", "rustls", "prometheus", "inference-core"]),
    ("inference-core/metrics", &["tokio", "hyper", "rustls", "inference-core"]),
    ("inference-core", &["tokio", "hyper", "rustls", "prometheus", "tracing", "flotilla-agent"]),
    ("node-agent", &["flotilla-gateway", "llama-cpp-sys-2"]),
    ("gateway", &["flotilla-agent", "inference-core", "llama-cpp-sys-2"]),
    ("listeners", &["rustls", "prometheus", "inference-protocol", "inference-core"]),
    ("fuzz", &["flotilla-agent", "llama-cpp-sys-2", "libfuzzer-sys"]),
    ("manual", &["tokio", "hyper", "inference-protocol", "inference-core"]),
];

/// What a module that calls itself pure has no business with.
const IMPURE: [&str; 8] = [
    "tokio::",
    "std::fs",
    "std::net",
    "std::thread",
    "std::process",
    "Instant::now",
    "SystemTime",
    "getrandom",
];

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn collect(folder: &Path, sources: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|e| e == "rs") {
            sources.push(path);
        }
    }
}

/// Every Rust file, with its path from the root and its text.
fn sources() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    let members =
        ["gateway", "node-agent", "inference-core", "listeners", "manual", "tests", "fuzz"];
    for member in members {
        collect(&root().join(member), &mut paths);
    }
    assert!(paths.len() > 50, "only {} files were found", paths.len());
    let name = |p: &PathBuf| p.strip_prefix(root()).unwrap().display().to_string();
    paths.iter().map(|p| (name(p), read(p))).collect()
}

/// What a file does when it is not tested.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap()
}

/// Names in a `[...dependencies]` table of a manifest, and the lines they are on.
fn dependencies(manifest: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]");
        } else if inside && line.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            let name = line.split(['.', ' ', '=']).next().unwrap();
            found.push((name.to_string(), line.to_string()));
        }
    }
    assert!(!found.is_empty());
    found
}

#[test]
fn members_depend_only_on_what_they_may() {
    for (member, forbidden) in FORBIDDEN {
        for (name, _) in dependencies(&read(format!("{member}/Cargo.toml"))) {
            assert!(!forbidden.contains(&name.as_str()), "{member} must not depend on {name}");
        }
    }
}

#[test]
fn the_workspace_lists_every_dependency_with_its_reason() {
    let manifest = read("Cargo.toml");
    let listed: BTreeSet<String> = dependencies(&manifest).into_iter().map(|(n, _)| n).collect();
    let mut used = BTreeSet::new();
    for member in MEMBERS {
        for (name, line) in dependencies(&read(format!("{member}/Cargo.toml"))) {
            assert!(line.contains("workspace = true"), "{member}: {line} has a version of its own");
            used.insert(name);
        }
    }
    assert_eq!(listed, used, "listed in Cargo.toml, and used");

    let table = manifest.split("[workspace.dependencies]").nth(1).unwrap();
    let table = table.split("\n[").next().unwrap();
    let groups = table.split("\n\n").filter(|g| !g.contains("path = ") && !g.trim().is_empty());
    for group in groups {
        assert!(group.trim_start().starts_with('#'), "no reason is given for: {group}");
    }
}

/// The text between the quotes of `key = "..."`.
fn quoted(text: &str, key: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
    line.unwrap_or_else(|| panic!("there is no {key}")).trim_end_matches('"').to_string()
}

#[test]
fn rustup_installs_the_compiler_of_the_workspace() {
    let (wanted, least) = (
        quoted(&read("rust-toolchain.toml"), "channel"),
        quoted(&read("Cargo.toml"), "rust-version"),
    );
    // All three parts: for rustup 1.95 and 1.95.0 are two toolchains.
    assert!(wanted.starts_with(&format!("{least}.")), "{wanted} is no release of {least}");
}

#[test]
fn ci_runs_the_tests_with_few_rights_and_pinned_actions() {
    let workflow = read(".github/workflows/ci.yml");
    for line in ["        run: .ci/run", "permissions:", "  contents: read"] {
        assert!(workflow.lines().any(|l| l == line), "no line '{line}'");
    }
    assert!(!workflow.contains("write"), "a job that only tests writes nothing");
    let actions = workflow.split("uses: ").skip(1);
    for action in actions.map(|rest| rest.lines().next().unwrap()) {
        let commit = action.split_once('@').unwrap().1.split(' ').next().unwrap();
        let is_pinned = commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit());
        assert!(is_pinned, "{action} is not pinned to a commit");
    }
}

#[test]
fn pure_modules_read_no_clock_no_file_and_no_socket() {
    let mut pure = 0;
    for (name, text) in sources().iter().filter(|(_, text)| text.starts_with("//! PURE")) {
        pure += 1;
        for word in IMPURE {
            assert!(!without_tests(text).contains(word), "{name} calls itself pure, uses {word}");
        }
    }
    assert!(pure >= 10, "only {pure} pure modules");
}

#[test]
fn unsafe_code_stays_in_the_module_that_calls_llama_cpp() {
    for (name, text) in sources() {
        let code = text.lines().filter(|l| !l.trim_start().starts_with("//"));
        let words = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
        let uses = code.filter(|l| words.iter().any(|w| l.contains(w))).count();
        let allowed =
            name.starts_with("inference-core/src/llama") || name.starts_with("tests/tests/tidy/");
        assert!(uses == 0 || allowed, "{name} has unsafe code");
    }
}

#[test]
fn every_file_says_what_it_is_and_stays_small() {
    for (name, text) in sources() {
        assert!(text.starts_with("//! "), "{name} has no module doc");
        let lines = text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{name} has {lines} lines");
    }
}

#[test]
fn comments_are_no_wider_than_code() {
    for (name, text) in sources() {
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
        let mut wide = comments.filter(|line| line.chars().count() > COLUMNS_MAX);
        assert_eq!(wide.next(), None, "{name}: rustfmt leaves comments alone");
    }
}

#[test]
fn tests_wait_for_events_not_for_time() {
    let in_tests =
        |name: &str| name.starts_with("tests/") && !name.starts_with("tests/tests/tidy/");
    for (name, text) in sources().iter().filter(|(name, _)| in_tests(name)) {
        // `eventually` itself looks again after a pause.
        let allowed = usize::from(name == "tests/src/lib.rs");
        assert_eq!(text.matches("sleep(").count(), allowed, "{name} sleeps");
    }
}

/// Keys of YAML in block style, `#` before a key removed, with `[]` for items of lists.
fn yaml_keys(text: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut path: Vec<(usize, String)> = Vec::new();
    for line in text.lines() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        let bare = bare.strip_prefix('#').unwrap_or(bare);
        if bare.starts_with(' ') || bare.is_empty() {
            continue;
        }
        let (item, bare) = match bare.strip_prefix("- ") {
            Some(rest) => (true, rest),
            None => (false, bare),
        };
        let Some((key, value)) = bare.split_once(':') else { panic!("no key in: {line}") };
        let indent = indent + if item { 2 } else { 0 };
        path.retain(|(i, _)| *i < indent);
        if item && let Some((_, parent)) = path.last_mut() {
            *parent = format!("{}[]", parent.trim_end_matches("[]"));
        }
        path.push((indent, key.to_string()));
        if !value.is_empty() {
            let names: Vec<&str> = path.iter().map(|(_, name)| name.as_str()).collect();
            keys.insert(names.join("."));
        }
    }
    keys
}

#[test]
fn the_reference_configuration_shows_every_key_and_no_other() {
    let shown = yaml_keys(&read("configs/gateway.yaml"));
    assert_eq!(shown, KEYS.iter().map(|k| k.to_string()).collect());
}

#[test]
fn the_reference_of_the_api_names_every_field_that_is_read() {
    let reference = read("docs/api.md");
    let source = read("inference-core/protocol/src/openai/request.rs");
    let is_name =
        |name: &str| name.bytes().all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b));
    let fields =
        source.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'));
    let mut fields: Vec<&str> = fields.map(|(name, _)| name).filter(|n| is_name(n)).collect();
    let aliases = source.split("alias = \"").skip(1).filter_map(|rest| rest.split('"').next());
    fields.extend(aliases);
    // Parts of others, in their rows.
    fields.retain(|name| !["kind", "schema", "strict", "include_usage"].contains(name));
    assert!(fields.len() > 40, "only {} fields were found", fields.len());
    for field in fields {
        assert!(reference.contains(&format!("`{field}`")), "docs/api.md does not name {field}");
    }
}

/// Documents beside those directly in docs/, which the `docs` test looks at.
fn documents() -> Vec<String> {
    let mut documents = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        ".github/pull_request_template.md",
        "helm/flotilla/README.md",
        "inference-core/cmake/README.md",
        "inference-core/demo-model/README.md",
    ]
    .map(String::from)
    .to_vec();
    documents.extend(records());
    documents
}

/// The decision records and their index.
fn records() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("docs/decisions")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().display().to_string());
    names.map(|name| format!("docs/decisions/{name}")).collect()
}

/// The name by which a heading is linked.
fn anchor(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

#[test]
fn links_between_documents_lead_somewhere() {
    for document in documents() {
        let folder = root().join(&document).parent().unwrap().to_path_buf();
        for link in read(&document).split("](").skip(1) {
            let link = link.split(')').next().unwrap();
            let (target, heading) = link.split_once('#').unwrap_or((link, ""));
            if target.contains("://") {
                continue;
            }
            let file = if target.is_empty() { root().join(&document) } else { folder.join(target) };
            assert!(file.exists(), "{document} links to {target}");
            let is_there = heading.is_empty()
                || read(&file).lines().any(|l| anchor(l) == Some(heading.into()));
            assert!(is_there, "{document} links to {target}#{heading}");
        }
    }
}

#[test]
fn every_decision_record_is_in_the_index_and_says_what_else_was_considered() {
    let index = read("docs/decisions/README.md");
    let records = records();
    assert!(records.len() > 9, "{records:?}");
    for record in records.iter().filter(|record| !record.ends_with("README.md")) {
        let name = record.rsplit('/').next().unwrap();
        assert!(index.contains(&format!("]({name})")), "{record} is in no index");
        let text = read(record);
        for part in ["Context", "Decision", "Consequences", "Alternatives"] {
            assert!(text.contains(&format!("**{part}.**")), "{record} has no {part}");
        }
    }
}

#[test]
fn files_that_documents_name_exist() {
    let mut documents = documents();
    documents.extend(["docs/internals.md", "docs/testing.md"].map(String::from));
    let folders = ["configs", "docs", "helm", "packaging", "scripts"];
    let folders: Vec<&str> = folders.into_iter().chain(MEMBERS).collect();
    let mut named = 0;
    // Those of the demo model and the history name files that are made, or were there.
    documents.retain(|name| !name.ends_with("demo-model/README.md") && name != "CHANGELOG.md");
    for document in documents {
        for name in read(&document).split('`').skip(1).step_by(2) {
            let is_path = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b));
            let first = name.split_once('/').map_or("", |(first, _)| first);
            if is_path && folders.contains(&first) {
                assert!(root().join(name).exists(), "{document} names {name}");
                named += 1;
            }
        }
    }
    assert!(named > 100, "only {named} files were found");
}

#[test]
fn the_map_is_short() {
    let words = read("ARCHITECTURE.md");
    let words = words.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric));
    assert!(words.count() <= 1500, "move what is not a map to docs/internals.md");
}

/// llama.cpp's sources, where cargo keeps them.
fn llama_cpp() -> PathBuf {
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let mut command = std::process::Command::new(env!("CARGO"));
    let output = command.args(arguments).current_dir(root()).output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut packages = metadata["packages"].as_array().unwrap().iter();
    let package = packages.find(|p| p["name"] == "llama-cpp-sys-2").unwrap();
    let manifest = Path::new(package["manifest_path"].as_str().unwrap());
    manifest.parent().unwrap().join("llama.cpp")
}

#[test]
fn every_pre_tokenizer_that_llama_cpp_knows_is_in_our_table() {
    let source = std::fs::read_to_string(llama_cpp().join("src/llama-vocab.cpp")).unwrap();
    let named = source.split("tokenizer_pre == \"").skip(1);
    let theirs: BTreeSet<&str> = named.map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(theirs.len() > 80, "{theirs:?}");
    let ours = PRE_TOKENIZERS.iter().copied().flatten().copied().collect::<BTreeSet<_>>();
    assert_eq!(ours, theirs, "the table is in inference-core/src/tools/synth/vocabulary.rs");
}
