//! PURE. The configuration reference: the comments of `configs/gateway.yaml` for each key, combined
//! with what the code accepts.

use serde_json::Value;

use super::trace::Key;
use crate::config::document::keys;

/// The reference configuration of this version.
const SHIPPED: &str = include_str!("../../../configs/gateway.yaml");

const INTRODUCTION: &str = "\
# The gateway's configuration

Made of the code by `flotilla-gateway config reference`; `make docs` writes it anew.
[configs/gateway.yaml](../configs/gateway.yaml) is the same as a file to begin with, and
[gateway.schema.json](gateway.schema.json) is for editors: they complete keys and mark mistakes in a file
that begins with

```yaml
# yaml-language-server: $schema=gateway.schema.json
```

where that file lies beside it. `flotilla-gateway config schema` prints the one of your version.

```sh
flotilla-gateway config schema > gateway.schema.json
flotilla-gateway check --config gateway.yaml
flotilla-gateway config print --config gateway.yaml
```

`check` lists every problem at once, those too that a schema cannot see (a file that is missing, a name that
is used twice). `config print` shows what holds: defaults filled in, and secrets masked.
Names of files are relative to the configuration. What changes is taken over within two seconds, or on
SIGHUP, as a whole or not at all.

A key whose default is \"none\" may be left out; one that is \"required\" must be there where its section is.
";

/// The description of a key or section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Path, with `[]` for list items.
    pub path: String,
    /// Text for people.
    pub text: String,
    /// True if it contains keys.
    pub is_section: bool,
}

/// The descriptions of a commented configuration, in order.
#[derive(Debug, Default)]
pub struct Reference {
    notes: Vec<Note>,
}

/// A line that names a key.
struct Line<'a> {
    indent: usize,
    is_item: bool,
    key: &'a str,
    value: &'a str,
}

impl Reference {
    /// Reads the reference configuration of this version.
    pub fn shipped() -> Self {
        Self::read(SHIPPED)
    }

    /// All descriptions.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// A comment describes the key after it, and the following keys without their own comment.
    fn read(text: &str) -> Self {
        let mut reference = Self::default();
        let mut path: Vec<(usize, String)> = Vec::new();
        let (mut comment, mut last): (Vec<&str>, (String, String)) = Default::default();
        for line in text.lines() {
            let bare = line.trim_start();
            if let Some(said) = bare.strip_prefix("# ") {
                comment.push(said.trim());
                continue;
            }
            let Some(Line { indent, is_item, key, value }) = key_line(line) else {
                comment.clear();
                last = Default::default();
                continue;
            };
            path.retain(|(at, _)| *at < indent);
            if is_item && let Some((_, parent)) = path.last_mut() {
                *parent = format!("{}[]", parent.trim_end_matches("[]"));
            }
            let above: Vec<&str> = path.iter().map(|(_, name)| name.as_str()).collect();
            let above = above.join(".");
            let said = match (comment.is_empty(), last.0 == above) {
                (false, _) => comment.join(" "),
                (true, true) => last.1,
                (true, false) => String::new(),
            };
            comment.clear();
            path.push((indent, key.to_string()));
            let own = if above.is_empty() { key.to_string() } else { format!("{above}.{key}") };
            last = (above, said.clone());
            reference.notes.push(Note { path: own, text: said, is_section: value.is_empty() });
        }
        reference
    }

    fn of(&self, path: &str) -> &str {
        self.notes.iter().find(|note| note.path == path).map_or("", |note| &note.text)
    }

    /// The reference as Markdown.
    pub fn markdown(&self) -> String {
        let mut page = INTRODUCTION.to_string();
        page.push_str("\n## At the top\n\n");
        let all = keys();
        let top: Vec<&Key> = all.iter().filter(|key| !key.path.contains('.')).collect();
        page.push_str(&self.table(&top));
        for section in self.notes.iter().filter(|note| note.is_section) {
            let of = |key: &&Key| {
                let above = key.path.rsplit_once('.').map(|(above, _)| above);
                above.is_some_and(|above| above.trim_end_matches("[]") == section.path)
            };
            let keys: Vec<&Key> = all.iter().filter(of).collect();
            let title = keys.first().and_then(|key| key.path.rsplit_once('.'));
            let Some((title, _)) = title else { continue };
            page.push_str(&format!("\n## `{title}`\n\n{}\n\n{}", section.text, self.table(&keys)));
        }
        page
    }

    fn table(&self, keys: &[&Key]) -> String {
        let mut table =
            "| Key | Value | Default | Meaning |\n| --- | --- | --- | --- |\n".to_string();
        for key in keys {
            let name = key.path.rsplit('.').next().unwrap_or(&key.path);
            let (kind, default) = (kind(name, &key.schema), default(key));
            let said = self.of(&key.path).replace('|', "\\|");
            table.push_str(&format!("| `{name}` | {kind} | {default} | {said} |\n"));
        }
        table
    }
}

/// Parses the key in a line, whether or not it is commented out.
fn key_line(line: &str) -> Option<Line<'_>> {
    let bare = line.trim_start();
    let indent = line.len() - bare.len();
    let bare = bare.strip_prefix('#').unwrap_or(bare);
    let (is_item, bare) = match bare.strip_prefix("- ") {
        Some(rest) => (true, rest),
        None => (false, bare),
    };
    let (key, value) = bare.split_once(':')?;
    let indent = indent + if is_item { 2 } else { 0 };
    Some(Line { indent, is_item, key, value: value.trim() })
}

fn kind(name: &str, schema: &Value) -> String {
    let names = |all: &Value| {
        let all = all.as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    if schema.get("enum").is_some() {
        return names(&schema["enum"]);
    }
    let range = match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
        (Some(min), Some(max)) => format!("{min} to {max}"),
        _ => String::new(),
    };
    match schema["type"].as_str() {
        Some("integer" | "number") => format!("{}{range}", unit(name)),
        Some("boolean") => "`true`, `false`".into(),
        Some("array") => "list of texts".into(),
        Some(_) if name.ends_with("_file") => "file".into(),
        Some(_) => "text".into(),
        None => "texts with names, or a list of texts".into(),
    }
}

/// The unit of a number, by the suffix of its name.
fn unit(name: &str) -> &'static str {
    match name {
        name if name.ends_with("_ms") => "milliseconds, ",
        name if name.ends_with("_bytes_max") => "bytes, ",
        name if name.contains("price") || name.contains("spend") => "money, ",
        name if name.contains("tokens") => "tokens, ",
        _ => "",
    }
}

fn default(key: &Key) -> String {
    match (key.required, key.schema.get("default")) {
        (true, _) => "required".into(),
        (false, Some(Value::String(text))) => format!("`{text}`"),
        (false, Some(value)) => format!("`{value}`"),
        (false, None) => "none".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_that_of_the_keys_after_it() {
        let text = "# What it is.\n\n# The one.\n# And more.\n#a: 1\n#b: 2\n\n# A list.\n#c:\n  \
                    # Of items.\n  #- d: 1\n    #e: 2\n  # Last.\n  #f: 3\n";
        let reference = Reference::read(text);
        let said: Vec<(&str, &str)> =
            reference.notes.iter().map(|note| (note.path.as_str(), note.text.as_str())).collect();
        let one = "The one. And more.";
        assert_eq!(
            said,
            [
                ("a", one),
                ("b", one),
                ("c", "A list."),
                ("c[].d", "Of items."),
                ("c[].e", "Of items."),
                ("c[].f", "Last."),
            ]
        );
    }

    #[test]
    fn the_page_names_every_key_with_its_unit_and_default() {
        let page = Reference::shipped().markdown();
        assert!(page.contains("| `header_ms` | milliseconds, 1 to 86400000 | `10000` |"), "{page}");
        assert!(page.contains("| `policy` | `least_connections`, `round_robin`"), "{page}");
        assert!(page.contains("| `sha256` | text | required |"), "{page}");
        assert!(page.contains("## `keys[]`"), "{page}");
    }
}
