//! Reads a configuration file, and writes YAML. The only file that names serde_yaml.

use std::path::Path;

use serde_yaml::Value;

use super::Config;
use super::files::{self, Files};
use super::raw::{self, Node, Problem};

/// A configuration is some kilobytes, and some hundred keys or nodes make some hundred more.
pub(super) const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Nesting of our configuration is 4 deep; the rest is room for lists.
const DEPTH_MAX: usize = 16;

/// Reads and checks a file; the error holds every problem found.
pub fn load(path: &Path) -> Result<Config, Vec<Problem>> {
    let one = |message: String| vec![Problem { path: path.display().to_string(), message }];
    let files = Files::beside(path);
    let text = files::read(path, FILE_BYTES_MAX).map_err(one)?;
    raw::check(parse(&text).map_err(one)?, files)
}

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
