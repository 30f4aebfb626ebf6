//! Prints the effective configuration: every key with its value, as a tree.

use std::path::Path;

use serde_json::{Map, Value};

use super::files::{self, Files};
use super::yaml::{self, FILE_BYTES_MAX, Node, Problem};
use crate::config::document::effective;

/// Printed instead of a secret.
const MASK: &str = "********";

/// Reads a configuration and returns its effective values as YAML.
pub fn print(path: &Path) -> Result<String, Vec<Problem>> {
    let one = |message: String| vec![Problem { path: path.display().to_string(), message }];
    let files = Files::beside(path);
    let text = files::read(path, FILE_BYTES_MAX).map_err(one)?;
    to_yaml(yaml::parse(&text).map_err(one)?, files)
}

/// Every key with its value, including defaults, as YAML with masked secrets.
pub fn to_yaml(root: Node, files: Files) -> Result<String, Vec<Problem>> {
    let values = effective(root, files)?;
    let one = |message: String| vec![Problem { path: String::new(), message }];
    yaml::to_yaml(&tree(values)).map_err(one)
}

fn tree(values: Vec<(String, Node)>) -> Value {
    let mut root = Value::Object(Map::new());
    for (path, node) in values.into_iter().filter(|(_, node)| *node != Node::Absent) {
        let place = path.split('.').fold(&mut root, |at, name| step(at, name));
        *place = masked(&path, value(node));
    }
    root
}

/// The child of a value, created if missing. `name` is a key or, with an index, a list item:
/// `name[3]`.
fn step<'a>(at: &'a mut Value, name: &str) -> &'a mut Value {
    let (name, index) = match name.split_once('[') {
        Some((name, index)) => (name, index.trim_end_matches(']').parse().ok()),
        None => (name, None),
    };
    if !at.is_object() {
        *at = Value::Object(Map::new());
    }
    let entry = &mut at[name];
    let Some(index) = index else { return entry };
    if !entry.is_array() {
        *entry = Value::Array(Vec::new());
    }
    // Items are read in order, so at most one is missing.
    if let Value::Array(items) = entry
        && items.len() <= index
    {
        items.push(Value::Null);
    }
    &mut entry[index]
}

fn value(node: Node) -> Value {
    match node {
        Node::Absent | Node::Other(_) => Value::Null,
        Node::Bool(value) => value.into(),
        Node::Number(number) => number.into(),
        Node::Decimal(number) => number.into(),
        Node::Text(text) => text.into(),
        Node::List(items) => items.into_iter().map(value).collect(),
        Node::Map(entries) => entries.into_iter().map(|(key, node)| (key, value(node))).collect(),
    }
}

/// Masks key digests, and passwords in URLs.
fn masked(path: &str, value: Value) -> Value {
    match &value {
        Value::String(_) if path.ends_with(".sha256") => MASK.into(),
        Value::String(text) => match text.split_once("://") {
            Some((scheme, rest))
                if rest.split('/').next().is_some_and(|host| host.contains('@')) =>
            {
                let host = rest.split_once('@').map_or(rest, |(_, host)| host);
                format!("{scheme}://{MASK}@{host}").into()
            }
            _ => value,
        },
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(text: &str) -> Value {
        tree(effective(yaml::parse(text).unwrap(), Files::default()).unwrap())
    }

    #[test]
    fn what_nobody_wrote_is_there_with_its_default() {
        let all = printed("allow_anonymous: true\nnodes: {static: [{url: 'http://10.0.0.1:80'}]}");
        assert_eq!(all["listen"], "127.0.0.1:8080");
        assert_eq!(all["timeouts"]["header_ms"], 10_000);
        assert_eq!(all["routing"]["policy"], "least_connections");
        assert_eq!(all["nodes"]["static"], json!([{"url": "http://10.0.0.1:80"}]));
        assert_eq!(all.get("tls"), None);
    }

    #[test]
    fn secrets_are_masked() {
        let digest = "5".repeat(64);
        let all = printed(&format!(
            "keys: [{{name: a, sha256: '{digest}'}}, {{name: b, sha256: '{}'}}]\n\
             external: [{{name: gpu, url: 'https://me:secret@gpu/v1', models: [m]}}]",
            "6".repeat(64)
        ));
        let text = all.to_string();
        assert!(!text.contains("secret") && !text.contains(&digest), "{text}");
        assert_eq!(all["external"][0]["url"], "https://********@gpu/v1");
        assert_eq!(
            (&all["keys"][1]["name"], &all["keys"][1]["sha256"]),
            (&json!("b"), &json!(MASK))
        );
    }
}
