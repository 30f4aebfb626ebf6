//! PURE. JSON Schema of the configuration for editors, derived from the code that reads it and from
//! the comments of the reference configuration.

use serde_json::{Value, json};

use super::acme::{Challenge, DOMAINS_MAX};
use super::key_recorder::KeySchema;
use super::reference::Reference;
use crate::config::document::keys;

/// The draft that editors support best.
const DRAFT: &str = "http://json-schema.org/draft-07/schema#";

/// The schema.
pub fn schema() -> Value {
    let mut root = object();
    for key in keys() {
        insert(&mut root, key);
    }
    for note in Reference::shipped().notes().iter().filter(|note| !note.text.is_empty()) {
        if let Some(place) = place(&mut root, &note.path) {
            place["description"] = note.text.clone().into();
        }
    }
    together(&mut root);
    let mut schema = json!({"$schema": DRAFT, "title": "Configuration of flotilla-gateway"});
    if let (Value::Object(schema), Value::Object(root)) = (&mut schema, root) {
        schema.extend(root);
    }
    schema
}

fn object() -> Value {
    json!({"type": "object", "additionalProperties": false, "properties": {}})
}

/// Adds constraints that span several keys.
fn together(root: &mut Value) {
    let some = json!({"type": "array", "minItems": 1});
    let keys = json!([
        {"required": ["keys"], "properties": {"keys": some}},
        {"required": ["keys_file"], "properties": {"keys_file": {"type": "string"}}},
        {"required": ["store"], "properties": {"store":
            {"type": "object", "required": ["keys"], "properties": {"keys": {"const": true}}}}},
    ]);
    let anybody = json!({"required": ["allow_anonymous"],
        "properties": {"allow_anonymous": {"const": true}}});
    let nodes = json!({"required": ["nodes"], "properties": {"nodes": {"type": "object"}}});
    let externals = json!({"required": ["external"], "properties": {"external": some}});
    root["allOf"] = json!([
        {"oneOf": [{"anyOf": keys}, anybody]},
        {"anyOf": [nodes, externals]},
    ]);
    let nodes = &mut root["properties"]["nodes"];
    let joins =
        json!({"required": ["join_key_file"], "properties": {"join_key_file": {"type": "string"}}});
    let listed = json!({"required": ["static"], "properties": {"static": some}});
    // An empty section counts as absent.
    nodes["anyOf"] = json!([joins, listed, {"type": "null"}]);
    let both = json!({"cert_file": ["client_key_file"], "client_key_file": ["cert_file"]});
    nodes["properties"]["static"]["items"]["dependencies"] = both;
    tls_together(&mut root["properties"]["tls"]);
}

/// The certificate is in two files, or from an ACME server.
fn tls_together(tls: &mut Value) {
    let (file, none) = (json!({"type": "string"}), json!({"type": "null"}));
    let files = json!({"required": ["cert_file", "key_file"],
        "properties": {"cert_file": file, "key_file": file, "acme": none}});
    let from_server = json!({"required": ["acme"],
        "properties": {"acme": {"type": "object"}, "cert_file": none, "key_file": none}});
    tls["anyOf"] = json!([files, from_server, none]);
    let acme = &mut tls["properties"]["acme"];
    acme["properties"]["domains"]["minItems"] = 1.into();
    acme["properties"]["domains"]["maxItems"] = DOMAINS_MAX.into();
    acme["if"] = json!({"type": "object", "required": ["challenge"],
        "properties": {"challenge": {"const": Challenge::Http01.name()}}});
    acme["then"] = json!({"required": ["http_listen"], "properties": {"http_listen": file}});
    acme["not"] = json!({"type": "object", "required": ["staging", "directory"],
        "properties": {"staging": {"const": true}, "directory": file}});
}

/// The schema at a path, if it exists.
fn place<'a>(root: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(root, |at, name| {
        let at = match at.get("items").is_some() {
            true => at.get_mut("items")?,
            false => at,
        };
        at.get_mut("properties")?.get_mut(name.trim_end_matches("[]"))
    })
}

fn insert(root: &mut Value, key: KeySchema) {
    let mut at = root;
    let (sections, name) = key.path.rsplit_once('.').unwrap_or(("", &key.path));
    for section in sections.split('.').filter(|section| !section.is_empty()) {
        let name = section.trim_end_matches("[]");
        let is_list = name != section;
        let entry = &mut at["properties"][name];
        if entry.is_null() {
            *entry = match is_list {
                true => json!({"type": ["array", "null"], "items": object()}),
                false => optional(object()),
            };
        }
        at = if is_list { &mut entry["items"] } else { entry };
    }
    if key.required {
        let required = at.as_object_mut().map(|at| at.entry("required").or_insert(json!([])));
        if let Some(Value::Array(names)) = required {
            names.push(name.into());
        }
    }
    let schema = if key.required { key.schema } else { optional(key.schema) };
    at["properties"][name] = schema;
}

/// Allows null: a key without a value counts as absent.
fn optional(mut schema: Value) -> Value {
    let Value::Object(fields) = &mut schema else { return schema };
    for (field, value) in fields.iter_mut() {
        match (field.as_str(), value) {
            ("type", Value::String(name)) => {
                let names = json!([name, "null"]);
                return with(schema, "type", names);
            }
            ("anyOf", Value::Array(all)) => {
                all.push(json!({"type": "null"}));
                return schema;
            }
            _ => {}
        }
    }
    schema
}

fn with(mut schema: Value, field: &str, value: Value) -> Value {
    schema[field] = value;
    if let Some(Value::Array(names)) = schema.get_mut("enum") {
        names.push(Value::Null);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::document::KEYS;

    #[test]
    fn every_key_that_is_read_is_known_by_name_and_no_other() {
        let mut read: Vec<String> = keys().into_iter().map(|key| key.path).collect();
        let mut known: Vec<String> = KEYS.iter().map(|key| (*key).to_string()).collect();
        read.sort();
        known.sort();
        assert_eq!(read, known);
    }

    #[test]
    fn every_key_is_described_and_has_a_type() {
        let mut root = schema();
        for key in KEYS {
            let found = place(&mut root, key).unwrap_or_else(|| panic!("{key} is missing"));
            let said = found.get("description");
            assert!(said.is_some(), "configs/gateway.yaml has no comment for {key}");
            assert!(found.get("type").or(found.get("anyOf")).is_some(), "{key}: {found}");
        }
    }

    #[test]
    fn bounds_and_defaults_are_those_of_the_code() {
        let schema = schema();
        let body = &schema["properties"]["limits"]["properties"]["body_bytes_max"];
        assert_eq!((&body["maximum"], &body["default"]), (&json!(8388608), &json!(4194304)));
        let key = &schema["properties"]["keys"]["items"];
        assert_eq!(key["required"], json!(["name", "sha256"]));
        assert_eq!(key["properties"]["class_max"]["enum"][0], "interactive");
        assert_eq!(schema["properties"]["limits"]["type"], json!(["object", "null"]));
    }
}
