//! YAML as a tree of our own, and problems that name a place in it. The only file that names
//! serde_yaml.

use serde_yaml::Value;

/// A configuration is some kilobytes, and some hundred keys or nodes make some hundred more.
pub(super) const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Nesting of our configuration is 4 deep; the rest is room for lists.
const DEPTH_MAX: usize = 16;

/// A value as YAML.
pub fn to_yaml(value: &impl serde::Serialize) -> Result<String, String> {
    serde_yaml::to_string(value).map_err(|e| e.to_string())
}

/// YAML -> our own tree. The error says where the text is not YAML.
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

/// A configuration value as it was written.
#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// Nothing, or null.
    Absent,
    /// true or false
    Bool(bool),
    /// A whole number, not negative.
    Number(u64),
    /// A number with a fraction.
    Decimal(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values.
    Map(Vec<(String, Node)>),
    /// Something that no key takes.
    Other(&'static str),
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where, such as `keys[1].sha256`.
    pub path: String,
    /// What, and what would be right.
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}
