//! The table of error codes: exactly those of the two closed types of errors, each with its status
//! and with when to retry. The types are read in their source, where a `match` without a wildcard
//! renders every error.

use std::collections::{BTreeMap, BTreeSet};

use inference_protocol::resume::{ENGINE_LOST, MISMATCH};

use crate::current;

const PAGE: &str = "docs/app-developer.md";
const PROGRAMS: [(&str, &str); 2] =
    [("gateway", "gateway/src/types/error.rs"), ("agent", "node-agent/src/types/error.rs")];
/// Not a code: errors that a node words are passed on with the node's code.
const PASSED_ON: &str = "REFUSED_BY_NODE";

/// A row of the page's table, or what a program renders for a code.
#[derive(Debug, Default, PartialEq, Eq)]
struct Row {
    statuses: BTreeSet<u16>,
    from: BTreeSet<String>,
    has_retry_after: bool,
}

/// The body of a function of a source.
fn body<'a>(source: &'a str, function: &str) -> &'a str {
    let from = source.find(&format!("fn {function}(")).expect("no such function");
    let to = source[from..].find("\n    }\n").expect("the function has no end");
    &source[from..from + to]
}

/// The arms of a `match`, also of those within it: variants and what they become.
fn arms(body: &str) -> Vec<(Vec<String>, String)> {
    let kept = body.lines().filter(|line| !line.trim_start().starts_with("//"));
    let text = kept.collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    let mut pieces = text.split("=>");
    let mut pattern = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let (value, next) = match piece.trim_start().starts_with("match ") {
            true => ("", piece),
            false => value_of(piece),
        };
        if !value.is_empty() {
            found.push((variants(&pattern), value.trim().to_string()));
        }
        pattern = next.into();
    }
    found
}

/// The value of an arm, and what comes after it.
fn value_of(piece: &str) -> (&str, &str) {
    let mut depth = 0i32;
    for (at, c) in piece.char_indices() {
        match c {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            _ => {}
        }
        let is_end = depth < 0 || (depth == 0 && (c == ',' || c == '}'));
        if is_end {
            let end = if c == '}' && depth == 0 { at + 1 } else { at };
            return (&piece[..end], &piece[end..]);
        }
    }
    (piece, "")
}

/// Names of variants in a pattern, without those that only wrap another one.
fn variants(pattern: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut named = Vec::new();
    for (at, _) in pattern.match_indices("::") {
        let kind = pattern[..at].rsplit(|c| !is_name(c)).next().unwrap_or_default();
        let name = pattern[at + 2..].split(|c| !is_name(c)).next().unwrap_or_default();
        if ["Self", "Failure", "SlotFailure", "NotAccepted"].contains(&kind) {
            named.push((kind, name));
        }
    }
    let wraps = |name: &str| match name {
        "Engine" => named.iter().any(|(kind, _)| *kind == "Failure"),
        "Slot" => named.iter().any(|(kind, _)| *kind == "SlotFailure"),
        "NotAccepted" => named.iter().any(|(kind, _)| *kind == "NotAccepted"),
        _ => false,
    };
    named.iter().filter(|(_, name)| !wraps(name)).map(|(_, name)| name.to_string()).collect()
}

/// The code that an arm renders; `None` if it is not one.
fn code(value: &str) -> Option<String> {
    match value {
        "resume::ENGINE_LOST" => Some(ENGINE_LOST.into()),
        "resume::MISMATCH" => Some(MISMATCH.into()),
        PASSED_ON => None,
        text => Some(text.trim_matches('"').to_string()),
    }
}

/// What a program renders.
fn rendered(program: &str, source: &str, rows: &mut BTreeMap<String, Row>) {
    let statuses = arms(body(source, "status"));
    let waits =
        arms(body(source, if program == "agent" { "retry_after_seconds" } else { "retry_after" }));
    for (variants, value) in arms(body(source, "code")) {
        let Some(code) = code(&value) else { continue };
        let row = rows.entry(code).or_default();
        row.from.insert(program.into());
        // The reasons why an engine takes nothing have one status together.
        let is_reason =
            |name: &str| ["Loading", "Restarting", "Draining", "OtherWeights"].contains(&name);
        for variant in variants {
            let named = |arm: &&(Vec<String>, String)| {
                arm.0.contains(&variant)
                    || (is_reason(&variant) && arm.0.iter().any(|name| name == "NotAccepted"))
            };
            let own = statuses.iter().filter(named).map(|(_, value)| value.parse::<u16>().unwrap());
            row.statuses.extend(own);
            let wait = waits.iter().find(named);
            row.has_retry_after |= wait.is_some_and(|(_, value)| !value.contains("None"));
        }
        assert!(!row.statuses.is_empty(), "no status for {value}");
    }
}

/// The tables of the page.
fn told() -> (BTreeMap<String, Row>, BTreeMap<String, String>) {
    let page = current::read(PAGE);
    let (mut rows, mut retries) = (BTreeMap::new(), BTreeMap::new());
    for name in ["errors", "other errors"] {
        let (begin, end) = (format!("<!-- {name} -->"), format!("<!-- end {name} -->"));
        let table = page.split(&begin).nth(1).and_then(|rest| rest.split(&end).next()).unwrap();
        for line in table.lines().filter(|line| line.starts_with("| `")).skip(1) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [code, status, from, retry, meaning] = cells[..] else { panic!("{line}") };
            assert!(meaning.ends_with('.'), "{line}");
            let split = |text: &str| text.split(", ").map(String::from).collect::<Vec<_>>();
            let row = Row {
                statuses: split(status).iter().map(|text| text.parse().unwrap()).collect(),
                from: split(from).into_iter().collect(),
                has_retry_after: retry == "`Retry-After`",
            };
            let code = code.trim_matches('`').to_string();
            retries.insert(code.clone(), retry.to_string());
            assert!(rows.insert(code, row).is_none(), "twice: {line}");
        }
    }
    (rows, retries)
}

#[test]
fn every_error_code_is_in_the_table_with_its_status_and_retry() {
    let mut rows = BTreeMap::new();
    for (program, file) in PROGRAMS {
        rendered(program, &current::read(file), &mut rows);
    }
    assert!(rows.len() > 50, "only {} codes were found", rows.len());
    let (told, retries) = told();
    for (code, row) in &rows {
        assert_eq!(told.get(code), Some(row), "{PAGE}: {code}");
    }
    assert_eq!(told.keys().collect::<Vec<_>>(), rows.keys().collect::<Vec<_>>());
    // Clients of OpenAI retry these by themselves.
    for (code, retry) in retries {
        let retried = rows[&code].statuses.iter().any(|s| *s == 408 || *s == 429 || *s >= 500);
        assert!(["yes", "no", "`Retry-After`"].contains(&retry.as_str()), "{code}: {retry}");
        // 501 is llama-server's, for clients that are not OpenAI's.
        let known = ["insufficient_quota", "node_name_taken", "slots_not_saved"];
        if !known.contains(&code.as_str()) {
            assert_eq!(retried, retry != "no", "{PAGE}: {code}");
        }
    }
}

#[test]
fn arms_of_a_match_are_read_with_those_within() {
    let text = "fn status(&self) -> u16 {\n match self {\n Self::A { .. } | Self::B(_) => 404,\n\
                // c\n Self::Engine(failure) => match failure {\n Failure::C { .. } => 400,\n\
                Failure::D => 500,\n },\n Self::NotAccepted(NotAccepted::E) => 503,\n\
                Self::F { wait, .. } => {\n return Some(wait(1, 2));\n }\n _ => return None,\n }";
    let read: Vec<(String, String)> =
        arms(text).into_iter().map(|(names, value)| (names.join(" "), value)).collect();
    let expected = [("A B", "404"), ("C", "400"), ("D", "500"), ("E", "503")];
    let expected: Vec<_> = expected.map(|(a, b)| (a.to_string(), b.to_string())).to_vec();
    assert_eq!(read[..4], expected[..]);
    assert_eq!(read[4].0, "F");
    assert!(read[4].1.contains("wait(1, 2)") && read[5].1 == "return None", "{read:?}");
}
