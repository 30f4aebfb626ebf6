//! Grammars, schemas and expressions made to cost without end, while others read their answers.

use std::fmt::Write;

use fleet_tests::process::Agent;
use fleet_tests::{chat, streamed};
use serde_json::{Value, json};

use super::{CHAT, Hostile, survive};

/// Neighbours that read while bombs are thrown.
const READERS: usize = 2;

fn list(count: usize, between: &str, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(between)
}

fn nested(depth: usize, open: &str, inner: &str, close: &str) -> String {
    format!("{}{inner}{}", open.repeat(depth), close.repeat(depth))
}

/// Schemas, as text: some nest deeper than a JSON value may.
fn schemas() -> Vec<String> {
    let property = |i| format!("\"p{i}\":{{\"type\":\"integer\"}}");
    let twice = |i: usize| {
        let next = i + 1;
        format!(
            "\"d{i}\":{{\"allOf\":[{{\"$ref\":\"#/$defs/d{next}\"}},{{\"properties\":{{\"x{i}\":{{\"$ref\":\"#/$defs/d{next}\"}}}}}}]}}"
        )
    };
    let chain = |i: usize| format!("\"{i}\":{{\"items\":{{\"$ref\":\"#/$defs/{}\"}}}}", i + 1);
    let digits = "9".repeat(5000);
    let mut all = vec![
        format!("{{\"type\":\"object\",\"properties\":{{{}}}}}", list(440, ",", property)),
        format!("{{\"properties\":{{{}}}}}", list(1000, ",", property)),
        format!("{{\"properties\":{{{}}}}}", list(50_000, ",", property)),
        format!("{{\"enum\":[{}]}}", list(5000, ",", |i| format!("\"value {i}\""))),
        format!("{{\"enum\":[{}]}}", list(200_000, ",", |i| format!("\"value {i}\""))),
        format!("{{\"$ref\":\"#/$defs/d0\",\"$defs\":{{{},\"d40\":{{}}}}}}", list(40, ",", twice)),
        format!("{{\"$ref\":\"#/$defs/0\",\"$defs\":{{{},\"900\":{{}}}}}}", list(900, ",", chain)),
        "{\"$ref\":\"#\"}".into(),
        "{\"anyOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"},{\"items\":{\"$ref\":\"#\"}}]}".into(),
        "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}".into(),
        format!("{{\"const\":{digits}}}"),
        format!("{{\"type\":\"integer\",\"minimum\":{digits}}}"),
        format!("{{\"type\":\"number\",\"multipleOf\":0.{}1}}", "0".repeat(5000)),
        "{\"type\":\"integer\",\"multipleOf\":99991,\"minimum\":1e300}".into(),
        "{\"minItems\":1000000000,\"maxLength\":1e300,\"items\":{\"minLength\":4294967295}}".into(),
        format!(
            "{{\"allOf\":[{}]}}",
            list(30, ",", |i| {
                format!("{{\"anyOf\":[{{\"minLength\":{i}}},{{\"maxLength\":{i}}}]}}")
            })
        ),
    ];
    for depth in [50, 120, 100_000] {
        all.push(nested(depth, "{\"items\":", "{}", "}"));
        all.push(format!("{{\"const\":{}}}", nested(depth, "[", "", "]")));
    }
    all
}

fn expressions() -> Vec<String> {
    [
        "(a{1,1000}){1,1000}",
        "((a{1,100}){1,100}){1,100}",
        "a{1,1000000}",
        "(x+x+)+y",
        "(a|aa)+$",
        "(a|b)*a(a|b){20}",
        ".*a.{30}",
        "\\w{1,500}\\d{1,500}\\p{L}{1,2000}",
        "(a?){500}a{500}",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
    ]
    .map(String::from)
    .into_iter()
    .chain([nested(240, "(", "a", ")*"), nested(100_000, "(", "a", ")"), ".*a".repeat(60)])
    .collect()
}

fn grammars() -> Vec<String> {
    let laughs = list(60, "\n", |i| match i {
        0 => "root ::= r1 r1".into(),
        i => format!("r{i} ::= r{n} r{n} | \"b\"", n = i + 1),
    });
    vec![
        format!("{laughs}\nr60 ::= \"a\""),
        "root ::= ((\"a\"{1,2000}){1,2000}){1,2000}".into(),
        "root ::= ((\"a\" root?){1,2000}){1,2000}".into(),
        "root ::= \"a\" (root root? | root*)* | [a-z]+ root?".into(),
        "root ::= [a-z ] root |".into(),
        "root ::= root | root root".into(),
        "root ::= (\"\" (root)?)* \"x\"".into(),
        "root ::= [ab]* \"a\" [ab]{20} (\"(\" root \")\")?".into(),
        format!("root ::= {}", nested(30_000, "(", "\"a\"", ")")),
        format!("root ::= \"{}\" root?", "a".repeat(60_000)),
        list(5000, "\n", |i| format!("r{i} ::= \"x\"")),
        list(200_000, "", |_| "root ::= \"x\"\n".into()),
    ]
}

fn body(fields: &str) -> Hostile {
    let mut body =
        "{\"model\":\"flotilla-demo\",\"max_tokens\":12,\"messages\":[{\"role\":\"user\",\
        \"content\":\"Hello!\"}],"
            .to_string();
    let _ = write!(body, "{fields}}}");
    Hostile::new(CHAT, body)
}

fn bombs() -> Vec<Hostile> {
    let mut all = Vec::new();
    for schema in schemas() {
        all.push(body(&format!("\"json_schema\":{schema}")));
        all.push(body(&format!(
            "\"stream\":true,\"response_format\":{{\"type\":\"json_schema\",\"json_schema\":\
             {{\"name\":\"x\",\"strict\":true,\"schema\":{schema}}}}}"
        )));
        for choice in ["auto", "required"] {
            all.push(body(&format!(
                "\"tool_choice\":\"{choice}\",\"tools\":[{{\"type\":\"function\",\"function\":\
                 {{\"name\":\"f\",\"strict\":true,\"parameters\":{schema}}}}}]"
            )));
        }
    }
    for text in expressions() {
        let quoted = json!(text);
        all.push(body(&format!("\"guided_regex\":{quoted}")));
        all.push(body(&format!("\"json_schema\":{{\"type\":\"string\",\"pattern\":{quoted}}}")));
    }
    all.extend(grammars().iter().map(|text| body(&format!("\"grammar\":{}", json!(text)))));
    let choices = |n: usize| json!((0..n).map(|i| format!("choice {i}")).collect::<Vec<_>>());
    all.extend([1000, 1001, 300_000].map(|n| body(&format!("\"guided_choice\":{}", choices(n)))));
    all
}

/// Reads answers one after the other until there are no more bombs; how many there were.
async fn read_on(agent: &Agent, done: &tokio::sync::Notify) -> usize {
    let mut answers = 0;
    let stop = done.notified();
    tokio::pin!(stop);
    loop {
        let request: Value = streamed(chat("Count from 1 to 40."));
        let said = agent.client.stream(&request).await.finish().await;
        assert!(said.done && said.text.ends_with(", 39, 40"), "{said:?}");
        answers += 1;
        if futures_util::FutureExt::now_or_never(stop.as_mut()).is_some() {
            return answers;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_are_refused_or_bounded_and_neighbours_read_on() {
    let agent = Agent::start(&["--slots", "8"]).await;
    survive("bombs alone", &agent, bombs().into_iter()).await;

    let done = tokio::sync::Notify::new();
    let throw = async {
        let thrown =
            futures_util::StreamExt::collect::<Vec<_>>(futures_util::StreamExt::buffer_unordered(
                futures_util::stream::iter(
                    bombs().into_iter().map(|bomb| super::attempt(&agent.client, bomb)),
                ),
                super::CLIENTS,
            ))
            .await;
        done.notify_waiters();
        thrown
    };
    let readers = futures_util::future::join_all((0..READERS).map(|_| read_on(&agent, &done)));
    let (thrown, answers) = tokio::join!(throw, readers);
    for (_, judged, _) in thrown {
        judged.unwrap();
    }
    eprintln!("beside bombs: {answers:?} answers were read to their end");
    super::unharmed(&agent).await;
}
