//! PURE. The tools that a request offers: names and the JSON schemas of their parameters.

use serde_json::Value;

/// Maximum tools per request, as in OpenAI's API.
pub(crate) const TOOLS_MAX: usize = 128;
/// Maximum length of a tool's name in bytes; the same as OpenAI's limit.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Why a parameter of a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Its path, such as `tools[0].function.name`.
    pub parameter: String,
    /// Follows the path in the message.
    problem: String,
}

impl InvalidParameter {
    pub(super) fn new(parameter: &str, problem: impl Into<String>) -> Self {
        Self { parameter: parameter.into(), problem: problem.into() }
    }
}

impl std::fmt::Display for InvalidParameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.parameter, self.problem)
    }
}

impl std::error::Error for InvalidParameter {}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Function name.
    pub name: String,
    /// JSON schema of its parameters; `None` if not given.
    pub parameters: Option<Value>,
    /// True if arguments must match the schema exactly.
    pub strict: bool,
}

/// The functions that may be called. If empty, text is never parsed as a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolSet {
    tools: Vec<Tool>,
}

impl ToolSet {
    /// Parses the `tools` of a chat request.
    pub fn from_openai(tools: &[Value]) -> Result<Self, InvalidParameter> {
        if tools.len() > TOOLS_MAX {
            let problem = format!(" has {} entries; {TOOLS_MAX} are allowed", tools.len());
            return Err(InvalidParameter::new("tools", problem));
        }
        let mut set = Self::default();
        for (i, tool) in tools.iter().enumerate() {
            let path = format!("tools[{i}]");
            let tool = read(tool).map_err(|error| InvalidParameter {
                parameter: format!("{path}.{}", error.parameter),
                ..error
            })?;
            if set.get(&tool.name).is_some() {
                let problem = format!(": {} is there twice", tool.name);
                return Err(InvalidParameter::new(&format!("{path}.function.name"), problem));
            }
            set.tools.push(tool);
        }
        Ok(set)
    }

    /// The function with this name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|t| t.name == name)
    }

    /// True if there are no tools.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// All tools, in the client's order.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter()
    }
}

/// Errors have paths inside the tool.
fn read(tool: &Value) -> Result<Tool, InvalidParameter> {
    let invalid = |parameter, problem: &str| InvalidParameter::new(parameter, problem);
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(invalid("type", " must be \"function\""));
    }
    let function = tool.get("function").ok_or_else(|| invalid("function", " is missing"))?;
    let name = function.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| invalid("function.name", " must be a string"))?;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(legal) {
        let problem = format!(" must be 1 to {NAME_BYTES_MAX} of the characters A-Z a-z 0-9 _ - .");
        return Err(InvalidParameter::new("function.name", problem));
    }
    let parameters = match function.get("parameters") {
        None | Some(Value::Null) => None,
        Some(schema @ Value::Object(_)) => Some(schema.clone()),
        Some(_) => {
            return Err(invalid("function.parameters", " must be a JSON schema, an object"));
        }
    };
    let strict = match function.get("strict") {
        None | Some(Value::Null) => false,
        Some(strict) => {
            strict.as_bool().ok_or_else(|| invalid("function.strict", " must be true or false"))?
        }
    };
    Ok(Tool { name: name.into(), parameters, strict })
}

impl Tool {
    /// The schema of one parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&Value> {
        self.parameters.as_ref()?.get("properties")?.get(name)
    }

    /// Names of the required parameters.
    pub(crate) fn required(&self) -> Vec<&str> {
        let required = self.parameters.as_ref().and_then(|s| s.get("required")?.as_array());
        required.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// The types that a parameter may have; empty if not specified.
    pub fn types(&self, parameter: &str) -> Vec<&str> {
        self.parameter(parameter).map(types).unwrap_or_default()
    }
}

/// The types that a schema names, one level deep into `anyOf` and `oneOf`.
pub(super) fn types(schema: &Value) -> Vec<&str> {
    let direct = own_types(schema);
    if !direct.is_empty() {
        return direct;
    }
    let either = ["anyOf", "oneOf"].iter().find_map(|k| schema.get(k)?.as_array());
    if let Some(choices) = either {
        let all: Vec<Vec<&str>> = choices.iter().map(own_types).collect();
        // One alternative without types allows every type.
        return if all.iter().any(Vec::is_empty) { Vec::new() } else { all.concat() };
    }
    match schema.get("enum").and_then(Value::as_array) {
        Some(values) if values.iter().all(Value::is_string) => vec!["string"],
        _ => Vec::new(),
    }
}

fn own_types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_are_read_and_errors_name_the_parameter() {
        let good = json!({"type": "function", "function": {"name": "f", "strict": true,
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}});
        let set = ToolSet::from_openai(std::slice::from_ref(&good)).unwrap();
        assert!(set.get("f").unwrap().strict);
        assert_eq!(set.get("f").unwrap().types("a"), ["integer"]);

        let twice = ToolSet::from_openai(&[good.clone(), good]).unwrap_err();
        assert_eq!(twice.to_string(), "tools[1].function.name: f is there twice");
        assert_eq!(twice.parameter, "tools[1].function.name");
        let unnamed = ToolSet::from_openai(&[json!({"type": "function", "function": {}})]);
        let unnamed = unnamed.unwrap_err().to_string();
        assert_eq!(unnamed, "tools[0].function.name must be a string");
        let many = vec![json!({}); TOOLS_MAX + 1];
        assert!(ToolSet::from_openai(&many).unwrap_err().to_string().contains("128 are allowed"));
    }

    #[test]
    fn types_are_found_wherever_schemas_put_them() {
        assert_eq!(types(&json!({"type": ["string", "null"]})), ["string", "null"]);
        assert_eq!(
            types(&json!({"anyOf": [{"type": "integer"}, {"type": "null"}]})),
            ["integer", "null"]
        );
        assert_eq!(types(&json!({"enum": ["a", "b"]})), ["string"]);
        assert!(types(&json!({"anyOf": [{"type": "integer"}, {"$ref": "#/x"}]})).is_empty());
    }
}
