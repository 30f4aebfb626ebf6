//! PURE. Turns the constraint and tool rules of a request into a grammar over the model's tokens.

use super::Preparer;
use crate::scheduler::sequence::ResponseGrammar;
use crate::text::grammar::{GrammarError, Grammars, Piece};
use crate::text::output::call_grammar::{self, grammar_around_response};
use crate::text::output::{ResponseStart, ToolSet};
use crate::types::constraint::Constraint;
use crate::types::request::{CallRules, Chat, Failure, GenerateRequest, Prompt};

impl Preparer {
    /// The constraint on the response, if the request has one.
    pub(super) fn grammar(
        &self,
        request: &GenerateRequest,
        response_start: ResponseStart,
    ) -> Result<Option<ResponseGrammar>, Failure> {
        match (&request.constraint, &request.calls, &request.prompt) {
            (Some(constraint), _, prompt) => {
                let is_parted = request.show_delimiters && matches!(prompt, Prompt::Chat(_));
                self.constrained(constraint, is_parted.then_some(response_start)).map(Some)
            }
            (None, Some(rules), Prompt::Chat(chat)) => {
                self.calls(rules, chat, response_start == ResponseStart::Reasoning)
            }
            _ => Ok(None),
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
        let to_failure = match constraint {
            Constraint::JsonObject
            | Constraint::JsonSchema(_)
            | Constraint::LenientJsonSchema(_) => Failure::Schema,
            _ => Failure::Grammar,
        };
        let grammar = compiled.map_err(|error| to_failure(error.to_string()))?;
        Ok(ResponseGrammar { grammar, to_failure })
    }

    fn calls(
        &self,
        rules: &CallRules,
        chat: &Chat,
        starts_in_reasoning: bool,
    ) -> Result<Option<ResponseGrammar>, Failure> {
        let tools = match chat.tools.as_deref().map(serde_json::from_str::<Vec<_>>) {
            None => return Ok(None),
            Some(read) => read.map_err(|e| Failure::Tools(e.to_string()))?,
        };
        let tools =
            ToolSet::from_openai(&tools).map_err(|error| Failure::Tools(error.to_string()))?;
        let request = call_grammar::CallGrammarRequest {
            format: &self.format,
            tools: &tools,
            choice: &rules.choice,
            calls_max: rules.calls_max as usize,
            starts_in_reasoning,
        };
        let Some(wanted) = call_grammar::call_grammar(&request, &|text| self.control_token(text))
        else {
            return Ok(None);
        };
        let failed = |error: &GrammarError| Failure::Tools(error.to_string());
        let grammars = self.grammars().map_err(failed)?;
        let compiled = grammars.compile(&Constraint::Lark(wanted.lark));
        let grammar = compiled.map_err(|e| failed(&e))?;
        Ok(Some(ResponseGrammar { grammar, to_failure: Failure::Tools }))
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
