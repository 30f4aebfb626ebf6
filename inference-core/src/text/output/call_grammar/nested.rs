//! PURE. Grammar of arguments in the notation of [`crate::text::output::nested`]. It enforces
//! names, required parameters and the types of scalars, of entries and of fields, up to a depth;
//! where the schema does not say a type, any value may follow.

use serde_json::Value;

use super::Tool;
use super::lark::{Lark, as_root, literal};
use crate::text::output::delimiters::namespaced::{ITEM, NAMESPACE};
use crate::text::output::nested::resolve;
use crate::text::output::tools::types;

/// Below this depth of nesting, any value may follow.
const DEPTH_MAX: usize = 4;
const KEY: &str = "/[^<>\\[\\]\\n]{1,64}/";
/// Types whose values are JSON.
const SCALARS: [&str; 4] = ["integer", "number", "boolean", "null"];

impl Lark<'_> {
    /// The parameters of a tool, in the order of the schema.
    pub(crate) fn nested(&mut self, tool: &Tool) -> String {
        tool.parameters.as_ref().map_or_else(String::new, |schema| self.fields(schema, tool, 0))
    }

    fn fields(&mut self, schema: &Value, tool: &Tool, depth: usize) -> String {
        let required = schema.get("required").and_then(Value::as_array);
        let is_required =
            |key: &str| required.is_some_and(|all| all.iter().any(|name| name == key));
        let properties = schema.get("properties").and_then(Value::as_object);
        let mut all = Vec::new();
        for (key, property) in properties.into_iter().flatten() {
            let one = self.element(key, Some(property), tool, depth);
            let optional = if is_required(key) { "" } else { "?" };
            all.push(format!("{one}{optional}"));
        }
        all.join(" ")
    }

    /// A tag, its value and the tag that closes it.
    fn element(&mut self, key: &str, schema: Option<&Value>, tool: &Tool, depth: usize) -> String {
        let open = self.tag(NAMESPACE, &format!("<{key}>"));
        let end = format!("</{key}>");
        let schema = resolve(schema, tool.parameters.as_ref());
        let kinds = schema.map(types).unwrap_or_default();
        let choices = schema.and_then(|schema| schema.get("enum")?.as_array());
        let texts =
            choices.and_then(|all| all.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let inner = match (texts, kinds.as_slice(), schema) {
            (Some(texts), _, _) => {
                let all: Vec<String> = texts.into_iter().map(literal).collect();
                format!("({}) {}", all.join(" | "), self.tag(NAMESPACE, &end))
            }
            (None, ["string"], _) => self.up_to_tag(NAMESPACE, &end),
            (None, ["object"], Some(schema)) if depth < DEPTH_MAX && is_closed(schema) => {
                format!("{} {}", self.fields(schema, tool, depth + 1), self.tag(NAMESPACE, &end))
            }
            (None, ["array"], Some(schema)) if depth < DEPTH_MAX => {
                let item = self.element(ITEM, schema.get("items"), tool, depth + 1);
                format!("{item}* {}", self.tag(NAMESPACE, &end))
            }
            (None, kinds, Some(schema))
                if !kinds.is_empty() && kinds.iter().all(|kind| SCALARS.contains(kind)) =>
            {
                let value = self.json("value", &as_root(schema, tool));
                format!("{value} {}", self.tag(NAMESPACE, &end))
            }
            _ => self.any_value_of_tag(&end),
        };
        self.rule("element", &format!("{open} {inner}"))
    }

    /// Text, or tags with any names and values, and then `end`.
    fn any_value_of_tag(&mut self, end: &str) -> String {
        let name = "any_element";
        if !self.has_rule(name) {
            let key = self.terminal("KEY", KEY);
            let (open, close) = (self.tag(NAMESPACE, "<"), self.tag(NAMESPACE, "</"));
            let text = self.up_to_tag(NAMESPACE, "</");
            let body = format!("{open} {key} \">\" ({name}+ {close} | {text}) {key} \">\"");
            self.named_rule(name, &body);
        }
        let (close, text) = (self.tag(NAMESPACE, end), self.up_to_tag(NAMESPACE, end));
        format!("({name}+ {close} | {text})")
    }
}

/// True if the schema names all fields.
fn is_closed(schema: &Value) -> bool {
    let has = |key: &str| schema.get(key).is_some();
    has("properties")
        && schema.get("additionalProperties").is_none_or(|more| more == false)
        && !["patternProperties", "allOf", "anyOf", "oneOf"].iter().any(|key| has(key))
}
