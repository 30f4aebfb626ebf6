//! PURE. Writes Lark text: rules, terminals, literals, control tokens by id, schemas.

use serde_json::{Map, Value, json};

use super::notations::NotationPiece;
use super::{CallGrammar, Tool};
use crate::text::output::delimiters::{Attributes, Tags};

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

/// A parameter of a call in a notation with tags.
struct Parameter<'a> {
    tags: &'static Tags,
    tool: &'a Tool,
    key: &'a str,
    property: &'a Value,
}

impl Parameter<'_> {
    /// True if the value may be text, and the names of the other types that it may have.
    fn kinds(&self) -> (bool, Vec<&'static str>) {
        const NAMES: [(&str, &str); 6] = [
            ("integer", "number"),
            ("number", "number"),
            ("boolean", "boolean"),
            ("null", "null"),
            ("object", "object"),
            ("array", "array"),
        ];
        let types = self.tool.types(self.key);
        let described = ["$ref", "enum", "const", "allOf", "anyOf", "oneOf"];
        let is_open = types.is_empty() && !described.iter().any(|k| self.property.get(k).is_some());
        let named = NAMES.iter().filter(|(name, _)| types.is_empty() || types.contains(name));
        let mut kinds: Vec<&str> = named.map(|(_, kind)| *kind).collect();
        kinds.dedup();
        (is_open || types.contains(&"string"), kinds)
    }
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

    /// Adds a rule for the shortest text that matches, and returns its name.
    pub(crate) fn lazy(&mut self, body: &str) -> String {
        self.attributed("head", "[lazy]", body)
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
        let atoms = self.delimiter(delimiter);
        self.text_and(atoms)
    }

    /// The delimiter in Lark, if it is a control token.
    pub(crate) fn token(&mut self, delimiter: &'static str) -> Option<String> {
        let is_token = self.token_at(delimiter).is_some_and(|(token, _)| token == delimiter);
        is_token.then(|| join(self.delimiter(delimiter)))
    }

    /// A delimiter: the control tokens in it, and plain text between them.
    fn delimiter(&mut self, delimiter: &'static str) -> Vec<Atom> {
        let mut atoms = Vec::new();
        let mut rest = delimiter;
        while let Some(first) = rest.chars().next() {
            if let Some((token, id)) = self.token_at(rest) {
                if !self.tokens.contains(&token) {
                    self.tokens.push(token);
                }
                atoms.push(Atom::Item(format!("<[{id}]>")));
                rest = &rest[token.len()..];
                continue;
            }
            rest = &rest[first.len_utf8()..];
            match atoms.last_mut() {
                Some(Atom::Text(text)) => text.push(first),
                _ => atoms.push(Atom::Text(first.into())),
            }
        }
        atoms
    }

    /// The longest control token that `text` starts with, and its id.
    fn token_at(&self, text: &'static str) -> Option<(&'static str, u32)> {
        if !text.starts_with(['<', '[', ']', '｜']) {
            return None;
        }
        let last = |c: &char| matches!(c, '>' | ']' | '[' | '｜');
        let ends = text.char_indices().rev().filter(|(_, c)| last(c));
        let tokens = ends.map(|(i, c)| &text[..i + c.len_utf8()]);
        tokens
            .filter(|token| token.len() > '｜'.len_utf8())
            .find_map(|token| (self.control)(token).map(|id| (token, id)))
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
                (NotationPiece::CallId, _) => {
                    let id = self.terminal("CALL_ID", "/[a-zA-Z0-9]{9}/");
                    atoms.push(Atom::Item(id.into()));
                }
                (NotationPiece::LongCallId, _) => {
                    let id = self.terminal("LONG_CALL_ID", "/[a-z0-9]{10}/");
                    atoms.push(Atom::Item(id.into()));
                }
                (NotationPiece::OptionalId, _) => {
                    let id = self.terminal("CALL_ID", "/[a-zA-Z0-9]{9}/");
                    let (before, after) = (literal(", \"id\": \""), literal("\""));
                    atoms.push(Atom::Item(format!("({before} {id} {after})?")));
                }
                (NotationPiece::Name, Some(tool)) => atoms.push(Atom::Text(tool.name.clone())),
                (NotationPiece::Arguments, Some(tool)) => {
                    let schema = schema(tool);
                    atoms.push(Atom::Item(self.json("arguments", &schema)));
                }
                (NotationPiece::Parameters(tags), Some(tool)) => {
                    atoms.extend(self.parameters(tags, tool));
                }
                (NotationPiece::Nested, Some(tool)) => atoms.push(Atom::Item(self.nested(tool))),
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

    /// A call of `tool` as a JSON object with these keys for its name and its arguments.
    pub(crate) fn call_object(&mut self, [name, arguments]: [&str; 2], tool: &Tool) -> String {
        let inner = moved(&self::schema(tool), &format!("/properties/{arguments}"));
        let schema = json!({"type": "object", "properties": {name: {"const": tool.name},
            arguments: inner}, "required": [name, arguments], "additionalProperties": false});
        let Value::Object(map) = schema else { return String::new() };
        let whole = with_options(map, tool);
        self.json("object", &whole)
    }

    /// A delimiter, and text after it.
    pub(crate) fn tag(&mut self, delimiter: &'static str, rest: &str) -> String {
        join(self.tag_atoms(delimiter, rest))
    }

    /// Any text up to and including a delimiter and the text after it.
    pub(crate) fn up_to_tag(&mut self, delimiter: &'static str, rest: &str) -> String {
        let close = self.tag_atoms(delimiter, rest);
        self.text_and(close)
    }

    fn tag_atoms(&mut self, delimiter: &'static str, rest: &str) -> Vec<Atom> {
        let mut atoms = self.delimiter(delimiter);
        atoms.push(Atom::Text(rest.into()));
        atoms
    }

    pub(crate) fn json(&mut self, kind: &str, schema: &Value) -> String {
        self.rule(kind, &format!("%json {schema}"))
    }

    /// The parameters in the order of the schema, each between its tags.
    fn parameters(&mut self, tags: &'static Tags, tool: &Tool) -> Vec<Atom> {
        let schema = tool.parameters.as_ref();
        let properties = schema.and_then(|s| s.get("properties")).and_then(Value::as_object);
        let required = tool.required();
        let mut atoms = Vec::new();
        for (key, property) in properties.into_iter().flatten() {
            let one = self.parameter(&Parameter { tags, tool, key, property });
            let one = self.rule("parameter", &one);
            let optional = if required.contains(&key.as_str()) { "" } else { "?" };
            atoms.push(Atom::Item(format!("{one}{optional}")));
        }
        atoms
    }

    fn parameter(&mut self, parameter: &Parameter<'_>) -> String {
        let Parameter { tags, tool, key, .. } = parameter;
        let is_text = tool.types(key) == ["string"];
        match tags.attributes {
            Attributes::None => self.tagged(parameter, Vec::new(), is_text),
            Attributes::IsText => {
                let flag = Atom::Text(format!("\" string=\"{is_text}\""));
                self.tagged(parameter, vec![flag], is_text)
            }
            Attributes::Type => {
                let (may_be_text, others) = parameter.kinds();
                let open = || Atom::Text("\" type=\"".into());
                let close = || Atom::Text("\"".into());
                let mut forms = Vec::new();
                if may_be_text {
                    let kind = Atom::Text("string".into());
                    forms.push(self.tagged(parameter, vec![open(), kind, close()], true));
                }
                if !others.is_empty() {
                    let kinds: Vec<String> = others.into_iter().map(literal).collect();
                    let kind = Atom::Item(format!("({})", kinds.join(" | ")));
                    forms.push(self.tagged(parameter, vec![open(), kind, close()], false));
                }
                forms.join(" | ")
            }
        }
    }

    /// A parameter with these attributes, whose value is text or JSON.
    fn tagged(
        &mut self,
        parameter: &Parameter<'_>,
        attributes: Vec<Atom>,
        is_text: bool,
    ) -> String {
        let Parameter { tags, tool, key, property } = *parameter;
        let line = if tags.lines { "\n" } else { "" };
        let mut atoms = self.delimiter(tags.key);
        atoms.push(Atom::Text(tags.attributes.escape(key)));
        atoms.extend(attributes);
        atoms.extend(self.delimiter(tags.key_close));
        if !tags.value.is_empty() {
            atoms.push(Atom::Text("\n".into()));
            atoms.extend(self.delimiter(tags.value));
        }
        atoms.push(Atom::Text(line.into()));

        let mut close = vec![Atom::Text(line.into())];
        close.extend(self.delimiter(tags.value_close));
        close.extend(tags.break_after_value.then(|| Atom::Text("\n".into())));

        let choices = property.get("enum").and_then(Value::as_array);
        let texts =
            choices.and_then(|all| all.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        match texts {
            Some(texts) => {
                let all: Vec<String> = texts.into_iter().map(literal).collect();
                atoms.push(Atom::Item(format!("({})", all.join(" | "))));
                atoms.extend(close);
            }
            None if is_text => {
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
    fn text_and(&mut self, mut close: Vec<Atom>) -> String {
        let text = self.text();
        if close.iter().all(|atom| matches!(atom, Atom::Text(_))) {
            return self.attributed("text", "[lazy]", &format!("{text} {}", join(close)));
        }
        // Text contains no control tokens, so it ends before the first. What precedes that is the
        // end of the text to the lexer.
        let texts = close.iter().take_while(|atom| matches!(atom, Atom::Text(_))).count();
        let rest = join(close.split_off(texts));
        match join(close).as_str() {
            "" => self.rule("text", &format!("{text} {rest}")),
            before => {
                let ended = self.rule("TEXT", &format!("/(?s:.*)/ {before}"));
                self.rule("text", &format!("{ended} {rest}"))
            }
        }
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
        // As at OpenAI, a function without parameters takes none.
        _ => Map::from_iter([("properties".to_string(), json!({}))]),
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
pub(crate) fn as_root(property: &Value, tool: &Tool) -> Value {
    let mut map = property.as_object().cloned().unwrap_or_default();
    for definitions in ["$defs", "definitions"] {
        if let Some(all) = tool.parameters.as_ref().and_then(|s| s.get(definitions)) {
            map.insert(definitions.into(), all.clone());
        }
    }
    with_options(map, tool)
}

/// `schema` as a part of another one, at `place`: references to its root are changed.
fn moved(schema: &Value, place: &str) -> Value {
    match schema {
        Value::Object(map) => {
            let one = |(key, value): (&String, &Value)| {
                let value = match (key.as_str(), value) {
                    ("x-guidance", _) => return None,
                    ("$ref", Value::String(to)) if to.starts_with('#') => {
                        Value::from(format!("#{place}{}", &to[1..]))
                    }
                    _ => moved(value, place),
                };
                Some((key.clone(), value))
            };
            Value::Object(map.iter().filter_map(one).collect())
        }
        Value::Array(all) => all.iter().map(|value| moved(value, place)).collect(),
        other => other.clone(),
    }
}

fn with_options(mut map: Map<String, Value>, tool: &Tool) -> Value {
    let options = json!({"whitespace_pattern": JSON_SPACE, "lenient": !tool.strict});
    map.insert("x-guidance".into(), options);
    Value::Object(map)
}
