//! Whether and how long a chat may reason: `reasoning_effort`, `enable_thinking`, `think` and
//! `reasoning_budget`.
//!
//! Reasoning is on unless the request turns it off, as in llama-server, which sets the template's
//! variable `enable_thinking` in every request.

use inference_protocol::openai::ChatRequest;
use serde_json::{Map, Value};

use super::sampling::invalid;
use crate::types::error::Error;

/// Values of `think` that are an effort.
const EFFORTS: [&str; 3] = ["low", "medium", "high"];

/// What a request says about reasoning.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reasoning {
    effort: Option<String>,
    /// `None` if the request does not say.
    is_on: Option<bool>,
    /// Maximum tokens of reasoning; `None` is no limit.
    pub(super) tokens_max: Option<u32>,
}

/// Reads the fields. Errors name them.
pub(super) fn check(chat: &ChatRequest) -> Result<Reasoning, Error> {
    let (think, think_effort) = read_think(chat.think.as_ref())?;
    let effort = chat.reasoning_effort.as_deref();
    if effort.is_some() && think_effort.is_some() && effort != think_effort {
        let message = "think and reasoning_effort ask for different efforts: send one of them";
        return Err(invalid("think", message));
    }
    if think.is_some() && chat.enable_thinking.is_some() && think != chat.enable_thinking {
        let message = "think and enable_thinking are two names of one field, and their values \
                       differ: send one of them";
        return Err(invalid("think", message));
    }
    let tokens_max = budget(chat.reasoning_budget)?;
    let effort = effort.or(think_effort);
    let is_off = effort == Some("none") || tokens_max == Some(0);
    let is_on = if is_off { Some(false) } else { chat.enable_thinking.or(think) };
    let effort = effort.filter(|effort| *effort != "none").map(String::from);
    Ok(Reasoning { effort, is_on, tokens_max })
}

impl Reasoning {
    /// Sets the variables of chat templates that the request does not set itself.
    pub(super) fn set_variables(self, variables: &mut Map<String, Value>) {
        if let Some(effort) = self.effort {
            variables.entry("reasoning_effort").or_insert(effort.into());
        }
        variables.entry("enable_thinking").or_insert(self.is_on.unwrap_or(true).into());
        if let Some(is_on) = self.is_on {
            variables.entry("thinking").or_insert(is_on.into());
        }
    }
}

fn read_think(think: Option<&Value>) -> Result<(Option<bool>, Option<&str>), Error> {
    match think {
        None | Some(Value::Null) => Ok((None, None)),
        Some(Value::Bool(is_on)) => Ok((Some(*is_on), None)),
        Some(Value::String(effort)) if EFFORTS.contains(&&**effort) => {
            Ok((Some(true), Some(effort)))
        }
        Some(_) => Err(invalid("think", "think must be true, false, low, medium or high")),
    }
}

fn budget(tokens: Option<i64>) -> Result<Option<u32>, Error> {
    match tokens {
        None | Some(-1) => Ok(None),
        Some(n) => u32::try_from(n).map(Some).map_err(|_| {
            let message =
                format!("reasoning_budget must be 0 to {}, or -1 for no limit, not {n}", u32::MAX);
            invalid("reasoning_budget", &message)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inference_protocol::openai::parse;

    fn read(fields: &str) -> Result<(String, Option<u32>), Error> {
        let chat: ChatRequest = parse(format!(r#"{{"messages":[]{fields}}}"#).as_bytes())?;
        let mut variables = chat.chat_template_kwargs.clone().unwrap_or_default();
        let reasoning = check(&chat)?;
        let tokens_max = reasoning.tokens_max;
        reasoning.set_variables(&mut variables);
        variables.sort_keys();
        Ok((Value::Object(variables).to_string(), tokens_max))
    }

    #[test]
    fn reasoning_is_on_unless_a_field_turns_it_off() {
        let off = r#"{"enable_thinking":false,"thinking":false}"#;
        for (fields, variables) in [
            ("", r#"{"enable_thinking":true}"#),
            (r#","reasoning_effort":null,"think":null"#, r#"{"enable_thinking":true}"#),
            (r#","reasoning_effort":"none""#, off),
            (r#","enable_thinking":false"#, off),
            (r#","think":false"#, off),
            (r#","reasoning_budget":0"#, off),
            (r#","think":true"#, r#"{"enable_thinking":true,"thinking":true}"#),
            (
                r#","think":"low""#,
                r#"{"enable_thinking":true,"reasoning_effort":"low","thinking":true}"#,
            ),
            (
                r#","reasoning_effort":"high""#,
                r#"{"enable_thinking":true,"reasoning_effort":"high"}"#,
            ),
            (
                r#","reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true}"#,
                r#"{"enable_thinking":true,"thinking":false}"#,
            ),
        ] {
            assert_eq!(read(fields).unwrap().0, variables, "{fields}");
        }
    }

    #[test]
    fn a_budget_has_the_names_of_other_servers() {
        let of = |fields: &str| read(fields).unwrap().1;
        assert_eq!(of(r#","reasoning_budget":-1"#), None);
        assert_eq!(of(r#","thinking_token_budget":100"#), Some(100));
        assert_eq!(of(r#","thinking_budget_tokens":7.0"#), Some(7));
    }

    #[test]
    fn what_contradicts_itself_is_refused_by_name() {
        for (fields, param) in [
            (r#","think":"deep""#, "think"),
            (r#","think":1"#, "think"),
            (r#","think":true,"enable_thinking":false"#, "think"),
            (r#","think":"low","reasoning_effort":"high""#, "think"),
            (r#","reasoning_budget":-2"#, "reasoning_budget"),
        ] {
            assert_eq!(read(fields).unwrap_err().param().as_deref(), Some(param), "{fields}");
        }
    }
}
