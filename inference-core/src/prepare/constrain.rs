//! PURE. Turns the constraint and tool rules of a request into a grammar over the model's tokens.

use super::Preparer;
use crate::scheduler::sequence::Form;
use crate::text::grammar::{GrammarError, Grammars, Piece};
use crate::text::output::choice::{self, around_answer};
use crate::text::output::{Beginning, ToolSet};
use crate::types::constraint::Constraint;
use crate::types::request::{CallRules, Chat, Failure, GenerateRequest, Prompt};

impl Preparer {
    /// The constraint on the response, if the request has one.
    pub(super) fn form(
        &self,
        request: &GenerateRequest,
        beginning: Beginning,
    ) -> Result<Option<Form>, Failure> {
        match (&request.constraint, &request.calls, &request.prompt) {
            (Some(constraint), _, prompt) => {
                let is_parted = request.shows_marks && matches!(prompt, Prompt::Chat(_));
                self.constrained(constraint, is_parted.then_some(beginning)).map(Some)
            }
            (None, Some(rules), Prompt::Chat(chat)) => {
                self.calls(rules, chat, beginning == Beginning::Reasoning)
            }
            _ => Ok(None),
        }
    }

    /// `parted` is where the response starts, if its parser splits it into reasoning and content.
    fn constrained(
        &self,
        constraint: &Constraint,
        parted: Option<Beginning>,
    ) -> Result<Form, Failure> {
        let control = |text: &str| self.control_token(text);
        let around = parted.and_then(|begin| around_answer(&self.format, begin, &control));
        let grammars = self.grammars().map_err(|e| Failure::Grammar(e.to_string()))?;
        let compiled = match around {
            Some(lark) => grammars.compile_within(&lark, constraint),
            None => grammars.compile(constraint),
        };
        let refusal = match constraint {
            Constraint::JsonObject
            | Constraint::JsonSchema(_)
            | Constraint::LenientJsonSchema(_) => Failure::Schema,
            _ => Failure::Grammar,
        };
        let grammar = compiled.map_err(|error| refusal(error.to_string()))?;
        Ok(Form { grammar, refusal })
    }

    fn calls(
        &self,
        rules: &CallRules,
        chat: &Chat,
        starts_thinking: bool,
    ) -> Result<Option<Form>, Failure> {
        let tools = match chat.tools.as_deref().map(serde_json::from_str::<Vec<_>>) {
            None => return Ok(None),
            Some(read) => read.map_err(|e| Failure::Tools(e.to_string()))?,
        };
        let tools = ToolSet::from_openai(&tools).map_err(Failure::Tools)?;
        let asked = choice::Request {
            format: &self.format,
            tools: &tools,
            choice: &rules.choice,
            calls_max: rules.calls_max as usize,
            starts_thinking,
        };
        let Some(wanted) = choice::grammar(&asked, &|text| self.control_token(text)) else {
            return Ok(None);
        };
        let failed = |error: &GrammarError| Failure::Tools(error.to_string());
        let grammars = self.grammars().map_err(failed)?;
        let compiled = grammars.compile(&Constraint::Lark(wanted.lark));
        let grammar = compiled.map_err(|e| failed(&e))?;
        Ok(Some(Form { grammar, refusal: Failure::Tools }))
    }

    fn grammars(&self) -> Result<&Grammars, &GrammarError> {
        let build = || {
            let piece = |token| {
                let mut bytes = Vec::new();
                self.tokenizer.piece(token, true, &mut bytes);
                Piece { bytes, special: self.tokenizer.is_control(token) }
            };
            Grammars::new((0..self.tokenizer.vocabulary()).map(piece), self.tokenizer.ends())
        };
        self.grammars.get_or_init(build).as_ref()
    }
}
