//! Reads model aliases: `name: model`, `name: {model: m, class: batch}`, or a list of names.

use serde_json::{Value, json};

use super::key_recorder::KeyRecorder;
use super::section::{Problems, Section, text_schema, texts_schema};
use crate::access::keys::{Alias, Aliases};
use crate::config::yaml::Node;
use crate::types::class::Class;

impl Section {
    /// Aliases by name. In a plain list, each name stands for itself.
    pub(super) fn aliases(&mut self, key: &str, problems: &mut Problems) -> Aliases {
        match self.value(key, Node::Map(Vec::new()), schema) {
            Node::Absent => Aliases::new(),
            Node::Map(entries) => {
                let path = format!("{}.", self.child(key));
                let alias =
                    |(name, node)| Some((alias(node, format!("{path}{name}"), problems)?, name));
                entries.into_iter().filter_map(alias).map(|(alias, name)| (name, alias)).collect()
            }
            Node::List(items) if items.iter().all(is_name) => {
                let own = |node| match node {
                    Node::Text(model) => Some((model.clone(), Alias { model, class: None })),
                    _ => None,
                };
                items.into_iter().filter_map(own).collect()
            }
            _ => {
                self.report(key, "expected a map of aliases, or a list of names", problems);
                Aliases::new()
            }
        }
    }
}

fn is_name(node: &Node) -> bool {
    matches!(node, Node::Text(text) if !text.is_empty())
}

fn alias(node: Node, path: String, problems: &mut Problems) -> Option<Alias> {
    match node {
        Node::Text(model) if !model.is_empty() => Some(Alias { model, class: None }),
        Node::Map(_) => {
            let mut section = Section::new(node, path, &KeyRecorder::default(), problems);
            let model = section.required_text("model", problems);
            let class = section.optional_choice("class", (&Class::ALL, Class::name), problems);
            section.finish(problems);
            Some(Alias { model: model?, class })
        }
        _ => {
            let message = "expected the name of a model, or {model: NAME, class: CLASS}".into();
            problems.push(crate::config::yaml::Problem { path, message });
            None
        }
    }
}

fn schema() -> Value {
    let class = json!({"type": ["string", "null"],
        "enum": ["interactive", "standard", "batch", null]});
    let long = json!({"type": "object", "additionalProperties": false, "required": ["model"],
        "properties": {"model": text_schema(), "class": class}});
    let short_or_long = json!({"anyOf": [text_schema(), long]});
    json!({"anyOf": [{"type": "object", "additionalProperties": short_or_long}, texts_schema()]})
}
