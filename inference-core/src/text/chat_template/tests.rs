//! Tests of rendering in general; `tests/chat_templates.rs` covers the template shapes of model
//! families.

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
