//! Folders are layers: a folder imports only the folders below it, and no two folders or files
//! import each other. A module and the folder of its name are one. Code of tests may import what it
//! likes.

use std::collections::{BTreeMap, BTreeSet};

use crate::{sources, without_tests};

/// The folders of each crate, the lowest first.
const LAYERS: [(&str, &[&str]); 3] = [
    (
        "gateway/src/",
        &[
            "types",
            "store",
            "access",
            "scheduler",
            "upstream",
            "config",
            "dispatcher",
            "observability",
            "context",
            "nodes",
            "proxy",
            "control",
            "server",
            "tasks",
            "app",
            "commands",
        ],
    ),
    ("node-agent/src/", &["types", "engine", "serve", "commands"]),
    (
        "inference-core/src/",
        &["types", "hardware", "model_file", "text", "scheduler", "prepare", "llama", "tools"],
    ),
];
/// Crates where files of one folder may still import each other.
const CYCLIC_FILES: [&str; 2] = ["gateway/src/", "node-agent/src/"];
/// Files that are a crate's root, or belong to its binary alone.
const ROOTS: [&str; 3] = ["lib", "main", "options"];

type Path = Vec<String>;

/// Modules of a crate, and the code of each.
type Modules = BTreeMap<Path, String>;

fn modules(prefix: &str) -> Modules {
    let files = sources().into_iter();
    let files =
        files.filter_map(|(name, text)| Some((name.strip_prefix(prefix)?.to_string(), text)));
    let path = |name: &str| name.trim_end_matches(".rs").split('/').map(String::from).collect();
    files.map(|(name, text)| (path(&name), code(without_tests(&text)))).collect()
}

fn is_test(module: &[String]) -> bool {
    module.iter().any(|part| part == "tests" || part.ends_with("_tests"))
}

/// A text without comments and literals, which may name any path.
fn code(text: &str) -> String {
    let mut code = String::new();
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        // Every second part is inside quotes.
        line.split('"').step_by(2).for_each(|part| code.push_str(part));
        code.push('\n');
    }
    code
}

/// The paths that a module names, from the crate's root.
fn named(module: &[String], code: &str) -> Vec<Path> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let before = &code[..at];
            // `pub(crate)` has no path behind it, and `super::super::` is found at its first word.
            if before.ends_with(is_word) || before.ends_with("super::") {
                continue;
            }
            let mut rest = &code[at..];
            let mut base = if root == "crate::" { &module[..0] } else { module };
            while let Some(behind) = rest.strip_prefix("super::") {
                (rest, base) = (behind, &base[..base.len().saturating_sub(1)]);
            }
            rest = rest.strip_prefix("crate::").unwrap_or(rest);
            tree(base.to_vec(), rest, &mut found);
        }
    }
    found
}

/// Reads what follows `a::` in code: a path, or a group of them.
fn tree<'c>(mut base: Path, mut rest: &'c str, found: &mut Vec<Path>) -> &'c str {
    loop {
        rest = rest.trim_start();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            loop {
                rest = tree(base.clone(), rest, found).trim_start();
                match rest.strip_prefix(',') {
                    Some(next) if !next.trim_start().starts_with('}') => rest = next,
                    _ => break,
                }
            }
            return rest.trim_start_matches(',').trim_start().strip_prefix('}').unwrap_or(rest);
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        base.push(rest[..end].to_string());
        match rest[end..].strip_prefix("::") {
            Some(behind) => rest = behind,
            None => {
                found.push(base);
                return rest[end..].trim_start_matches(|c: char| c != ',' && c != '}' && c != ';');
            }
        }
    }
}

/// Which siblings import which, by the module that they are in.
fn imports(modules: &Modules) -> BTreeMap<Path, BTreeSet<(String, String)>> {
    let mut imports: BTreeMap<Path, BTreeSet<(String, String)>> = BTreeMap::new();
    let roots = |module: &Path| ROOTS.contains(&module[0].as_str());
    for (module, code) in modules.iter().filter(|(module, _)| !is_test(module) && !roots(module)) {
        for target in named(module, code) {
            let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
            let Some((from, to)) = module.get(common).zip(target.get(common)) else { continue };
            let sibling = [&module[..common], std::slice::from_ref(to)].concat();
            if modules.keys().any(|known| known.starts_with(&sibling)) {
                let siblings = imports.entry(module[..common].to_vec()).or_default();
                siblings.insert((from.clone(), to.clone()));
            }
        }
    }
    imports
}

/// What is wrong with the imports of a crate. With `files`, single files must not import each other
/// either.
fn complaints(modules: &Modules, layers: &[&str], files: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let rank = |name: &str| layers.iter().position(|layer| *layer == name);
    for module in modules.keys().filter(|module| !ROOTS.contains(&module[0].as_str())) {
        if rank(&module[0]).is_none() {
            wrong.push(format!("{} is in no layer", module.join("/")));
        }
    }
    for (parent, siblings) in imports(modules) {
        if parent.is_empty() {
            let up = siblings.iter().filter(|(from, to)| rank(from) < rank(to));
            wrong.extend(up.map(|(from, to)| format!("{from} imports {to}, which is above it")));
            continue;
        }
        let is_folder = |name: &String| {
            let path = [&parent[..], std::slice::from_ref(name)].concat();
            modules.keys().any(|known| known.len() > path.len() && known.starts_with(&path))
        };
        let checked =
            siblings.iter().filter(|(from, to)| files || is_folder(from) || is_folder(to));
        let cycles = checked.filter(|(from, to)| reaches(&siblings, to, from));
        let pairs: BTreeSet<_> = cycles.map(|(a, b)| (a.min(b), a.max(b))).collect();
        for (one, other) in pairs {
            wrong.push(format!("{}: {one} and {other} import each other", parent.join("/")));
        }
    }
    wrong
}

/// Whether one sibling imports another, if only through others.
fn reaches(siblings: &BTreeSet<(String, String)>, from: &str, to: &str) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        if at == to {
            return true;
        }
        if seen.insert(at) {
            next.extend(siblings.iter().filter(|(a, _)| a == at).map(|(_, b)| b.as_str()));
        }
    }
    false
}

#[test]
fn folders_import_only_the_folders_below_them() {
    for (prefix, layers) in LAYERS {
        let modules = modules(prefix);
        let arrows = imports(&modules).remove(&Path::new()).unwrap_or_default();
        eprintln!("{prefix}: {} modules, {} arrows between folders", modules.len(), arrows.len());
        assert!(arrows.len() >= layers.len() - 1, "{prefix}: only {arrows:?}");
        let files = !CYCLIC_FILES.contains(&prefix);
        assert_eq!(complaints(&modules, layers, files), [""; 0], "{prefix}");
    }
}

#[test]
fn an_upward_import_and_a_cycle_are_noticed() {
    let module = |path: &str, text: &str| (path.split('/').map(String::from).collect(), code(text));
    let good = [
        module("low", "use std::fmt; // crate::high"),
        module("low/one", "use super::two::Two;\nfn f() { \"crate::high\" }"),
        module("low/one/part", "use crate::low::two;"),
        module("low/two", "pub struct Two;"),
        module("high", "use crate::low::{one::{self, One}, two::Two};"),
    ];
    let judge = |changed: (Path, String)| {
        let mut modules: Modules = good.clone().into();
        modules.insert(changed.0, changed.1);
        complaints(&modules, &["low", "high"], true)
    };
    assert_eq!(judge(good[0].clone()), [""; 0]);
    for up in ["use crate::high;", "use crate::{low, high::High};", "fn f() { crate::high::g() }"] {
        assert_eq!(judge(module("low/two", up)), ["low imports high, which is above it"], "{up}");
    }
    let up = judge(module("low/one/part", "use super::super::super::high::High;"));
    assert_eq!(up, ["low imports high, which is above it"]);
    let cycle = judge(module("low/two", "use super::one::One;"));
    assert_eq!(cycle, ["low: one and two import each other"]);
    let files = judge(module("high/a", "use super::b::B;"));
    assert_eq!(files, [""; 0]);
    let files = [module("high/a", "use super::b::B;"), module("high/b", "use crate::high::a;")];
    let both: Modules = good.clone().into_iter().chain(files).collect();
    assert_eq!(complaints(&both, &["low", "high"], false), [""; 0]);
    assert_eq!(complaints(&both, &["low", "high"], true), ["high: a and b import each other"]);
    assert_eq!(judge(module("new", "")), ["new is in no layer"]);
}
