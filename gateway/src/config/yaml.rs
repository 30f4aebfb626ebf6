//! YAML as our own tree type, and problems with their location. The only file that uses serde_yaml.

use serde_yaml::Value;

/// A configuration has a few kilobytes, plus a few hundred bytes per key and node.
pub(super) const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Our configuration nests 4 levels deep; the rest is room for lists.
const DEPTH_MAX: usize = 16;

/// Formats a value as YAML.
pub fn to_yaml(value: &impl serde::Serialize) -> Result<String, String> {
    serde_yaml::to_string(value).map_err(|e| e.to_string())
}

/// Parses YAML. The error says where the text is invalid.
pub fn parse(text: &str) -> Result<Node, String> {
    let value: Value = serde_yaml::from_str(text).map_err(|e| format!("not valid YAML: {e}"))?;
    convert(value, 0)
}

fn convert(value: Value, depth: usize) -> Result<Node, String> {
    if depth > DEPTH_MAX {
        return Err("nested too deeply".into());
    }
    Ok(match value {
        Value::Null => Node::Absent,
        Value::Bool(b) => Node::Bool(b),
        Value::Number(n) => match (n.as_u64(), n.as_f64()) {
            (Some(n), _) => Node::Number(n),
            (None, Some(n)) => Node::Decimal(n),
            (None, None) => Node::Other("a number"),
        },
        Value::String(s) => Node::Text(s),
        Value::Sequence(items) => {
            Node::List(items.into_iter().map(|v| convert(v, depth + 1)).collect::<Result<_, _>>()?)
        }
        Value::Mapping(map) => {
            let mut entries = Vec::new();
            for (key, value) in map {
                let key = key.as_str().ok_or("keys must be text")?.to_string();
                entries.push((key, convert(value, depth + 1)?));
            }
            Node::Map(entries)
        }
        Value::Tagged(_) => Node::Other("a tagged value"),
    })
}

/// A configuration value as written.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// Nothing, or null.
    Absent,
    /// true or false
    Bool(bool),
    /// A nonnegative integer.
    Number(u64),
    /// Any other number.
    Decimal(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values.
    Map(Vec<(String, Node)>),
    /// Something that no key accepts.
    Other(&'static str),
}

/// A problem in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the key, such as `keys[1].sha256`; empty if the problem is the file.
    pub path: String,
    /// What is wrong, and what is expected.
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}", self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}
