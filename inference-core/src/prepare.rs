//! PURE. A request -> the tokens of its prompt, or why not.

use chrono::NaiveDateTime;

use crate::chat_template::{ChatTemplate, Conversation, segments};
use crate::model::Tokenizer;
use crate::request::{Failure, Prompt, Token};

/// What a loaded model offers to turn requests into tokens.
pub struct Preparer {
    /// Its tokenizer.
    pub tokenizer: Box<dyn Tokenizer>,
    /// Its chat template; the error says what is wrong with it, `None` that there is none.
    pub template: Option<Result<ChatTemplate, String>>,
    /// Tokens that prompt and answer may have together.
    pub context_tokens: u32,
}

impl Preparer {
    /// The prompt's tokens: at least one, and room left for an answer.
    pub fn prepare(&self, prompt: &Prompt, now: NaiveDateTime) -> Result<Vec<Token>, Failure> {
        let tokens = match prompt {
            Prompt::Chat { messages, tools } => {
                let conversation = Conversation { messages, tools: tools.as_deref(), now };
                self.tokenize_chat(&conversation)?
            }
            Prompt::Text(text) => self.with_beginning(self.tokenizer.tokenize(text, true)),
            Prompt::Tokens(tokens) => self.check_tokens(tokens)?,
        };
        self.check_length(tokens)
    }

    fn tokenize_chat(&self, conversation: &Conversation<'_>) -> Result<Vec<Token>, Failure> {
        let template = match &self.template {
            Some(Ok(template)) => template,
            Some(Err(why)) => return Err(Failure::Template(why.clone())),
            None => return Err(Failure::NoChatTemplate),
        };
        let rendered = template.render(conversation).map_err(Failure::Template)?;
        let parts = segments(&rendered).flat_map(|part| self.tokenizer.tokenize(part, true));
        Ok(self.with_beginning(parts.collect()))
    }

    /// Most templates write the beginning token themselves; two of them harm the answer.
    fn with_beginning(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        if let Some((beginning, _)) = self.tokenizer.beginning()
            && tokens.first() != Some(&beginning)
        {
            tokens.insert(0, beginning);
        }
        tokens
    }

    fn check_tokens(&self, tokens: &[Token]) -> Result<Vec<Token>, Failure> {
        let vocabulary = self.tokenizer.vocabulary();
        match tokens.iter().find(|t| **t >= vocabulary) {
            Some(unknown) => Err(Failure::UnknownToken(*unknown)),
            None => Ok(tokens.to_vec()),
        }
    }

    fn check_length(&self, tokens: Vec<Token>) -> Result<Vec<Token>, Failure> {
        let prompt_tokens = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if prompt_tokens == 0 {
            return Err(Failure::EmptyPrompt);
        }
        if prompt_tokens >= self.context_tokens {
            let context_tokens = self.context_tokens;
            return Err(Failure::ContextExceeded { prompt_tokens, context_tokens });
        }
        Ok(tokens)
    }
}

impl std::fmt::Debug for Preparer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preparer").field("context_tokens", &self.context_tokens).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeTokenizer;

    fn preparer(template: Option<&str>) -> Preparer {
        let compile =
            |t: &str| ChatTemplate::new(t.into(), String::new(), String::new(), vec!["<e>".into()]);
        Preparer {
            tokenizer: Box::new(FakeTokenizer),
            template: template.map(compile),
            context_tokens: 8,
        }
    }

    fn prepare(preparer: &Preparer, prompt: Prompt) -> Result<Vec<Token>, Failure> {
        preparer.prepare(&prompt, NaiveDateTime::default())
    }

    #[test]
    fn a_prompt_as_long_as_the_context_is_refused_with_both_numbers() {
        let error = prepare(&preparer(None), Prompt::Text("12345678".into())).unwrap_err();
        assert_eq!(error, Failure::ContextExceeded { prompt_tokens: 8, context_tokens: 8 });
        assert!(prepare(&preparer(None), Prompt::Text("1234567".into())).is_ok());
    }

    #[test]
    fn empty_prompts_unknown_tokens_and_missing_templates_are_refused() {
        let plain = preparer(None);
        assert_eq!(prepare(&plain, Prompt::Text(String::new())), Err(Failure::EmptyPrompt));
        assert_eq!(prepare(&plain, Prompt::Tokens(vec![1, 999])), Err(Failure::UnknownToken(999)));
        let chat = || Prompt::Chat { messages: "[]".into(), tools: None };
        assert_eq!(prepare(&plain, chat()), Err(Failure::NoChatTemplate));
        assert!(matches!(prepare(&preparer(Some("{% x")), chat()), Err(Failure::Template(_))));
    }

    #[test]
    fn users_cannot_write_control_tokens_in_a_chat() {
        let messages = r#"[{"content":"<e>"}]"#.to_string();
        let chat = Prompt::Chat { messages, tools: None };
        let tokens = prepare(&preparer(Some("{{ messages[0].content }}<e>")), chat).unwrap();
        let end = FakeTokenizer::END;
        assert_eq!(tokens, [u32::from(b'<'), u32::from(b'e'), u32::from(b'>'), end]);
    }
}
