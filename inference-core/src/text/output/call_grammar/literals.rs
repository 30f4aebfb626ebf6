//! PURE. Grammar of arguments in the notations of [`crate::text::output::literal`]. It enforces
//! names, required parameters and the types of scalar ones; arrays and objects may hold any values.

use serde_json::Value;

use super::Tool;
use super::lark::{Lark, literal};
use super::notations::NotationPiece;
use crate::text::output::delimiters::LiteralDelimiters;
use crate::text::output::literal::GEMMA_QUOTE;

/// Python strings, on one line.
const PYTHON_TEXT: &str = r#"/'([^'\\\n]|\\.)*'|"([^"\\\n]|\\.)*"/"#;
const INTEGER: &str = "/-?(0|[1-9][0-9]*)/";
const NUMBER: &str = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/";
const KEY: &str = "/[A-Za-z_][A-Za-z0-9_]*/";

impl Lark<'_> {
    /// `key=value` for every required parameter and any of the others, in the schema's order;
    /// Gemma's template sorts them.
    pub(crate) fn literals(&mut self, delimiters: &LiteralDelimiters, tool: &Tool) -> String {
        let schema = tool.parameters.as_ref();
        let properties = schema.and_then(|s| s.get("properties")?.as_object());
        let mut properties: Vec<(&String, &Value)> = properties.into_iter().flatten().collect();
        if delimiters.open == '{' {
            properties.sort_by_key(|(key, _)| key.as_str());
        }
        let required = tool.required();
        // What may follow parameter i if one was written before (`some`) or none (`none`), from the
        // last parameter to the first.
        let (mut some, mut none) = (String::new(), String::new());
        for (key, property) in properties.into_iter().rev() {
            let value = self.literal_value(delimiters, &tool.types(key), property);
            let pair = format!("{} {value}", literal(&format!("{key}{}", delimiters.assign)));
            let pair = self.rule("pair", &pair);
            let (next_some, next_none) = if required.contains(&key.as_str()) {
                (format!("/, ?/ {pair} {some}"), format!("{pair} {some}"))
            } else if none.is_empty() {
                (format!("(/, ?/ {pair})? {some}"), format!("({pair} {some})?"))
            } else {
                (format!("(/, ?/ {pair})? {some}"), format!("{pair} {some} | {none}"))
            };
            some = self.rule("some", &next_some);
            none = self.rule("none", &next_none);
        }
        none
    }

    fn literal_value(
        &mut self,
        delimiters: &LiteralDelimiters,
        types: &[&str],
        property: &Value,
    ) -> String {
        let texts = property.get("enum").and_then(Value::as_array);
        let texts = texts.and_then(|all| all.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        if let Some(texts) = texts {
            let each: Vec<String> = texts.into_iter().map(|t| self.quoted(delimiters, t)).collect();
            return format!("({})", each.join(" | "));
        }
        match types {
            ["string"] => self.any_text(delimiters),
            ["integer"] => self.terminal("INTEGER", INTEGER).into(),
            ["number"] => self.terminal("NUMBER", NUMBER).into(),
            ["boolean"] => format!("({})", delimiters.truth.map(literal).join(" | ")),
            _ => self.any_value(delimiters),
        }
    }

    fn quoted(&mut self, delimiters: &LiteralDelimiters, text: &str) -> String {
        if delimiters.open == '{' {
            let quote = self.sequence(&[NotationPiece::Delimiter(GEMMA_QUOTE)], None);
            return format!("{quote} {} {quote}", literal(text));
        }
        let double = Value::from(text).to_string();
        let single = format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
        format!("({} | {})", literal(&double), literal(&single))
    }

    fn any_text(&mut self, delimiters: &LiteralDelimiters) -> String {
        if delimiters.open == '{' {
            let quote = self.sequence(&[NotationPiece::Delimiter(GEMMA_QUOTE)], None);
            let rest = self.up_to(GEMMA_QUOTE);
            return format!("{quote} {rest}");
        }
        self.terminal("PYTHON_TEXT", PYTHON_TEXT).into()
    }

    /// Any value: a recursive rule, so its name is chosen first.
    fn any_value(&mut self, delimiters: &LiteralDelimiters) -> String {
        let name = "anything";
        if self.has_rule(name) {
            return name.into();
        }
        let text = self.any_text(delimiters);
        let number = self.terminal("NUMBER", NUMBER);
        let key = match delimiters.open {
            '{' => format!("({} | {text})", self.terminal("KEY", KEY)),
            _ => text.clone(),
        };
        let [yes, no] = delimiters.truth.map(literal);
        let none = if delimiters.open == '{' { "\"null\"" } else { "\"None\"" };
        let list = format!("\"[\" ({name} (/, ?/ {name})*)? \"]\"");
        let pair = format!("{key} /: ?/ {name}");
        let object = format!("\"{{\" ({pair} (/, ?/ {pair})*)? \"}}\"");
        let body = format!("{text} | {number} | {yes} | {no} | {none} | {list} | {object}");
        self.named_rule(name, &body);
        name.into()
    }
}
