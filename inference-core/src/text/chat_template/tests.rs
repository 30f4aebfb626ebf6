//! Tests of rendering in general; `tests/chat_templates.rs` covers the template shapes of model
//! families.

use serde_json::json;

use super::*;

const HELLO: &str = r#"[{"role":"user","content":"Hi"}]"#;

fn now() -> NaiveDateTime {
    chrono::DateTime::from_timestamp(1_700_000_000, 0).unwrap().naive_utc()
}

fn compile(source: &str) -> Result<ChatTemplate, String> {
    let control = vec!["<|im_end|>".to_string()];
    let tokens = SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), control };
    ChatTemplate::new(source.to_string(), tokens).map_err(|e| e.to_string())
}

fn render_all(source: &str, messages: &str, tools: Option<&str>) -> Result<String, String> {
    let conversation = Conversation { tools, ..Conversation::new(messages, now()) };
    compile(source)?.render_as_is(&conversation).map_err(|e| e.to_string())
}

fn with_variables(variables: &str) -> Result<String, String> {
    let template = compile("{{ enable_thinking }}|{{ note }}|{{ bos_token }}")?;
    let variables = Some(variables);
    let conversation = Conversation { variables, ..Conversation::new(HELLO, now()) };
    template.render(&conversation).map_err(|e| e.to_string())
}

fn prefill(source: &str, messages: &str) -> Result<String, String> {
    let generation_prompt = GenerationPrompt::ContinueFinalMessage;
    let conversation = Conversation { generation_prompt, ..Conversation::new(messages, now()) };
    compile(source)?.render(&conversation).map_err(|e| e.to_string())
}

#[test]
fn chatml_renders_as_in_hugging_face() {
    let source = "{%- for m in messages %}\n    {{- '<|im_start|>' + m['role'] + '\\n' + \
        m.content + '<|im_end|>' + '\\n' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\
        {{- '<|im_start|>assistant\\n' }}\n{%- endif %}";
    let expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(render_all(source, HELLO, None).unwrap(), expected);
}

#[test]
fn python_isms_work() {
    let source = "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role.upper()\
        .startswith('US') %}{% set ns.n = ns.n + 1 %}{% continue %}{% endif %}{% endfor %}\
        {{ ns.n }} {{ messages[0]['content'].strip().split('i')[0] }} {{ messages[-1].role }} \
        {{ strftime_now('%d %b %Y') }} {{ bos_token }}{{ messages[0].get('name', 'none') }}";
    assert_eq!(render_all(source, HELLO, None).unwrap(), "1 H user 14 Nov 2023 <s>none");
}

#[test]
fn tojson_writes_what_python_writes() {
    let tools = r#"[{"type":"function","b":[1,2.5,null],"a":"é<'>"}]"#;
    let source = "{{ tools | tojson }}\n{{ tools[0].b | tojson(indent=2) }}";
    let expected = "[{\"type\": \"function\", \"b\": [1, 2.5, null], \"a\": \"é<'>\"}]\n\
        [\n  1,\n  2.5,\n  null\n]";
    assert_eq!(render_all(source, HELLO, Some(tools)).unwrap(), expected);
}

#[test]
fn a_template_may_refuse_and_cannot_run_for_ever() {
    let refused = render_all("{{ raise_exception('roles must alternate') }}", HELLO, None);
    assert_eq!(refused.unwrap_err(), "roles must alternate");
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
    assert_eq!(render_all(endless, HELLO, None).unwrap_err(), "it does not end");
    assert!(render_all("{% if %}", HELLO, None).is_err());
}

#[test]
fn what_a_template_writes_and_how_deep_it_calls_is_limited() {
    let wide = "{% set a = 'x' * 1000000 %}{% for i in range(99) %}{{ a }}{% endfor %}";
    assert_eq!(render_all(wide, HELLO, None).unwrap_err(), error::TOO_LARGE);
    let deep = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    // With the default stack size of a thread.
    let small = std::thread::Builder::new().stack_size(2 << 20);
    let error = small.spawn(move || render_all(deep, HELLO, None).unwrap_err()).unwrap();
    assert!(error.join().unwrap().contains("recursion limit"));
    let long = format!("{{# {} #}}", "x".repeat(SOURCE_BYTES_MAX));
    assert!(compile(&long).unwrap_err().contains("1048576 are allowed"));
}

#[test]
fn a_template_that_makes_the_renderer_panic_is_an_error() {
    let source = "{% for m in messages %}{{ loop.cycle() }}{% endfor %}";
    assert_eq!(render_all(source, HELLO, None).unwrap_err(), "it makes the renderer fail");
}

#[test]
fn special_tokens_in_user_text_never_arise_from_segments() {
    let messages = r#"[{"role":"user","content":"x<|im_end|>y"}]"#;
    let rendered = render_all("{{ messages[0].content }}<|im_end|>", messages, None).unwrap();
    let parts: Vec<&str> = segments(&rendered).collect();
    assert_eq!(parts, ["x<", "|im_end|>y<|im_end|>"]);
    assert_eq!(parts.concat(), "x<|im_end|>y<|im_end|>");
}

#[test]
fn control_tokens_cannot_hide_in_keys_roles_variables_or_json_texts() {
    let source = "{{ tools|tojson(ensure_ascii=true) }}{% for m in messages %}\
        {{ '<|' + m.role + '|>' }}{{ [m.content] }}{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}\
        {% endfor %}{% endfor %}{{ note }}{% for p in parts %}{{ p }}{% endfor %}";
    let messages = r#"[{"role":"im_end","content":"<|im_end|>"},{"role":"assistant","content":"",
        "tool_calls":[{"function":{"name":"f","arguments":"{\"<|im_e\\u006ed|>\":\"\\u003c|im_end|>\"}"}}]}]"#;
    let tools = r#"[{"function":{"name":"f","parameters":{"<|im_end|>":{}}}}]"#;
    let variables = r#"{"note":"<|im_end|>","parts":["<|im","_end|>"]}"#;
    let (tools, variables) = (Some(tools), Some(variables));
    let conversation = Conversation { tools, variables, ..Conversation::new(messages, now()) };
    let rendered = compile(source).unwrap().render(&conversation).unwrap();
    assert!(segments(&rendered).all(|part| !part.contains("<|im_end|>")), "{rendered}");
    let text: String = segments(&rendered).collect();
    assert_eq!(text.matches("<|im_end|>").count(), 7, "{text}");
}

#[test]
fn variables_cannot_replace_ours_and_have_bounds() {
    assert_eq!(with_variables(r#"{"enable_thinking":false}"#).unwrap(), "False||<s>");
    for taken in
        ["messages", "bos_token", "add_generation_prompt", "raise_exception", "strftime_now"]
    {
        let error = with_variables(&format!("{{\"{taken}\": 1}}")).unwrap_err();
        assert_eq!(
            error,
            format!("chat_template_kwargs.{taken}: this name is taken; leave it out")
        );
    }
    let many: Map<String, Json> = (0..65).map(|i| (format!("v{i}"), Json::Null)).collect();
    assert!(with_variables(&Json::Object(many).to_string()).unwrap_err().contains("65 names"));
    assert!(with_variables(&format!("{{\"a\":\"{}\"}}", "x".repeat(70_000))).is_err());
    assert!(with_variables("[]").unwrap_err().starts_with("chat_template_kwargs: "));
}

#[test]
fn a_prefill_ends_where_the_last_message_ends() {
    let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}";
    let messages = r#"[{"role":"user","content":"Hi"},{"role":"assistant","content":"On "}]"#;
    assert_eq!(prefill(source, messages).unwrap(), "<user>Hi</s><assistant>On ");
    let trims = "{% for m in messages %}<{{ m.role }}>{{ m.content|trim }}</s>{% endfor %}";
    assert_eq!(prefill(trims, messages).unwrap(), "<user>Hi</s><assistant>On");
    let drops = "{% for m in messages %}{{ m.content if m.role == 'user' }}{% endfor %}";
    assert!(prefill(drops, messages).unwrap_err().contains("cannot be continued"));
    assert!(prefill(source, "[]").unwrap_err().contains("no last message"));
    assert!(prefill(source, r#"[{"role":"user","content":[]}]"#).unwrap().ends_with("<user>"));
}

#[test]
fn tools_have_a_template_of_their_own() {
    let tool_use = Some("tools: {{ tools|length }}".to_string());
    let sources = Sources { default: "plain".into(), tool_use };
    let template = ChatTemplate::new(sources, SpecialTokens::default()).unwrap();
    let conversation = Conversation::new(HELLO, now());
    assert_eq!(template.render_as_is(&conversation).unwrap(), "plain");
    let with_tools = Conversation { tools: Some("[{}]"), ..conversation };
    assert_eq!(template.render_as_is(&with_tools).unwrap(), "tools: 1");
    assert_eq!((template.source(false), template.source(true).len()), ("plain", 25));
    let broken = Sources { default: "a".into(), tool_use: Some("{% if".into()) };
    let error = ChatTemplate::new(broken, SpecialTokens::default()).unwrap_err();
    assert!(error.to_string().starts_with("tool_use: "));
}

#[test]
fn broken_json_is_refused_with_its_name() {
    for (messages, tools, error) in [
        ("{}", None, "messages must be an array"),
        ("[1]", None, "messages[0] must be an object"),
        ("[", None, "messages: "),
        ("[]", Some("7"), "tools must be an array"),
    ] {
        let made = render_all("", messages, tools).unwrap_err();
        assert!(made.starts_with(error), "{made}");
    }
}

/// Renders a conversation, adapted to the template.
fn adapted(source: &str, messages: &str) -> Result<String, String> {
    let template = compile(source)?;
    template.render(&Conversation::new(messages, now())).map_err(|e| e.to_string())
}

#[test]
fn a_developer_message_becomes_a_system_message_unless_the_template_writes_it() {
    let messages = r#"[{"role":"developer","content":"D"},{"role":"user","content":"U"}]"#;
    let each = |condition: &str| {
        format!(
            "{{% for m in messages %}}{condition}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% endif %}}{{% endfor %}}"
        )
    };
    let known = each("{% if m.role in ['developer', 'system', 'user'] %}");
    assert_eq!(adapted(&known, messages).unwrap(), "<developer>D<user>U");
    // They mention the word and drop the message, or refuse it.
    let drops = each("{# no developer #}{% if m.role in ['system', 'user'] %}");
    assert_eq!(adapted(&drops, messages).unwrap(), "<system>D<user>U");
    let refuses = each(
        "{% if m.role == 'developer' %}{{ raise_exception('developer') }}{% endif %}{% if true %}",
    );
    assert_eq!(adapted(&refuses, messages).unwrap(), "<system>D<user>U");
}

/// As Mistral's templates, which refuse other IDs.
const MISTRAL: &str = "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}\
    {% if c.id | length != 9 %}{{ raise_exception('Tool call IDs must have length 9') }}{% endif %}\
    [TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}\
    {% endfor %}{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }}[TOOL_CONTENT]\
    {{ m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}";

fn two_calls(first: &str, second: &str) -> String {
    format!(
        r#"[{{"role":"user","content":"U"}},{{"role":"assistant","content":"","tool_calls":[
            {{"id":"{first}","type":"function","function":{{"name":"f","arguments":{{}}}}}},
            {{"id":"{second}","type":"function","function":{{"name":"g","arguments":{{}}}}}}]}},
            {{"role":"tool","tool_call_id":"{second}","content":"G"}},
            {{"role":"tool","tool_call_id":"{first}","content":"F"}}]"#
    )
}

/// The texts between two delimiters.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> Vec<&'a str> {
    text.split(open).skip(1).filter_map(|rest| Some(rest.split_once(close)?.0)).collect()
}

#[test]
fn ids_of_calls_get_the_format_that_the_template_requires() {
    let own = adapted(MISTRAL, &two_calls("abcdef123", "abcdef124")).unwrap();
    assert_eq!(between(&own, "[CALL_ID]", "[ARGS]"), ["abcdef123", "abcdef124"]);
    let other = adapted(MISTRAL, &two_calls("call_1", "call_2")).unwrap();
    let ids = between(&other, "[CALL_ID]", "[ARGS]");
    let results = between(&other, "[TOOL_RESULTS]", "[TOOL_CONTENT]");
    assert!(ids.iter().all(|id| id.len() == 9) && ids[0] != ids[1], "{other}");
    assert_eq!(results, [ids[1], ids[0]]);
    assert_eq!(adapted(MISTRAL, &two_calls("call_1", "call_2")).unwrap(), other);

    // A template that takes any ID gets the client's.
    let kimi = "{% for m in messages %}{% for c in m.tool_calls or [] %}<|tool_call_begin|>\
        {{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}\
        <|tool_call_end|>{% endfor %}{{ m.content }}{{ m.tool_call_id }}{% endfor %}";
    let text = adapted(kimi, &two_calls("call_1", "functions.g:5")).unwrap();
    let ids = between(&text, "<|tool_call_begin|>", "<|tool_call_argument_begin|>");
    assert_eq!(ids, ["call_1", "functions.g:5"]);
}

#[test]
fn arguments_that_are_no_object_do_not_break_a_template_that_needs_one() {
    let source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}(\
        {% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %})\
        {% endfor %}{{ m.content }}{% endfor %}";
    for (arguments, written) in [
        (r#"{"a": 1}"#, "f(a=1;)"),
        ("", "f()"),
        (r#"{"a": "cut o"#, r#"f(arguments={"a": "cut o;)"#),
        ("[1]", "f(arguments=[1];)"),
    ] {
        let call = json!({"id": "1", "type": "function",
            "function": {"name": "f", "arguments": arguments}});
        let messages = json!([{"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "R"}]);
        let text = adapted(source, &messages.to_string()).unwrap();
        assert!(text.contains(written), "{text}");
    }
}

#[test]
fn a_template_that_only_refuses_long_ids_gets_short_ones() {
    let source = MISTRAL.replace("[TOOL_CALLS]", "<call>");
    let text = adapted(&source, &two_calls("call_1", "call_2")).unwrap();
    assert!(between(&text, "[CALL_ID]", "[ARGS]").iter().all(|id| id.len() == 9), "{text}");
}

/// As LFM2's first template, which lists tools and writes results, but no calls.
const LFM: &str = "{% if tools %}List of tools: <|tool_list_start|>{{ tools | tojson }}\
    <|tool_list_end|>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}|{{ m.content }}\
    <|im_end|>{% endfor %}";

#[test]
fn calls_are_written_in_the_familys_own_notation_with_whole_control_tokens() {
    let control = vec!["<|tool_call_start|>".to_string(), "<|im_end|>".to_string()];
    let tokens = SpecialTokens { bos: String::new(), eos: String::new(), control };
    let template = ChatTemplate::new(LFM.to_string(), tokens).unwrap();
    let messages = r#"[{"role":"user","content":"<|tool_call_start|> <\ufdd3|im_end|>"},
        {"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":
        {"name":"f","arguments":{"a":"<|im_end|>","b":[true,null]}}}]},
        {"role":"tool","tool_call_id":"1","content":"R"}]"#;
    let rendered = template.render(&Conversation::new(messages, now())).unwrap();
    let parts: Vec<&str> = segments(&rendered).collect();
    let text = parts.concat();
    assert!(
        text.contains(
            "|<|tool_call_start|>[f(a=\"<|im_end|>\", b=[True, None])]<|tool_call_end|><|im_end|>"
        ),
        "{text}"
    );
    assert!(text.contains("<|im_start|>tool|R<|im_end|>"), "{text}");
    let whole = |token: &str| parts.iter().map(|part| part.matches(token).count()).sum::<usize>();
    // Ours is whole, the user's are not.
    assert_eq!(whole("<|tool_call_start|>"), 1, "{parts:?}");
    assert_eq!(whole("<|im_end|>"), 3, "{parts:?}");
}

#[test]
fn tools_are_described_in_the_familys_own_notation() {
    // As DeepSeek V3.1's and R1's, which write calls but list no tools.
    let source = "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}\
        <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>\
        {{ c.function.arguments | tojson }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}\
        {% else %}{{ m.content }}{% endif %}{% endfor %}";
    let template = compile(source).unwrap();
    let tools = r#"[{"type":"function","function":{"name":"f","parameters":{}}}]"#;
    let messages = two_calls("1", "2");
    let conversation = Conversation { tools: Some(tools), ..Conversation::new(&messages, now()) };
    let text = template.render(&conversation).unwrap();
    assert!(text.contains("<tools>\n{\"type\": \"function\""), "{text}");
    let example = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS";
    assert!(text.contains(example) && !text.contains("<tool_call>"), "{text}");
    assert!(text.contains("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}"), "{text}");
}

#[test]
fn a_date_that_a_template_looks_for_is_that_of_the_request_unless_the_client_sets_it() {
    let source = "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}\
                  {{ date_string }}|{% for message in messages %}{{ message.content }}{% endfor %}";
    let template = ChatTemplate::new(source.to_string(), SpecialTokens::default()).unwrap();
    let now = chrono::DateTime::from_timestamp(1_700_000_000, 0).unwrap().naive_utc();
    let messages = r#"[{"role":"user","content":"Hi"}]"#;
    let of = |variables| {
        let conversation = Conversation { variables, ..Conversation::new(messages, now) };
        segments(&template.render(&conversation).unwrap()).collect::<String>()
    };
    assert_eq!(of(None), "14 Nov 2023|Hi");
    assert_eq!(of(Some(r#"{"date_string":"today"}"#)), "today|Hi");
}
