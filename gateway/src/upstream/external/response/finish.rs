//! PURE. Why a choice ended, in OpenAI's words.

/// What the reason of an engine means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// The choice has not ended.
    None,
    /// It ended, and this is OpenAI's word for it.
    Ended(&'static str),
    /// The engine gave it up.
    Aborted,
}

/// Reads `finish_reason`. `calls`: the choice calls a tool; `function`: it does so in the form that
/// OpenAI has deprecated.
pub(super) fn read(reason: Option<&str>, calls: bool, function: bool) -> Reason {
    let Some(reason) = reason.filter(|reason| !reason.is_empty()) else { return Reason::None };
    Reason::Ended(match reason {
        "length" | "max_tokens" | "max_length" | "max_new_tokens" | "model_length" => "length",
        "content_filter" | "safety" => "content_filter",
        "tool_calls" | "tool_call" | "tool_use" | "function_call" if function && !calls => {
            "function_call"
        }
        "tool_calls" | "tool_call" | "tool_use" | "function_call" => "tool_calls",
        "abort" | "aborted" | "error" | "cancelled" => return Reason::Aborted,
        // Whatever else ended it: `eos_token`, `stop_sequence`, `end_turn`, ...
        _ => implied(calls, function),
    })
}

/// The reason of a choice that just ended. Clients run tools only if the reason says so.
pub(super) fn implied(calls: bool, function: bool) -> &'static str {
    match (calls, function) {
        (true, _) => "tool_calls",
        (false, true) => "function_call",
        (false, false) => "stop",
    }
}
