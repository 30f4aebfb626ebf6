//! Writes calls as the models of each family do.

use serde_json::{Value, json};

use crate::text::output::{CallFormat, ToolSet};

/// The tools of all tests.
pub(crate) fn tools() -> ToolSet {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": ["string", "null"]},
        "deep": {"type": "object"}, "list": {"type": "array"}, "free": {},
    });
    let function = |name: &str| {
        json!({"type": "function", "function": {"name": name,
            "parameters": {"type": "object", "properties": properties}}})
    };
    ToolSet::from_openai(&[function("get_weather"), function("send"), function("now")]).unwrap()
}

fn object(name: &str, arguments: &Value, keys: [&str; 2]) -> String {
    format!("{{\"{}\": \"{name}\", \"{}\": {arguments}}}", keys[0], keys[1])
}

fn array(calls: &[(&str, Value)], keys: [&str; 2]) -> String {
    let all: Vec<String> = calls.iter().map(|(n, a)| object(n, a, keys)).collect();
    format!("[{}]", all.join(", "))
}

fn each(calls: &[(&str, Value)], one: impl Fn(usize, &str, &Value) -> String) -> Vec<String> {
    calls.iter().enumerate().map(|(i, (n, a))| one(i, n, a)).collect()
}

fn tags(name: &str, arguments: &Value, key: [&str; 3], line: &str) -> String {
    let mut out = name.to_string();
    for (k, v) in arguments.as_object().unwrap() {
        let text = v.as_str().map_or_else(|| v.to_string(), str::to_string);
        out.push_str(&format!("{}{k}{}{line}{text}{line}{}", key[0], key[1], key[2]));
    }
    out
}

const NS: &str = "]<]minimax[>[";

/// A value of MiniMax M3.
fn nested(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            all.iter().map(|v| format!("{NS}<item>{}{NS}</item>", nested(v))).collect()
        }
        Value::Object(map) => {
            map.iter().map(|(k, v)| format!("{NS}<{k}>{}{NS}</{k}>", nested(v))).collect()
        }
        other => other.to_string(),
    }
}

fn gemma(value: &Value, bare: bool) -> String {
    let key = |k: &str| if bare { k.to_string() } else { format!("<|\"|>{k}<|\"|>") };
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(all) => {
            let all: Vec<String> = all.iter().map(|v| gemma(v, false)).collect();
            format!("[{}]", all.join(","))
        }
        Value::Object(map) => {
            let pair = |(k, v): (&String, &Value)| format!("{}:{}", key(k), gemma(v, false));
            let mut all: Vec<String> = map.iter().map(pair).collect();
            all.sort();
            format!("{{{}}}", all.join(","))
        }
        other => other.to_string(),
    }
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Array(all) => {
            format!("[{}]", all.iter().map(python).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let pair = |(k, v): (&String, &Value)| format!("'{k}': {}", python(v));
            format!("{{{}}}", map.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        // Python parses JSON's strings.
        other => other.to_string(),
    }
}

fn python_call(name: &str, arguments: &Value) -> String {
    let pair = |(k, v): (&String, &Value)| format!("{k}={}", python(v));
    let all: Vec<String> = arguments.as_object().unwrap().iter().map(pair).collect();
    format!("{name}({})", all.join(", "))
}

/// Calls of Hy3, whose tags may have a suffix.
fn hy3(calls: &[(&str, Value)], suffix: &str) -> String {
    let key = [
        format!("<arg_key{suffix}>"),
        format!("</arg_key{suffix}>\n<arg_value{suffix}>"),
        format!("</arg_value{suffix}>\n"),
    ];
    let inner = each(calls, |_, n, a| {
        let head = format!("{n}<tool_sep{suffix}>\n");
        let inner = tags(&head, a, [&key[0], &key[1], &key[2]], "");
        format!("<tool_call{suffix}>{inner}</tool_call{suffix}>\n")
    });
    format!("<tool_calls{suffix}>\n{}</tool_calls{suffix}>", inner.concat())
}

/// `calls` in the notation of `format`, as one text.
pub(crate) fn write(format: CallFormat, calls: &[(&str, Value)]) -> String {
    const USUAL: [&str; 2] = ["name", "arguments"];
    const QWEN: [&str; 3] = ["<parameter=", ">", "</parameter>\n"];
    use CallFormat as F;
    match format {
        F::Hermes | F::Described => {
            each(calls, |_, n, a| format!("<tool_call>\n{}\n</tool_call>", object(n, a, USUAL)))
                .join("\n")
        }
        F::QwenXml => each(calls, |_, n, a| {
            let inner = tags(&format!("{n}>\n"), a, QWEN, "\n");
            format!("<tool_call>\n<function={inner}</function>\n</tool_call>")
        })
        .join("\n"),
        F::Seed => each(calls, |_, n, a| {
            let inner = tags(&format!("{n}>\n"), a, QWEN, "");
            format!("<seed:tool_call>\n<function={inner}</function>\n</seed:tool_call>")
        })
        .join("\n"),
        F::Glm => each(calls, |_, n, a| {
            let key = ["<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"];
            format!("<tool_call>{}</tool_call>", tags(&format!("{n}\n"), a, key, ""))
        })
        .join("\n"),
        F::MiniMax => {
            let inner = each(calls, |_, n, a| {
                let key = ["<parameter name=\"", "\">", "</parameter>\n"];
                format!("<invoke name=\"{}</invoke>\n", tags(&format!("{n}\">\n"), a, key, ""))
            });
            format!("<minimax:tool_call>\n{}</minimax:tool_call>", inner.concat())
        }
        F::MiniMaxM3 => {
            let inner = each(calls, |_, n, a| {
                format!("{NS}<invoke name=\"{n}\">{}{NS}</invoke>\n", nested(a))
            });
            format!("{NS}<tool_call>\n{}{NS}</tool_call>", inner.concat())
        }
        F::Dsml | F::DsmlV4 => {
            let around = if format == F::Dsml { "function_calls" } else { "tool_calls" };
            let inner = each(calls, |_, n, a| {
                let one = |(k, v): (&String, &Value)| {
                    let text = v.as_str().map_or_else(|| v.to_string(), str::to_string);
                    let is_text = v.is_string();
                    format!(
                        "<｜DSML｜parameter name=\"{k}\" string=\"{is_text}\">{text}</｜DSML｜parameter>\n"
                    )
                };
                let all: String = a.as_object().unwrap().iter().map(one).collect();
                format!("<｜DSML｜invoke name=\"{n}\">\n{all}</｜DSML｜invoke>\n")
            });
            format!("<｜DSML｜{around}>\n{}</｜DSML｜{around}>", inner.concat())
        }
        F::MiniCpm => each(calls, |_, n, a| {
            let key = ["<param name=\"", "\">", "</param>"];
            format!("<function name=\"{}</function>", tags(&format!("{n}\">"), a, key, ""))
        })
        .join("\n"),
        F::Hy3 => hy3(calls, ""),
        F::Hy3Suffixed => hy3(calls, ":opensource"),
        F::FunctionaryLines => each(calls, |_, n, a| format!(">>>{n}\n{a}")).concat(),
        F::Functionary => each(calls, |_, n, a| format!("<function={n}>{a}</function>")).join("\n"),
        F::Llama => each(calls, |_, n, a| object(n, a, ["name", "parameters"])).join("; "),
        F::MistralArray => format!("[TOOL_CALLS] {}", array(calls, USUAL)),
        F::Mistral => each(calls, |_, n, a| format!("[TOOL_CALLS]{n}[ARGS]{a}")).concat(),
        F::MistralIds => {
            each(calls, |i, n, a| format!("[TOOL_CALLS]{n}[CALL_ID]call0000{i}[ARGS]{a}")).concat()
        }
        F::DeepSeek => {
            let inner = each(calls, |_, n, a| {
                format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{a}\n```<｜tool▁call▁end｜>"
                )
            });
            format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", inner.join("\n"))
        }
        F::DeepSeekPlain => {
            let inner = each(calls, |_, n, a| {
                format!("<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{a}<｜tool▁call▁end｜>")
            });
            format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", inner.concat())
        }
        F::Kimi => {
            let inner = each(calls, |i, n, a| {
                format!(
                    "<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{a}<|tool_call_end|>"
                )
            });
            format!("<|tool_calls_section_begin|>{}<|tool_calls_section_end|>", inner.concat())
        }
        F::KimiK3 => {
            let inner = each(calls, |i, n, a| {
                let one = |(k, v): (&String, &Value)| {
                    let kind = match v {
                        Value::Null => "null",
                        Value::Bool(_) => "boolean",
                        Value::Number(_) => "number",
                        Value::String(_) => "string",
                        Value::Array(_) => "array",
                        Value::Object(_) => "object",
                    };
                    let text = v.as_str().map_or_else(|| v.to_string(), str::to_string);
                    format!(
                        "<|open|>argument key=\"{k}\" type=\"{kind}\"<|sep|>{text}<|close|>argument<|sep|>"
                    )
                };
                let all: String = a.as_object().unwrap().iter().map(one).collect();
                let index = i + 1;
                format!(
                    "<|open|>call tool=\"{n}\" index=\"{index}\"<|sep|>{all}<|close|>call<|sep|>"
                )
            });
            format!("<|open|>tools<|sep|>{}<|close|>tools<|sep|>", inner.concat())
        }
        F::Pipes => format!("<|tool_call|>{}<|/tool_call|>", array(calls, USUAL)),
        F::Functools => format!("functools{}", array(calls, USUAL)),
        F::ToolCallLines => {
            let all = each(calls, |_, n, a| object(n, a, USUAL));
            format!("<tool_calls>\n{}\n</tool_calls>", all.join("\n"))
        }
        F::Apertus => {
            let all = each(calls, |_, n, a| format!("{{\"{n}\": {a}}}"));
            format!("<|tools_prefix|>[{}]<|tools_suffix|>", all.join(", "))
        }
        F::GigaChat => {
            each(calls, |_, n, a| format!("function call<|role_sep|>\n{}", object(n, a, USUAL)))
                .join("<|message_sep|>\n\n")
        }
        F::GigaChatToken => {
            each(calls, |_, n, a| format!("<|function_call|>{}", object(n, a, USUAL))).concat()
        }
        F::Solar => {
            let all = each(calls, |i, n, a| {
                format!(
                    "<|tool_call:begin|>a1b2c3d4e{i}<|tool_call:name|>{n}<|tool_call:args|>{a}<|tool_call:end|>"
                )
            });
            format!("<|tool_calls|>{}", all.concat())
        }
        F::ToolCalls | F::Hunyuan => format!("<tool_calls>{}</tool_calls>", array(calls, USUAL)),
        F::ToolCallUpper => format!("<TOOLCALL>{}</TOOLCALL>", array(calls, USUAL)),
        F::Cohere => {
            let list = array(calls, ["tool_name", "parameters"]);
            format!("<|START_ACTION|>{list}<|END_ACTION|>")
        }
        F::CommandR => {
            format!("Action: ```json\n{}\n```", array(calls, ["tool_name", "parameters"]))
        }
        F::Gemma => {
            each(calls, |_, n, a| format!("<|tool_call>call:{n}{}<tool_call|>", gemma(a, true)))
                .concat()
        }
        F::Lfm => {
            let all = each(calls, |_, n, a| python_call(n, a));
            format!("<|tool_call_start|>[{}]<|tool_call_end|>", all.join(", "))
        }
        F::Pythonic => format!("[{}]", each(calls, |_, n, a| python_call(n, a)).join(", ")),
        F::Harmony => each(calls, |_, n, a| {
            format!(
                "<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{a}<|call|>"
            )
        })
        .join("<|start|>assistant"),
        F::Fenced => format!("```tool_call\n{}\n```", array(calls, USUAL)),
        F::Generic => match calls {
            [(n, a)] => object(n, a, USUAL),
            _ => array(calls, USUAL),
        },
    }
}
