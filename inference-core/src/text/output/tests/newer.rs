//! What only the notations of Kimi K3 and MiniMax M3 have.

use serde_json::json;

use super::*;

fn k3(text: &str) -> ParsedMessage {
    let open = "<|open|>think<|sep|>";
    let reasoning = Some(ReasoningDelimiters { open, close: "<|close|>think<|sep|>" });
    let format = Format { reasoning, calls: CallFormat::KimiK3, ids: CallIds::Any };
    let parser = Parser::new(&format, tools(), true, 8);
    join_parts(parse_chunks(parser, [text]).0)
}

#[test]
fn channels_of_kimi_k3_become_reasoning_content_and_calls() {
    let text = "Hm.<|close|>think<|sep|><|open|>response<|sep|>One moment.<|close|>response<|sep|>\
        <|open|>tools<|sep|><|open|>call tool=\"send\" index=\"1\"<|sep|>\
        <|open|>argument key=\"city\" type=\"string\"<|sep|>Paris<|close|>argument<|sep|>\
        <|close|>call<|sep|><|open|>call tool=\"now\" index=\"2\"<|sep|><|close|>call<|sep|>\
        <|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";
    let message = k3(text);
    assert_eq!(message.reasoning.as_deref(), Some("Hm."));
    assert_eq!(content(&message), "One moment.");
    let two = expected(&[("send", json!({"city": "Paris"})), ("now", json!({}))]);
    assert_eq!(arguments(&message), two);
    let plain = "Hm.<|close|>think<|sep|><|open|>response<|sep|>Hi!<|close|>response<|sep|>\
        <|close|>message<|sep|>";
    assert_eq!(content(&k3(plain)), "Hi!");
}

#[test]
fn kimi_k3_may_write_all_arguments_as_one_json_object() {
    let call = |json: &str| {
        format!(
            "<|open|>tools<|sep|><|open|>call tool=\"send\" index=\"1\"<|sep|>\
             <|open|>json type=\"object\"<|sep|>{json}<|close|>json<|sep|><|close|>call<|sep|>"
        )
    };
    let text = format!("{}{}<|close|>tools<|sep|>", call("{\"days\": 1}"), {
        call("{}").replace("<|open|>tools<|sep|>", "")
    });
    let message = parse(CallFormat::KimiK3, &text);
    let two = expected(&[("send", json!({"days": 1})), ("send", json!({}))]);
    assert_eq!((arguments(&message), message.content), (two, None));
}

#[test]
fn types_and_schemas_say_which_values_of_kimi_k3_are_text() {
    for (key, kind, written, expected) in [
        ("free", "string", "12", json!({"free": "12"})),
        ("free", "number", "12", json!({"free": 12})),
        ("free", "boolean", "true", json!({"free": true})),
        ("city", "number", "12", json!({"city": "12"})),
        ("units", "string", "null", json!({"units": "null"})),
        ("units", "null", "null", json!({"units": null})),
        ("list", "array", "[1,\"a\"]", json!({"list": [1, "a"]})),
        ("a&quot;b&amp;c", "string", "x", json!({"a\"b&c": "x"})),
    ] {
        let text = format!(
            "<|open|>call tool=\"send\" index=\"1\"<|sep|><|open|>argument key=\"{key}\" \
             type=\"{kind}\"<|sep|>{written}<|close|>argument<|sep|><|close|>call<|sep|>"
        );
        let message = parse(CallFormat::KimiK3, &text);
        assert_eq!(arguments(&message), [("send".to_string(), expected)], "{key} {kind}");
    }
}

/// A call of MiniMax M3 whose tags are written without what precedes each.
fn m3(inner: &str) -> String {
    let text = format!("<tool_call>\n<invoke name=\"send\">{inner}</invoke>\n</tool_call>");
    text.replace('<', "]<]minimax[>[<")
}

#[test]
fn nested_tags_of_minimax_m3_become_lists_and_objects() {
    for (inner, expected) in [
        ("<deep><a>1</a><b><c>x y</c></b></deep>", json!({"deep": {"a": 1, "b": {"c": "x y"}}})),
        ("<deep><a><a>1</a></a></deep>", json!({"deep": {"a": {"a": 1}}})),
        ("<deep><item>1</item></deep>", json!({"deep": {"item": 1}})),
        ("<list><item>1</item>\n<item><k>é</k></item></list>", json!({"list": [1, {"k": "é"}]})),
        ("<list><item><item>1</item></item></list>", json!({"list": [[1]]})),
        ("<list></list><deep>\n</deep>", json!({"list": [], "deep": {}})),
        ("<list>[1, 2]</list>", json!({"list": [1, 2]})),
        ("\n<days>3</days>\n<city>3</city>\n", json!({"days": 3, "city": "3"})),
        ("<free>true</free><units>null</units>", json!({"free": true, "units": null})),
    ] {
        let message = parse(CallFormat::MiniMaxM3, &m3(inner));
        assert_eq!(arguments(&message), [("send".to_string(), expected)], "{inner}");
        assert_eq!(message.content, None, "{inner}");
    }
}

#[test]
fn text_like_tags_is_text_for_minimax_m3() {
    let text = m3("<city>A</city><list><item>B</item></list>");
    let text = text.replace('A', "<b>]<]minimax[>[<x> </city> ]<]minimax[>[</list>");
    let text = text.replace('B', "</item> ]<]minimax[>[</city> ]<] é");
    let message = parse(CallFormat::MiniMaxM3, &text);
    let expected = json!({"city": "<b>]<]minimax[>[<x> </city> ]<]minimax[>[</list>",
        "list": ["</item> ]<]minimax[>[</city> ]<] é"]});
    assert_eq!(arguments(&message), [("send".to_string(), expected)]);
}

#[test]
fn strings_of_minimax_m3_are_passed_on_while_they_come() {
    let mut parser = Parser::new(&format(CallFormat::MiniMaxM3), tools(), false, 8);
    let whole = m3("<city>Paris</city>");
    let (before, _) = whole.split_once("ris").unwrap();
    parser.push(before);
    let part = |fragment: &str| OutputPart::CallArguments { index: 0, fragment: fragment.into() };
    assert_eq!(parser.push("ri"), [part("ri")]);
    assert_eq!(parser.push("s]<]mini"), [part("s")]);
    assert_eq!(parser.push("max[>[</city>"), [part("\"")]);
}

#[test]
fn tags_without_end_are_bounded() {
    let deep = "<a>".repeat(10_000);
    let message = parse(CallFormat::MiniMaxM3, &m3(&format!("<deep>{deep}")));
    assert_eq!(message.calls[0].name, "send");
    assert!(serde_json::from_str::<Value>(&message.calls[0].arguments).is_err());
}
