//! PURE. Writes Lark text: rules, terminals, literals, control tokens by id, schemas.

use serde_json::{Map, Value, json};

use super::notations::NotationPiece;
use super::{CallGrammar, Tool};
use crate::text::output::delimiters::Tags;

/// Whitespace between JSON tokens. Without a limit, weak models write it forever.
const JSON_SPACE: &str = "[ \\n\\r\\t]{1,24}";

/// A Lark grammar under construction.
pub(crate) struct Lark<'a> {
    control: &'a dyn Fn(&str) -> Option<u32>,
    tokens: Vec<&'static str>,
    rules: String,
    /// Number of the next rule.
    next: usize,
    /// Terminals and rules that are defined once.
    terminals: Vec<&'static str>,
}

/// A piece in terms of Lark; adjacent texts become one literal.
enum Atom {
    Text(String),
    Item(String),
}

impl<'a> Lark<'a> {
    /// Creates a grammar without rules.
    pub(crate) fn new(control: &'a dyn Fn(&str) -> Option<u32>) -> Self {
        Self { control, tokens: Vec::new(), rules: String::new(), next: 0, terminals: Vec::new() }
    }

    /// The grammar with the start rule `start`.
    pub(crate) fn finish(self, start: &str) -> CallGrammar {
        let lark = format!("%llguidance {{}}\nstart: {}\n{}", start.trim(), self.rules);
        CallGrammar { lark, tokens: self.tokens }
    }

    /// Adds a rule and returns its name, which begins with `kind`.
    pub(crate) fn rule(&mut self, kind: &str, body: &str) -> String {
        self.attributed(kind, "", body)
    }

    /// Adds a rule that may refer to itself by name.
    pub(crate) fn named_rule(&mut self, name: &'static str, body: &str) {
        self.terminal(name, body);
    }

    /// True if [`Self::named_rule`] has added it.
    pub(crate) fn has_rule(&self, name: &str) -> bool {
        self.terminals.contains(&name)
    }

    fn attributed(&mut self, kind: &str, attributes: &str, body: &str) -> String {
        let name = format!("{kind}_{}", self.next);
        self.next += 1;
        self.rules.push_str(&format!("{name}{attributes}: {}\n", body.trim()));
        name
    }

    /// Adds a terminal unless it is already defined; returns its name.
    pub(crate) fn terminal(&mut self, name: &'static str, body: &str) -> &'static str {
        if !self.terminals.contains(&name) {
            self.terminals.push(name);
            self.rules.push_str(&format!("{name}: {body}\n"));
        }
        name
    }

    /// A terminal for any text.
    pub(crate) fn text(&mut self) -> &'static str {
        self.terminal("TEXT", "/(?s:.*)/")
    }

    /// Any text up to and including the first `delimiter`.
    pub(crate) fn up_to(&mut self, delimiter: &'static str) -> String {
        let text = self.text();
        match self.delimiter(delimiter).as_slice() {
            [Atom::Item(token)] => self.rule("upto", &format!("{text} {token}")),
            _ => self.attributed("upto", "[lazy]", &format!("{text} {}", literal(delimiter))),
        }
    }

    /// A delimiter: the control token with that text, or one that it starts with, else plain text.
    fn delimiter(&mut self, delimiter: &'static str) -> Vec<Atom> {
        let ends = delimiter.char_indices().rev().filter(|(_, c)| matches!(c, '>' | ']'));
        for end in ends.map(|(i, _)| i + 1) {
            let (token, rest) = delimiter.split_at(end);
            if let Some(id) = (self.control)(token) {
                if !self.tokens.contains(&token) {
                    self.tokens.push(token);
                }
                let mut atoms = vec![Atom::Item(format!("<[{id}]>"))];
                atoms.extend((!rest.is_empty()).then(|| Atom::Text(rest.into())));
                return atoms;
            }
        }
        vec![Atom::Text(delimiter.into())]
    }

    /// `pieces` in sequence, for a call of `tool`.
    pub(crate) fn sequence(&mut self, pieces: &[NotationPiece], tool: Option<&Tool>) -> String {
        let mut atoms = Vec::new();
        for piece in pieces {
            match (piece, tool) {
                (NotationPiece::Delimiter(delimiter), _) => atoms.extend(self.delimiter(delimiter)),
                (NotationPiece::OptionalDelimiter(delimiter), _) => {
                    let inner = join(self.delimiter(delimiter));
                    atoms.push(Atom::Item(format!("({inner})?")));
                }
                (NotationPiece::Text(text), _) => atoms.push(Atom::Text((*text).into())),
                (NotationPiece::Digits, _) => {
                    let digits = self.terminal("DIGITS", "/[0-9]{1,6}/");
                    atoms.push(Atom::Item(digits.into()));
                }
                (NotationPiece::Name, Some(tool)) => atoms.push(Atom::Text(tool.name.clone())),
                (NotationPiece::Arguments, Some(tool)) => {
                    let schema = schema(tool);
                    atoms.push(Atom::Item(self.json("arguments", &schema)));
                }
                (NotationPiece::Parameters(tags), Some(tool)) => {
                    atoms.extend(self.parameters(tags, tool));
                }
                (NotationPiece::Literal(delimiters), Some(tool)) => {
                    let all = self.literals(delimiters, tool);
                    atoms.push(Atom::Item(all));
                }
                // Only calls have these pieces.
                (_, None) => {}
            }
        }
        join(atoms)
    }

    fn json(&mut self, kind: &str, schema: &Value) -> String {
        self.rule(kind, &format!("%json {schema}"))
    }

    /// The parameters in the order of the schema, each between its tags.
    fn parameters(&mut self, tags: &Tags, tool: &Tool) -> Vec<Atom> {
        let schema = tool.parameters.as_ref();
        let properties = schema.and_then(|s| s.get("properties")).and_then(Value::as_object);
        let required = tool.required();
        let mut atoms = Vec::new();
        for (key, property) in properties.into_iter().flatten() {
            let one = self.parameter(tags, tool, key, property);
            let one = self.rule("parameter", &one);
            let optional = if required.contains(&key.as_str()) { "" } else { "?" };
            atoms.push(Atom::Item(format!("{one}{optional}")));
        }
        atoms
    }

    fn parameter(&mut self, tags: &Tags, tool: &Tool, key: &str, property: &Value) -> String {
        let line = if tags.lines { "\n" } else { "" };
        let mut atoms = self.delimiter(tags.key);
        atoms.push(Atom::Text(key.into()));
        atoms.extend(self.delimiter(tags.key_close));
        if !tags.value.is_empty() {
            atoms.push(Atom::Text("\n".into()));
            atoms.extend(self.delimiter(tags.value));
        }
        atoms.push(Atom::Text(line.into()));

        let mut close = vec![Atom::Text(line.into())];
        close.extend(self.delimiter(tags.value_close));
        close.push(Atom::Text("\n".into()));

        let choices = property.get("enum").and_then(Value::as_array);
        let texts =
            choices.and_then(|all| all.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        match texts {
            Some(texts) => {
                let all: Vec<String> = texts.into_iter().map(literal).collect();
                atoms.push(Atom::Item(format!("({})", all.join(" | "))));
                atoms.extend(close);
            }
            None if tool.types(key) == ["string"] => {
                atoms.push(Atom::Item(self.text_and(close)));
            }
            None => {
                let schema = as_root(property, tool);
                atoms.push(Atom::Item(self.json("value", &schema)));
                atoms.extend(close);
            }
        }
        join(atoms)
    }

    /// Any text terminated by `close`.
    fn text_and(&mut self, close: Vec<Atom>) -> String {
        let text = self.text();
        let plain = close.iter().all(|a| matches!(a, Atom::Text(_)));
        let attributes = if plain { "[lazy]" } else { "" };
        self.attributed("text", attributes, &format!("{text} {}", join(close)))
    }
}

fn join(atoms: Vec<Atom>) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut text = String::new();
    for atom in atoms {
        match atom {
            Atom::Text(more) => text.push_str(&more),
            Atom::Item(item) => {
                out.extend((!text.is_empty()).then(|| literal(&std::mem::take(&mut text))));
                out.push(item);
            }
        }
    }
    out.extend((!text.is_empty()).then(|| literal(&text)));
    out.join(" ")
}

/// `text` as a Lark literal: a JSON string without DEL.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// The schema of a tool's arguments, with options for llguidance.
fn schema(tool: &Tool) -> Value {
    let mut map = match &tool.parameters {
        Some(Value::Object(map)) => map.clone(),
        _ => Map::new(),
    };
    let combines = ["$ref", "allOf", "anyOf", "oneOf", "patternProperties"];
    if !combines.iter().any(|k| map.contains_key(*k)) {
        map.insert("type".into(), "object".into());
        if map.contains_key("properties") && !map.contains_key("additionalProperties") {
            map.insert("additionalProperties".into(), false.into());
        }
    }
    with_options(map, tool)
}

/// The schema of one parameter, with the definitions that it may refer to.
fn as_root(property: &Value, tool: &Tool) -> Value {
    let mut map = property.as_object().cloned().unwrap_or_default();
    for definitions in ["$defs", "definitions"] {
        if let Some(all) = tool.parameters.as_ref().and_then(|s| s.get(definitions)) {
            map.insert(definitions.into(), all.clone());
        }
    }
    with_options(map, tool)
}

fn with_options(mut map: Map<String, Value>, tool: &Tool) -> Value {
    let options = json!({"whitespace_pattern": JSON_SPACE, "lenient": !tool.strict});
    map.insert("x-guidance".into(), options);
    Value::Object(map)
}
