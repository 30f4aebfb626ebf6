//! Runs public test suites, if they are available next to the repository: the JSON Schema Test
//! Suite and the JSON Parsing Test Suite.

use std::path::PathBuf;

use serde_json::ser::Formatter;
use serde_json::{Serializer, Value};

use super::{accepts, bytes, compiled};
use crate::text::grammar::GrammarError;
use crate::types::constraint::Constraint;

/// A folder of the suites; `None`, with a message, if it is missing.
fn folder(name: &str) -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/data").join(name);
    if !folder.is_dir() {
        println!("skipped: there is no {}", folder.display());
        return None;
    }
    Some(folder)
}

fn files(folder: PathBuf) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// A JSON formatter with one space after each `:` and `,`.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

fn spaced(value: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    serde::Serialize::serialize(value, &mut Serializer::with_formatter(&mut text, Spaced)).unwrap();
    text
}

/// Valid instances that are rejected anyway, by file; no others may be.
const REJECTED: [(&str, usize, &str); 6] = [
    ("allOf.json", 2, "members of objects come in the order of the schema"),
    ("const.json", 5, "the same; and numbers are written as the schema writes them, 1 not 1.0"),
    ("enum.json", 4, "1 not 1.0"),
    ("format.json", 10, "formats are enforced, not annotations"),
    ("type.json", 1, "an integer is not written 1.0"),
    ("vocabulary.json", 1, "vocabularies cannot be switched off"),
];
/// Number of the suite's schemas that compile; the others are rejected with a reason.
const COMPILED: usize = 165;

#[derive(Debug, Default)]
struct Figures {
    schemas: usize,
    compiled: usize,
    /// Number of valid instances, and of those accepted.
    valid: (usize, usize),
    /// Number of invalid instances, and of those rejected.
    invalid: (usize, usize),
}

impl Figures {
    fn judge(&mut self, group: &Value) {
        self.schemas += 1;
        let title = &group["description"];
        let constraint = Constraint::JsonSchema(group["schema"].to_string());
        let grammar = match bytes().grammars.compile(&constraint) {
            Ok(grammar) => grammar,
            Err(GrammarError::Invalid(_) | GrammarError::TooComplex(_)) => return,
            Err(e) => panic!("{title}: {e}"),
        };
        self.compiled += 1;
        for test in group["tests"].as_array().unwrap() {
            let (data, valid) = (&test["data"], test["valid"] == true);
            let accepted = accepts(&grammar, data.to_string().as_bytes());
            assert_eq!(accepted, accepts(&grammar, &spaced(data)), "{title}: {data}");
            let figure = if valid { &mut self.valid } else { &mut self.invalid };
            *figure = (figure.0 + 1, figure.1 + usize::from(accepted == valid));
        }
    }
}

#[test]
fn instances_of_the_schema_suite_are_judged_as_it_says() {
    let Some(folder) = folder("json-schema-test-suite/tests/draft2020-12") else { return };
    let mut compiled = 0;
    for (file, text) in files(folder) {
        let mut figures = Figures::default();
        let groups: Vec<Value> = serde_json::from_slice(&text).unwrap();
        groups.iter().for_each(|group| figures.judge(group));
        println!("{file}: {figures:?}");
        let known = REJECTED.iter().find(|(known, ..)| *known == file).map_or(0, |(_, n, _)| *n);
        assert_eq!(figures.valid.0 - figures.valid.1, known, "valid, but rejected: {file}");
        assert_eq!(figures.invalid.0, figures.invalid.1, "invalid, but accepted: {file}");
        compiled += figures.compiled;
    }
    assert_eq!(compiled, COMPILED);
}

#[test]
fn texts_of_the_parsing_suite_are_objects_or_not() {
    let Some(folder) = folder("json-test-suite/test_parsing") else { return };
    let grammar = compiled(Constraint::JsonObject);
    let mut objects = 0;
    for (name, text) in files(folder) {
        let accepted = accepts(&grammar, &text);
        match name.get(..2) {
            Some("n_") => assert!(!accepted, "{name}"),
            Some("y_") if serde_json::from_slice::<Value>(&text).unwrap().is_object() => {
                assert!(accepted, "{name}");
                objects += 1;
            }
            _ => {}
        }
    }
    assert!(objects > 10, "{objects}");
}
