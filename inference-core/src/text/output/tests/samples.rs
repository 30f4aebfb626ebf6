//! Sample responses of each family for the chunking tests: good, broken and cut off.

use serde_json::json;

use super::writer::write;
use crate::text::output::CallFormat;

/// Sample responses in `format`.
pub(crate) fn all(format: CallFormat) -> Vec<String> {
    let weather = ("get_weather", json!({"city": "Zürich \"</tool_call>\" 🐱\n\\u", "days": 3}));
    let nested = ("send", json!({"deep": {"a": [1, {"b": null}]}, "list": [], "units": null}));
    let one = write(format, std::slice::from_ref(&weather));
    let two = write(format, &[weather, nested]);
    let unknown = write(format, &[("no_such_tool", json!({"city": "x"}))]);
    let none = write(format, &[("now", json!({}))]);
    let half: String = two.chars().take(two.chars().count() / 2).collect();
    let broken = two.replace("days", "\"da\"ys").replace("</", "<");
    let mut all = vec![
        "Just text, with <b>marks</b> and {braces}.\n\n  ".to_string(),
        format!("Let me look.\n\n{one}"),
        format!("<think>\nWhy? <tool_call>\n</think>\n\n{two}\n"),
        format!("{none}\n\nAnd then text.\n{one} end"),
        format!("reasoning that began in the prompt</think>{one}{two}"),
        format!("<th{half}"),
        format!("  {broken}"),
        format!("{unknown}{one}"),
        format!("{half}{one}"),
        format!("<|channel|>analysis<|message|>So.<|end|><|start|>assistant{two}"),
    ];
    all.extend([one, two, unknown, half, broken, none]);
    all
}
