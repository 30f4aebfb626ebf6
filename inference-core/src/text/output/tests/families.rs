//! Tests that every family's notation must pass, and of detection.

use serde_json::json;

use super::writer::write;
use super::*;

fn weather() -> (&'static str, Value) {
    ("get_weather", json!({"city": "Paris", "days": 3}))
}

#[test]
fn one_call() {
    for calls in CallFormat::ALL {
        let message = parse(calls, &write(calls, &[weather()]));
        assert_eq!(arguments(&message), expected(&[weather()]), "{calls:?}");
        assert_eq!((message.content, message.reasoning), (None, None), "{calls:?}");
    }
}

#[test]
fn a_call_without_arguments() {
    for calls in CallFormat::ALL {
        let message = parse(calls, &write(calls, &[("now", json!({}))]));
        assert_eq!(arguments(&message), expected(&[("now", json!({}))]), "{calls:?}");
        assert_eq!(message.content, None, "{calls:?}");
    }
}

#[test]
fn two_parallel_calls() {
    let two = [weather(), ("send", json!({"deep": {"a": [1]}, "units": null}))];
    for calls in CallFormat::ALL {
        let message = parse(calls, &write(calls, &two));
        assert_eq!(arguments(&message), expected(&two), "{calls:?}");
        assert_eq!(message.content, None, "{calls:?}");
    }
}

#[test]
fn text_then_a_call_then_text() {
    for calls in CallFormat::ALL {
        let text = format!("Let me look.\n\n{}\n\nDone.", write(calls, &[weather()]));
        let message = parse(calls, &text);
        assert_eq!(arguments(&message), expected(&[weather()]), "{calls:?}");
        assert_eq!(content(&message), "Let me look.\nDone.", "{calls:?}");
    }
}

#[test]
fn reasoning_then_a_call() {
    for calls in CallFormat::ALL {
        let reasoning = match calls {
            CallFormat::Harmony => "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
            _ => "<think>\nHm.\n</think>\n\n",
        };
        let message = parse(calls, &format!("{reasoning}{}", write(calls, &[weather()])));
        assert_eq!(message.reasoning.as_deref(), Some("Hm."), "{calls:?}");
        assert_eq!(arguments(&message), expected(&[weather()]), "{calls:?}");
        assert_eq!(message.content, None, "{calls:?}");
    }
}

#[test]
fn reasoning_that_begins_in_the_prompt() {
    for calls in CallFormat::ALL.into_iter().filter(|c| *c != CallFormat::Harmony) {
        let parser = Parser::new(&format(calls), tools(), true, 8);
        let text = format!("\nHm.\n</think>\n\nOK {}", write(calls, &[weather()]));
        let text =
            text.replace("OK {", "OK\n{").replace("OK [{", "OK\n[{").replace("OK [get", "OK\n[get");
        let message = join_parts(parse_chunks(parser, [text.as_str()]).0);
        assert_eq!(message.reasoning.as_deref(), Some("Hm."), "{calls:?}");
        assert_eq!(content(&message), "OK", "{calls:?}");
        assert_eq!(arguments(&message), expected(&[weather()]), "{calls:?}");
    }
}

#[test]
fn a_call_cut_anywhere_keeps_what_was_streamed() {
    let two = [("send", json!({"city": "a</b>\"é\n", "days": 12})), weather()];
    for calls in CallFormat::ALL {
        let text = write(calls, &two);
        for (end, _) in text.char_indices() {
            let mut parser = Parser::new(&format(calls), tools(), false, 8);
            let streamed = join_parts(parser.push(&text[..end]));
            let (rest, complete) = parser.finish();
            let parts: Vec<OutputPart> =
                streamed_parts(&streamed).into_iter().chain(rest).collect();
            let message = join_parts(parts);
            assert!(message.calls.len() >= streamed.calls.len(), "{calls:?} {end}");
            for (call, (name, join_parts)) in message.calls.iter().zip(&two) {
                assert_eq!(call.name, *name, "{calls:?} {end}");
                if let Ok(read) = serde_json::from_str::<Value>(&call.arguments) {
                    assert_eq!(read, *join_parts, "{calls:?} {end}");
                    assert!(complete, "{calls:?} {end}");
                }
            }
            // Text is either a call or content, not both.
            if message.calls.is_empty() {
                assert_eq!(content(&message), without_frames(&text[..end]), "{calls:?} {end}");
            }
        }
    }
}

/// A text without the delimiters of messages, which are never content.
fn without_frames(text: &str) -> String {
    let frames = ["<|call|>", "<|tool_calls|>", "<|message_sep|>"];
    frames.iter().fold(text.to_string(), |text, frame| text.replace(frame, ""))
}

/// The parts that a message was made of.
fn streamed_parts(message: &ParsedMessage) -> Vec<OutputPart> {
    let mut parts: Vec<OutputPart> =
        message.content.iter().cloned().map(OutputPart::Content).collect();
    for (index, call) in message.calls.iter().enumerate() {
        let (name, id) = (call.name.clone(), call.id.clone());
        parts.push(OutputPart::CallStart { index, name, id });
        parts.push(OutputPart::CallArguments { index, fragment: call.arguments.clone() });
    }
    parts
}

#[test]
fn a_call_of_an_unknown_tool_is_text() {
    for calls in CallFormat::ALL {
        let text = write(calls, &[("no_such_tool", json!({"city": "Paris"}))]);
        let message = parse(calls, &text);
        assert_eq!(message.calls, [], "{calls:?}");
        let said = content(&message);
        assert_eq!(without_frames(said), without_frames(&text), "{calls:?}");
    }
}

#[test]
fn strings_may_contain_delimiters_quotes_and_any_character() {
    let hard = "a \"</tool_call>\" }]} <|tool_call_end|> \\ \u{1F408} é ｜ </parameter> \t x";
    for calls in CallFormat::ALL {
        let call = ("send", json!({"city": hard, "list": [hard]}));
        let message = parse(calls, &write(calls, std::slice::from_ref(&call)));
        assert_eq!(arguments(&message), expected(&[call]), "{calls:?}");
        assert_eq!(message.content, None, "{calls:?}");
    }
}

#[test]
fn broken_calls_lose_no_text() {
    for calls in CallFormat::ALL {
        let text = write(calls, &[("send", json!({"days": 3, "list": [1]}))]);
        let message = parse(calls, &format!("{} end", text.replace('3', "3 oops !")));
        let said = format!("{message:?}");
        assert!(said.contains("oops !") && content(&message).ends_with("end"), "{calls:?} {said}");
    }
}

#[test]
fn an_id_that_the_model_wrote_is_kept_if_it_is_likely_to_be_unique() {
    let cases = [
        (
            CallFormat::MistralIds,
            "[TOOL_CALLS]send[CALL_ID]abcdef123[ARGS]{}[TOOL_CALLS]now[CALL_ID]abcdef124[ARGS]{}",
            [Some("abcdef123"), Some("abcdef124")],
        ),
        (
            CallFormat::MistralIds,
            "[TOOL_CALLS]send[CALL_ID]abcdef123[ARGS]{}[TOOL_CALLS]now[CALL_ID]abcdef123[ARGS]{}",
            [Some("abcdef123"), None],
        ),
        (CallFormat::Mistral, "[TOOL_CALLS]send[ARGS]{}[TOOL_CALLS]now{}", [None, None]),
        (
            CallFormat::MistralArray,
            "[TOOL_CALLS] [{\"id\": \"a1b2c3d4e\", \"name\": \"send\", \"arguments\": {}}, \
             {\"id\": \"1\", \"name\": \"now\", \"arguments\": {}}]",
            [Some("a1b2c3d4e"), None],
        ),
        (
            CallFormat::Kimi,
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.send:3\
             <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>now\
             <|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
            [Some("functions.send:3"), None],
        ),
    ];
    for (calls, text, expected) in cases {
        let message = parse(calls, text);
        let ids: Vec<Option<&str>> = message.calls.iter().map(|c| c.id.as_deref()).collect();
        assert_eq!(ids, expected, "{calls:?} {text}");
        assert_eq!(message.content, None, "{calls:?} {text}");
    }
}

#[test]
fn a_call_whose_arguments_break_off_is_cut_off() {
    for (text, cut_off) in [
        ("<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", false),
        ("<tool_call>{\"name\": \"send\", \"arguments\": {\"days\"", true),
        ("<tool_call>{\"name\": \"se", false),
        ("text", false),
    ] {
        let mut parser = Parser::new(&format(CallFormat::Hermes), tools(), false, 8);
        parser.push(text);
        parser.finish();
        assert_eq!(parser.is_cut_off(), cut_off, "{text}");
    }
}

#[test]
fn ordinary_json_in_a_code_fence_streams_like_other_text() {
    let mut parser = Parser::new(&format(CallFormat::Generic), tools(), false, 8);
    let parts = parser.push("```json\n{\"answer\": 4");
    assert_eq!(parts, [OutputPart::Content("```json\n{\"answer\": 4".into())]);
}

#[test]
fn escapes_are_left_as_the_model_wrote_them() {
    // The notations of Gemma and MiniMax M3 have no escapes in strings; Python has no `\\/`.
    let others = [CallFormat::Gemma, CallFormat::MiniMaxM3, CallFormat::Lfm, CallFormat::Pythonic];
    for calls in CallFormat::ALL.into_iter().filter(|c| !others.contains(c)) {
        let text = write(calls, &[("send", json!({"deep": {"a": "ESC"}}))]);
        let message = parse(calls, &text.replace("ESC", "\\u00e9\\/\\n"));
        let written = "{\"a\":\"\\u00e9\\/\\n\"}}";
        assert!(message.calls[0].arguments.ends_with(written), "{calls:?}");
    }
}

#[test]
fn values_in_tags_may_have_lines_and_text_like_tags() {
    let call = ("send", json!({"city": "\nfirst\n\n  second</parameter>\n", "days": 2}));
    let all = [
        CallFormat::QwenXml,
        CallFormat::Seed,
        CallFormat::MiniMax,
        CallFormat::MiniMaxM3,
        CallFormat::KimiK3,
        CallFormat::Glm,
        CallFormat::Dsml,
        CallFormat::DsmlV4,
        CallFormat::MiniCpm,
        CallFormat::Hy3,
        CallFormat::Hy3Suffixed,
    ];
    for calls in all {
        let message = parse(calls, &write(calls, std::slice::from_ref(&call)));
        assert_eq!(arguments(&message), expected(std::slice::from_ref(&call)), "{calls:?}");
    }
}

#[test]
fn newer_and_older_notations_of_one_family_are_read() {
    let one = expected(&[("send", json!({"days": 1}))]);
    let cases = [
        (
            CallFormat::Mistral,
            "[TOOL_CALLS] [{\"name\": \"send\", \"arguments\": {\"days\": 1}, \"id\": \"abcdef123\"}]",
        ),
        (CallFormat::Mistral, "[TOOL_CALLS]send{\"days\": 1}"),
        (CallFormat::Mistral, "[TOOL_CALLS]send[CALL_ID]abcdef123[ARGS]{\"days\": 1}"),
        (
            CallFormat::DeepSeek,
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>send<｜tool▁sep｜>{\"days\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            CallFormat::DeepSeek,
            "<｜tool▁call▁begin｜>send<｜tool▁sep｜>{\"days\": 1}<｜tool▁call▁end｜>",
        ),
        (CallFormat::Llama, "<|python_tag|>{\"name\": \"send\", \"parameters\": {\"days\": 1}}"),
        (CallFormat::Llama, "[{\"name\": \"send\", \"parameters\": {\"days\": 1}}]"),
        (
            CallFormat::Pipes,
            "<|tool_call|>{\"name\": \"send\", \"arguments\": {\"days\": 1}}<|/tool_call|>",
        ),
        (CallFormat::Pipes, "functools[{\"name\": \"send\", \"arguments\": {\"days\": 1}}]"),
        (
            CallFormat::Glm,
            "<tool_call>send<arg_key>days</arg_key><arg_value>1</arg_value></tool_call>",
        ),
        (
            CallFormat::QwenXml,
            "<function=send>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            CallFormat::QwenXml,
            "<tool_call>\n{\"name\": \"send\", \"arguments\": {\"days\": 1}}\n</tool_call>",
        ),
        (
            CallFormat::Harmony,
            " to=functions.send<|channel|>commentary json<|message|>{\"days\": 1}",
        ),
        (
            CallFormat::Harmony,
            "<|start|>assistant<|channel|>analysis to=functions.send code<|message|>{\"days\": 1}<|call|>",
        ),
        (
            CallFormat::Lfm,
            "<|tool_call_start|>[{\"name\": \"send\", \"arguments\": {\"days\": 1}}]<|tool_call_end|>",
        ),
        (CallFormat::Lfm, "<|tool_call_start|>send(days=1)<|tool_call_end|>"),
        (
            CallFormat::DeepSeek,
            "<tool_call>\n{\"name\": \"send\", \"arguments\": {\"days\": 1}}\n</tool_call>",
        ),
        (
            CallFormat::GigaChatToken,
            "<|message_sep|>\n\n<|function_call|>\n{\"name\": \"send\", \"arguments\": {\"days\": 1}}",
        ),
        (
            CallFormat::Hy3Suffixed,
            "<tool_call:opensource>send<tool_sep:opensource>{\"days\": 1}<end_of_tool_call:opensource>",
        ),
        (
            CallFormat::MiniCpm,
            "<function name=\"send\"><param name=\"days\"><![CDATA[1]]></param></function>",
        ),
        (
            CallFormat::Solar,
            "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>send<|tool_call:args|>\
             {\"days\": 1}<|tool_call:end|><|calls|>",
        ),
        (CallFormat::FunctionaryLines, "send\n{\"days\": 1}"),
        (CallFormat::Apertus, "<|tools_prefix|>{\"send\": {\"days\": 1}}<|tools_suffix|>"),
        (CallFormat::Fenced, "```tool_code\nsend(days=1)\n```"),
        (CallFormat::Pythonic, "<|python_start|>[send(days=1)]<|python_end|>"),
        (CallFormat::Fenced, "```json\n{\"name\": \"send\", \"arguments\": {\"days\": 1}}\n```"),
        (
            CallFormat::Hermes,
            "<tool_call>```json\n{\"name\": \"send\", \"arguments\": {\"days\": 1}}</tool_call>",
        ),
    ];
    for (calls, text) in cases {
        let message = parse(calls, text);
        assert_eq!(arguments(&message), one, "{calls:?} {text}");
        assert_eq!(message.content, None, "{calls:?} {text}");
    }
}

#[test]
fn messages_with_their_recipients_become_content_and_calls() {
    for text in [
        "all\nOne moment.>>>send\n{\"days\": 1}>>>now\n{}",
        ">>>all\nOne moment.>>>send\n{\"days\": 1}>>>now\n{}",
    ] {
        let message = parse(CallFormat::FunctionaryLines, text);
        assert_eq!(content(&message), "One moment.", "{text}");
        let two = expected(&[("send", json!({"days": 1})), ("now", json!({}))]);
        assert_eq!(arguments(&message), two, "{text}");
    }
    let said = parse(CallFormat::FunctionaryLines, "all\n>>> print(1)");
    assert_eq!(content(&said), ">>> print(1)");
}

#[test]
fn attributes_and_schemas_say_which_values_are_text() {
    let value = |key: &str, text: &str, value: &str| {
        format!(
            "<｜DSML｜function_calls><｜DSML｜invoke name=\"send\"><｜DSML｜parameter name=\"{key}\" \
             string=\"{text}\">{value}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>"
        )
    };
    for (key, text, written, expected) in [
        ("free", "true", "12", json!({"free": "12"})),
        ("free", "false", "12", json!({"free": 12})),
        ("city", "false", "12", json!({"city": "12"})),
        ("units", "true", "null", json!({"units": "null"})),
        ("units", "false", "null", json!({"units": null})),
        ("list", "false", "[1, \"a\"]", json!({"list": [1, "a"]})),
    ] {
        let message = parse(CallFormat::Dsml, &value(key, text, written));
        assert_eq!(arguments(&message), [("send".to_string(), expected)], "{key} {text}");
    }
}

#[test]
fn frames_of_messages_are_no_content() {
    let solar = Format {
        reasoning: Some(ReasoningDelimiters { open: "<|think|>", close: "<|end|>" }),
        ..format(CallFormat::Solar)
    };
    let parser = Parser::new(&solar, tools(), false, 8);
    let text = "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hello<|end|><|flush|>";
    let message = join_parts(parse_chunks(parser, [text]).0);
    assert_eq!((message.reasoning.as_deref(), content(&message)), (Some("Hm."), "Hello"));

    let apriel =
        Format::detect("Here are my reasoning steps: [BEGIN FINAL RESPONSE] <tool_calls>[");
    let parser = Parser::new(&apriel, tools(), true, 8);
    let text = "Hm.\n[BEGIN FINAL RESPONSE]\nHello\n[END FINAL RESPONSE]";
    let message = join_parts(parse_chunks(parser, [text]).0);
    assert_eq!((message.reasoning.as_deref(), content(&message)), (Some("Hm."), "Hello\n"));

    let message = parse(CallFormat::Hunyuan, "<think>Hm.</think><answer>\nHello\n</answer>");
    assert_eq!((message.reasoning.as_deref(), content(&message)), (Some("Hm."), "Hello\n"));
}

#[test]
fn json_that_is_no_call_is_text() {
    for text in
        ["{\"answer\": 42}", "[1, 2]", "[link](x)", "{\"name\": \"Bob\"}", "{\"name\": 1}", "{}"]
    {
        for calls in [CallFormat::Llama, CallFormat::Generic, CallFormat::Fenced] {
            let message = parse(calls, text);
            assert_eq!((content(&message), message.calls.len()), (text, 0), "{calls:?}");
        }
    }
}

#[test]
fn harmony_sorts_messages_by_channel() {
    let message = parse(
        CallFormat::Harmony,
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>\
         Two.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|><|start|>assistant\
         <|channel|>final <|constrain|>json<|message|>{\"a\": 1}<|return|>",
    );
    assert_eq!(message.reasoning.as_deref(), Some("One.\nTwo."));
    assert_eq!(content(&message), "Wait.\n{\"a\": 1}");
}

#[test]
fn reasoning_is_recognized_at_the_beginning_only() {
    let message = parse(CallFormat::Hermes, "The tag <think> opens thoughts, </think> closes.");
    assert_eq!(content(&message), "The tag <think> opens thoughts, </think> closes.");
    let twice =
        format!("<think>a</think>{}<think>b</think>c", write(CallFormat::Hermes, &[weather()]));
    let message = parse(CallFormat::Hermes, &twice);
    assert_eq!((message.reasoning.as_deref(), content(&message)), (Some("a\nb"), "c"));
    let open = parse(CallFormat::Hermes, "<think>never closed </thi");
    assert_eq!(open.reasoning.as_deref(), Some("never closed </thi"));
}

#[test]
fn granite_delimits_the_end_of_reasoning() {
    let format = Format::detect("... 'Here is my thought process:' ... <|tool_call|>");
    let parser = Parser::new(&format, ToolSet::default(), false, 8);
    let text = "Here is my thought process: hm\n\nHere is my response:\n\nHello";
    let message = join_parts(parse_chunks(parser, [text]).0);
    assert_eq!((message.reasoning.as_deref(), content(&message)), (Some("hm"), "Hello"));
}

#[test]
fn templates_tell_their_family() {
    use CallFormat as F;
    let cases = [
        ("<tool_call>\\n{\\\"name\\\": <function-name>, ...}\\n</tool_call>", F::Hermes, false),
        ("<tool_call>\n<function=example>\n<parameter=a>", F::QwenXml, false),
        ("<seed:tool_call>\n<function=x>\n<parameter=a> seed:think", F::Seed, true),
        ("<tool_call>{function-name}\n<arg_key>{k}</arg_key> '</think>' in content", F::Glm, true),
        ("toolcall_begin = '<minimax:tool_call>'", F::MiniMax, false),
        ("<function=example>{..}</function> <|python_tag|>", F::Functionary, false),
        ("<|python_tag|> {\"name\": function name, \"parameters\": ...}", F::Llama, false),
        ("<|start_header_id|> {\"name\": f, \"parameters\": d}", F::Llama, false),
        ("'[TOOL_CALLS] ['", F::MistralArray, false),
        ("'[TOOL_CALLS]' + name + '[ARGS]' [THINK]", F::Mistral, true),
        ("'[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]'", F::MistralIds, false),
        ("'<｜tool▁calls▁begin｜>' ```json <think>\\n", F::DeepSeek, true),
        ("'<｜tool▁calls▁begin｜>' </think>", F::DeepSeekPlain, true),
        ("<|im_middle|> <|tool_calls_section_begin|> <|tool_call_begin|>", F::Kimi, false),
        ("'<|open|>' + tag '<|sep|>' open_tag('think')", F::KimiK3, true),
        ("ns = ']<]minimax[>[' ns ~ '<tool_call>' '<mm:think>'", F::MiniMaxM3, true),
        ("<|tool_call|><tool_call>", F::Pipes, false),
        ("functools[", F::Functools, false),
        ("<tool_call> <tool_calls>[", F::ToolCalls, false),
        ("'<TOOLCALL>'", F::ToolCallUpper, false),
        ("<|START_ACTION|> <|START_THINKING|> Action:", F::Cohere, true),
        ("<|CHATBOT_TOKEN|>Action: ```json", F::CommandR, false),
        ("<|channel|>analysis<|message|>", F::Harmony, false),
        ("'<|tool_call>call:' <|channel>", F::Gemma, true),
        ("\"<|tool_call_start|>[\"", F::Lfm, false),
        ("[func_name1(params_name1=params_value1)]", F::Pythonic, false),
        ("\"List of tools: <|tool_list_start|>[\"", F::Lfm, false),
        ("<|im_start|>system\n ... \"List of tools: [\" ... </think>", F::Lfm, true),
        ("dsml = '｜DSML｜' <{{ dsml }}function_calls>", F::Dsml, false),
        ("dsml = '｜DSML｜' <{{ dsml }}tool_calls>", F::DsmlV4, false),
        ("<|inner_prefix|> <|tools_prefix|>[", F::Apertus, true),
        ("<|think|> <|tool_call:begin|>", F::Solar, true),
        ("'function call' ... role_sep=\"<|role_sep|>\n\"", F::GigaChat, false),
        ("<|function_call|> ... <|role_sep|>", F::GigaChatToken, false),
        ("<tool_calls>\n<tool_call>name<tool_sep>\n<arg_key>", F::Hy3, false),
        (
            "<tool_call:opensource>name<tool_sep:opensource> <think:opensource>",
            F::Hy3Suffixed,
            true,
        ),
        ("<function name=\"f\"><param name=\"k\">v</param></function>", F::MiniCpm, false),
        ("<|start_header_id|> ... >>>all\\n", F::FunctionaryLines, false),
        ("system tool_setting=tools ... <tool_calls>", F::ToolCallLines, false),
        ("<|extra_0|> content.split('<answer>') </think>", F::Hunyuan, true),
        ("Here are my reasoning steps: <tool_calls>[", F::ToolCalls, true),
        ("```tool_code", F::Fenced, false),
        ("<start_of_turn>model", F::Generic, false),
    ];
    for (source, calls, has_reasoning) in cases {
        let format = Format::detect(source);
        assert_eq!((format.calls, format.reasoning.is_some()), (calls, has_reasoning), "{source}");
    }
    let gemma = Format::detect("'<|channel>thought\\n<channel|>'");
    assert!(gemma.visible_tokens().contains(&"<|channel>"));
    assert!(gemma.starts_in_reasoning("<|turn>model\n<|channel>thought\n"));
    assert!(!gemma.starts_in_reasoning("<|channel>thought\n<channel|>"));
}
