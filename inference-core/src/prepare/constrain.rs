//! PURE. Turns the constraint and tool rules of a request into a grammar over the model's tokens.

use serde_json::Value;

use super::Preparer;
use crate::scheduler::sequence::ResponseGrammar;
use crate::text::grammar::{GrammarError, Grammars, Piece};
use crate::text::output::call_grammar::{
    self, CallGrammarRequest, grammar_around_response, grammar_of_calls_or_answer,
};
use crate::text::output::{ResponseStart, ToolSet};
use crate::types::constraint::Constraint;
use crate::types::request::{CallRules, Chat, Failure, GenerateRequest, Prompt};
use crate::types::tool_choice::ToolChoice;

impl Preparer {
    /// The constraint on the response, if the request has one.
    pub(super) fn grammar(
        &self,
        request: &GenerateRequest,
        response_start: ResponseStart,
    ) -> Result<Option<ResponseGrammar>, Failure> {
        let tools = match (&request.calls, &request.prompt) {
            (Some(rules), Prompt::Chat(chat)) => read_tools(chat)?.map(|tools| (rules, tools)),
            _ => None,
        };
        let is_chat = matches!(request.prompt, Prompt::Chat(_));
        let parted = (request.show_delimiters && is_chat).then_some(response_start);
        match (&request.constraint, tools) {
            (None, None) => Ok(None),
            (None, Some((rules, tools))) => self.calls(rules, &tools, response_start),
            // A response that must call has no content.
            (Some(_), Some((rules, tools))) if must_call(rules) => {
                self.calls(rules, &tools, response_start)
            }
            (Some(constraint), Some((rules, tools))) => {
                self.calls_or_answer((rules, &tools), constraint, parted).map(Some)
            }
            (Some(constraint), None) => self.constrained(constraint, parted).map(Some),
        }
    }

    /// `parted` is where the response starts, if its parser splits it into reasoning and content.
    fn constrained(
        &self,
        constraint: &Constraint,
        parted: Option<ResponseStart>,
    ) -> Result<ResponseGrammar, Failure> {
        let control = |text: &str| self.control_token(text);
        let around =
            parted.and_then(|start| grammar_around_response(&self.format, start, &control));
        let grammars = self.grammars().map_err(|e| Failure::Grammar(e.to_string()))?;
        let compiled = match around {
            Some(lark) => grammars.compile_within(&lark, constraint),
            None => grammars.compile(constraint),
        };
        let to_failure = failure_of(constraint);
        let grammar = compiled.map_err(|error| to_failure(error.to_string()))?;
        Ok(ResponseGrammar { grammar, to_failure, is_optional: false })
    }

    /// Calls of tools, or content that follows `constraint`.
    fn calls_or_answer(
        &self,
        (rules, tools): (&CallRules, &ToolSet),
        constraint: &Constraint,
        parted: Option<ResponseStart>,
    ) -> Result<ResponseGrammar, Failure> {
        // Text that is not split has no calls.
        let Some(start) = parted else { return self.constrained(constraint, parted) };
        let request = self.call_request(rules, tools, start);
        let control = |text: &str| self.control_token(text);
        let Some(lark) = grammar_of_calls_or_answer(&request, start, &control) else {
            return self.constrained(constraint, parted);
        };
        let grammars = self.grammars().map_err(|e| Failure::Grammar(e.to_string()))?;
        match grammars.compile_within(&lark, constraint) {
            Ok(grammar) => Ok(ResponseGrammar {
                grammar,
                to_failure: failure_of(constraint),
                is_optional: false,
            }),
            // The constraint by itself tells which of both is invalid.
            Err(error) => {
                self.constrained(constraint, parted)?;
                Err(Failure::Tools(error.to_string()))
            }
        }
    }

    fn calls(
        &self,
        rules: &CallRules,
        tools: &ToolSet,
        response_start: ResponseStart,
    ) -> Result<Option<ResponseGrammar>, Failure> {
        let request = self.call_request(rules, tools, response_start);
        let Some(wanted) = call_grammar::call_grammar(&request, &|text| self.control_token(text))
        else {
            return Ok(None);
        };
        // Without a strict tool, `auto` promises nothing: tools that cannot be compiled are
        // offered without a grammar.
        let is_optional = !must_call(rules) && !tools.iter().any(|tool| tool.strict);
        let failed = |error: &GrammarError| Failure::Tools(error.to_string());
        let grammars = self.grammars().map_err(failed)?;
        match grammars.compile(&Constraint::Lark(wanted.lark)) {
            Ok(grammar) => {
                Ok(Some(ResponseGrammar { grammar, to_failure: Failure::Tools, is_optional }))
            }
            Err(_) if is_optional => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    fn call_request<'a>(
        &'a self,
        rules: &'a CallRules,
        tools: &'a ToolSet,
        response_start: ResponseStart,
    ) -> CallGrammarRequest<'a> {
        CallGrammarRequest {
            format: &self.format,
            tools,
            choice: &rules.choice,
            calls_max: rules.calls_max as usize,
            starts_in_reasoning: response_start == ResponseStart::Reasoning,
        }
    }

    fn grammars(&self) -> Result<&Grammars, &GrammarError> {
        let build = || {
            let piece = |token| {
                let mut bytes = Vec::new();
                self.tokenizer.piece(token, true, &mut bytes);
                Piece { bytes, special: self.tokenizer.is_control(token) }
            };
            Grammars::new((0..self.tokenizer.vocabulary()).map(piece), self.tokenizer.end_tokens())
        };
        self.grammars.get_or_init(build).as_ref()
    }
}

fn must_call(rules: &CallRules) -> bool {
    matches!(rules.choice, ToolChoice::Required | ToolChoice::Function(_))
}

/// The tools of a chat, if it has a list of them.
fn read_tools(chat: &Chat) -> Result<Option<ToolSet>, Failure> {
    let Some(json) = chat.tools.as_deref() else { return Ok(None) };
    let tools: Vec<Value> =
        serde_json::from_str(json).map_err(|error| Failure::Tools(error.to_string()))?;
    let tools = ToolSet::from_openai(&tools).map_err(|error| Failure::Tools(error.to_string()))?;
    Ok(Some(tools))
}

/// The failure of a request whose constraint is invalid.
fn failure_of(constraint: &Constraint) -> fn(String) -> Failure {
    match constraint {
        Constraint::JsonObject | Constraint::JsonSchema(_) | Constraint::LenientJsonSchema(_) => {
            Failure::Schema
        }
        _ => Failure::Grammar,
    }
}
