//! PURE. Turns a request into the tokens of its prompt and the grammar of its response, or into an
//! error; runs queries about tokens.

use std::sync::{Arc, OnceLock};

use chrono::{DateTime, NaiveDateTime};

use crate::scheduler::sampler::ResolvedOptions;
use crate::scheduler::sampler::dry::SequenceBreakers;
use crate::scheduler::sequence::ResponseGrammar;
use crate::text::chat_template::{
    ChatTemplate, Conversation, SpecialTokens, TemplateError, segments,
};
use crate::text::grammar::{GrammarError, Grammars};
use crate::text::output::{Format, ResponseStart};
use crate::types::model::Tokenizer;
use crate::types::request::{
    Chat, EmbedInput, EmbedRequest, Failure, GenerateRequest, ModelTexts, Prompt, QueryResult,
    TextQuery, Token,
};

mod bounds;
mod budget;
mod constrain;
mod infill;
mod queue;
mod rerank;
mod resolve;
mod tokenizing;

pub(crate) use bounds::{Bounds, solid_bytes};
pub use queue::{Lane, PrepareQueue};
pub use rerank::{MissingPlaceholder, RerankTemplate};
pub use tokenizing::{IsWanted, PrepareError};

use tokenizing::{PromptTokenizer, TokenizeError};

/// Maximum tokens in one result, without pieces and with them; pieces are far larger.
const RESULT_TOKENS_MAX: usize = 1 << 20;
const RESULT_PIECES_MAX: usize = 1 << 17;
/// Maximum length in bytes of a text that tokens are turned into: that of the largest request.
const RESULT_BYTES_MAX: usize = 8 << 20;

/// The parts of a loaded model that are needed to prepare requests.
pub struct Preparer {
    /// The model's tokenizer.
    pub tokenizer: Box<dyn Tokenizer>,
    /// The model's chat template; `None` if it has none, an error if it is invalid.
    pub template: Option<Result<ChatTemplate, TemplateError>>,
    /// Maximum tokens of prompt and response together.
    pub context_tokens: u32,
    /// The model's notation of reasoning and tool calls.
    pub format: Format,
    /// The prompt template of a reranker that was trained with one.
    pub rerank: Option<RerankTemplate>,
    /// Built when the first request needs it.
    pub grammars: OnceLock<Result<Grammars, GrammarError>>,
    /// DRY's default sequence breakers; found when the first request needs them.
    breakers: OnceLock<Arc<SequenceBreakers>>,
    /// What the vocabulary guarantees for every text.
    bounds: Bounds,
    /// For templates that requests bring.
    special: SpecialTokens,
}

fn format_of(template: &ChatTemplate) -> Format {
    let detected = Format::detect(template.source(true));
    let format = Format { ids: template.capabilities(true).call_ids, ..detected };
    let can = template.capabilities(true);
    match can.tools || can.system_tools {
        true => format,
        // Without tool support in the template, we describe the tools.
        false => Format { calls: can.described, ..format },
    }
}

/// A request that is ready to run.
#[derive(Debug)]
pub struct Prepared {
    /// Tokens of the prompt, followed by those of a resumed response.
    pub tokens: Vec<Token>,
    /// How many of these tokens belong to the response.
    pub resumed_len: usize,
    /// Maximum tokens to generate, also 0; `None` is as many as the context holds.
    pub max_tokens: Option<u32>,
    /// True if the prompt ends inside the assistant's reasoning.
    pub in_reasoning: bool,
    /// Control tokens whose text is part of the response text.
    pub visible: Vec<Token>,
    /// The options that are texts, as tokens.
    pub resolved: ResolvedOptions,
    /// Grammar of the response, if constrained.
    pub grammar: Option<ResponseGrammar>,
}

/// Tokens of a prompt, and where in the assistant's message its response starts.
type Tokenized = (Vec<Token>, ResponseStart);

impl Preparer {
    /// Creates a preparer from the parts of a loaded model.
    pub fn new(
        tokenizer: Box<dyn Tokenizer>,
        template: Option<Result<ChatTemplate, TemplateError>>,
        context_tokens: u32,
    ) -> Self {
        let format = match &template {
            Some(Ok(template)) => format_of(template),
            _ => Format::detect(""),
        };
        let bounds = Bounds::new(&*tokenizer);
        let (rerank, grammars, breakers) = (None, OnceLock::new(), OnceLock::new());
        let special = SpecialTokens::default();
        Self {
            tokenizer,
            template,
            context_tokens,
            format,
            rerank,
            grammars,
            breakers,
            bounds,
            special,
        }
    }

    /// True if the model can fill gaps in a text.
    pub fn fills(&self) -> bool {
        self.tokenizer.infill().is_some()
    }

    /// True if the chat template does not describe tools to the model: our own description goes
    /// into the system message.
    pub fn lacks_tools(&self) -> bool {
        matches!(&self.template, Some(Ok(template)) if !template.capabilities(true).tools)
    }

    /// Parts of messages that the chat template leaves out and that have no other place.
    pub fn dropped_parts(&self) -> Vec<String> {
        let Some(Ok(template)) = &self.template else { return Vec::new() };
        let can = template.capabilities(true);
        let dropped = [
            (can.tool_calls && !can.text_beside_calls, "content beside tool_calls"),
            (!can.names, "name"),
        ];
        dropped.iter().filter(|(is, _)| *is).map(|(_, part)| (*part).to_string()).collect()
    }

    /// Adds the texts of the special tokens, for templates that requests bring.
    pub fn with_special_tokens(self, special: SpecialTokens) -> Self {
        Self { special, ..self }
    }

    /// Why the chat template cannot be used, if it cannot.
    pub fn template_error(&self) -> Option<String> {
        match &self.template {
            Some(Err(error)) => Some(error.to_string()),
            Some(Ok(_)) | None => None,
        }
    }

    /// Adds the prompt template of a reranker that was trained with one.
    pub fn with_rerank_template(self, rerank: Option<RerankTemplate>) -> Self {
        Self { rerank, ..self }
    }

    /// Tokenizes the prompt, checks that it has at least one token and leaves room for a response,
    /// and compiles the grammar. Returns one entry for each requested choice; the prompt is
    /// tokenized once.
    pub fn prepare(
        &self,
        request: &GenerateRequest,
        is_wanted: IsWanted<'_>,
    ) -> Result<Vec<Prepared>, PrepareError> {
        let now = DateTime::from_timestamp(request.now, 0).unwrap_or_default().naive_utc();
        let chat = matches!(request.prompt, Prompt::Chat(_));
        let context_tokens = self.context_tokens;
        let too_long =
            |prompt_tokens| Failure::ContextExceeded { prompt_tokens, context_tokens, chat };
        let tokenized = self.tokenize(&request.prompt, now, context_tokens as usize, is_wanted);
        let (prompt, response_start) = tokenized.map_err(|error| error.into_error(too_long))?;
        let all = std::iter::once(&request.resume_tokens)
            .chain(request.siblings.iter().map(|sibling| &sibling.resume_tokens));
        // A response has at least one token.
        let longest = all.clone().map(Vec::len).max().unwrap_or(0).max(1);
        self.check_length(prompt.len(), longest, chat)?;
        let choices = 1 + request.siblings.len();
        let max_tokens = budget::max_tokens(&request.options, prompt.len(), choices)?;
        if !is_wanted() {
            return Err(PrepareError::Cancelled);
        }
        let resolved = self.resolve(&request.options, response_start, is_wanted)?;
        let grammar = self.grammar(request, response_start)?;
        let visible = match request.show_delimiters {
            true => self.control_tokens(&self.format.visible_tokens()),
            false => Vec::new(),
        };
        let one = |resumed: &Vec<Token>| -> Result<Prepared, PrepareError> {
            Ok(Prepared {
                tokens: [&prompt[..], &self.check_tokens(resumed)?].concat(),
                resumed_len: resumed.len(),
                max_tokens,
                in_reasoning: response_start == ResponseStart::Reasoning,
                visible: visible.clone(),
                resolved: resolved.clone(),
                grammar: grammar.as_ref().map(ResponseGrammar::separate),
            })
        };
        all.map(one).collect()
    }

    /// Runs a query about text and tokens.
    pub fn run_query(
        &self,
        query: &TextQuery,
        now: NaiveDateTime,
        is_wanted: IsWanted<'_>,
    ) -> Result<QueryResult, PrepareError> {
        let too_large = |error: TokenizeError| error.into_error(|_| Failure::TooLarge);
        let most = RESULT_TOKENS_MAX;
        match query {
            TextQuery::Tokenize { prompt, with_pieces } => {
                let (tokens, _) = self.tokenize(prompt, now, most, is_wanted).map_err(too_large)?;
                Ok(self.tokens_result(tokens, *with_pieces)?)
            }
            TextQuery::TokenizeText { text, beginning, control, with_pieces } => {
                let tokenized =
                    self.tokenize_texts([text.as_str()].into_iter(), *control, most, is_wanted);
                let tokens = tokenized.map_err(too_large)?;
                let tokens = if *beginning { self.with_beginning(tokens) } else { tokens };
                Ok(self.tokens_result(tokens, *with_pieces)?)
            }
            TextQuery::Detokenize(tokens) => {
                let mut bytes = Vec::new();
                for token in self.check_tokens(tokens)? {
                    self.tokenizer.piece(token, true, &mut bytes);
                    if bytes.len() > RESULT_BYTES_MAX {
                        return Err(Failure::TooLarge.into());
                    }
                }
                Ok(QueryResult::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            TextQuery::Render(chat) => {
                Ok(QueryResult::Text(segments(&self.render(chat, now)?).collect()))
            }
            TextQuery::Texts => Ok(QueryResult::Texts(self.texts())),
        }
    }

    fn texts(&self) -> ModelTexts {
        let template = self.template.as_ref().and_then(|template| template.as_ref().ok());
        ModelTexts {
            template: template.map(|template| template.source(false).into()),
            beginning: self.special.bos.clone(),
            end: self.special.eos.clone(),
        }
    }

    /// Tokenizes the inputs of an embeddings request; fails if one is empty or too long.
    pub fn embed_inputs(
        &self,
        request: &EmbedRequest,
        is_wanted: IsWanted<'_>,
    ) -> Result<Vec<Vec<Token>>, PrepareError> {
        let check = |(index, input): (u32, &EmbedInput)| {
            if !is_wanted() {
                return Err(PrepareError::Cancelled);
            }
            let tokens_max = self.context_tokens;
            let too_long = |tokens| Failure::InputTooLong { index, tokens, tokens_max };
            let fewest = u32::try_from(self.fewest_tokens(input)).unwrap_or(u32::MAX);
            if fewest > tokens_max {
                return Err(too_long(fewest).into());
            }
            let tokens = self.embed_input(input)?;
            match tokens.len() as u32 {
                0 => Err(Failure::EmptyPrompt.into()),
                count if count > tokens_max => Err(too_long(count).into()),
                _ => Ok(tokens),
            }
        };
        let inputs: Vec<Vec<Token>> =
            (0..).zip(&request.inputs).map(check).collect::<Result<_, PrepareError>>()?;
        budget::check(&inputs, request.usage_max)?;
        Ok(inputs)
    }

    /// Lower limit of the number of tokens of an input.
    fn fewest_tokens(&self, input: &EmbedInput) -> usize {
        let solid = |text: &str| solid_bytes(text.as_bytes());
        self.bounds.tokens_min(match input {
            EmbedInput::Text(text) => solid(text),
            EmbedInput::Tokens(_) => 0,
            EmbedInput::Pair { query, document } => solid(query) + solid(document),
        })
    }

    fn embed_input(&self, input: &EmbedInput) -> Result<Vec<Token>, Failure> {
        match input {
            EmbedInput::Text(text) => self.tokenizer.tokenize_framed(text),
            EmbedInput::Tokens(tokens) => self.check_tokens(tokens),
            EmbedInput::Pair { query, document } => {
                if let Some(template) = &self.rerank {
                    return self.tokenize_segments(&template.render(query, document));
                }
                // As BERT rerankers ([CLS] query [SEP] document [SEP]) and RoBERTa rerankers (<s>
                // query </s></s> document </s>) are trained.
                let separator = self.tokenizer.separator();
                let query = self.with_beginning(self.tokenizer.tokenize(query, false)?);
                let document = self.tokenizer.tokenize(document, false)?;
                let last = separator.first().copied().into_iter().collect();
                Ok([query, separator, document, last].concat())
            }
        }
    }

    /// The control tokens with these texts; skips texts that are no control token.
    fn control_tokens(&self, texts: &[&str]) -> Vec<Token> {
        texts.iter().filter_map(|text| self.control_token(text)).collect()
    }

    /// The control token with this text. In some vocabularies (GigaChat 3), it contains the line
    /// breaks after it.
    fn control_token(&self, text: &str) -> Option<Token> {
        ["", "\n", "\n\n"].into_iter().find_map(|breaks| {
            match self.tokenizer.tokenize(&format!("{text}{breaks}"), true).ok()?[..] {
                [token] if self.tokenizer.is_control(token) => Some(token),
                _ => None,
            }
        })
    }

    fn tokens_result(&self, tokens: Vec<Token>, with_pieces: bool) -> Result<QueryResult, Failure> {
        if tokens.len() > if with_pieces { RESULT_PIECES_MAX } else { RESULT_TOKENS_MAX } {
            return Err(Failure::TooLarge);
        }
        let piece = |token: &Token| {
            let mut bytes = Vec::new();
            self.tokenizer.piece(*token, true, &mut bytes);
            bytes
        };
        let pieces = if with_pieces { tokens.iter().map(piece).collect() } else { Vec::new() };
        Ok(QueryResult::Tokens(tokens, pieces))
    }

    /// Tokenizes a prompt; stops early beyond `tokens_max` tokens.
    fn tokenize(
        &self,
        prompt: &Prompt,
        now: NaiveDateTime,
        tokens_max: usize,
        is_wanted: IsWanted<'_>,
    ) -> Result<Tokenized, TokenizeError> {
        let tokenize = |texts: &[&str], control| {
            self.tokenize_texts(texts.iter().copied(), control, tokens_max, is_wanted)
        };
        let tokens = match prompt {
            Prompt::Chat(chat) => {
                let rendered = self.render(chat, now)?;
                let tokens =
                    self.tokenize_texts(segments(&rendered), true, tokens_max, is_wanted)?;
                return Ok((self.with_beginning(tokens), self.format.response_start(&rendered)));
            }
            Prompt::Text(text) => self.with_beginning(tokenize(&[text.as_str()], true)?),
            Prompt::Tokens(tokens) => self.check_tokens(tokens)?,
            Prompt::Infill { prefix, suffix, files } => {
                let infill = self.tokenizer.infill().ok_or(Failure::NoInfill)?;
                let parts = infill::parts(&infill, (prefix, suffix), files);
                let mut tokens = Vec::new();
                for part in parts {
                    match part {
                        infill::Part::Mark(token) => tokens.push(token),
                        infill::Part::Text(text) => tokens.extend(tokenize(&[&text], false)?),
                    }
                    if tokens.len() > tokens_max {
                        break;
                    }
                }
                self.with_beginning(tokens)
            }
        };
        Ok((tokens, ResponseStart::Fresh))
    }

    /// Tokenizes texts separately and joins the tokens.
    fn tokenize_texts<'t>(
        &self,
        texts: impl Iterator<Item = &'t str> + Clone,
        control: bool,
        tokens_max: usize,
        is_wanted: IsWanted<'_>,
    ) -> Result<Vec<Token>, TokenizeError> {
        let (tokenizer, bounds) = (&*self.tokenizer, &self.bounds);
        let mut prompt =
            PromptTokenizer { tokenizer, bounds, is_wanted, tokens_max, tokens: Vec::new() };
        prompt.check_min_tokens(texts.clone())?;
        for text in texts {
            prompt.push_text(text, control)?;
        }
        Ok(prompt.tokens)
    }

    fn tokenize_segments(&self, rendered: &str) -> Result<Vec<Token>, Failure> {
        let mut tokens = Vec::new();
        for part in segments(rendered) {
            tokens.extend(self.tokenizer.tokenize(part, true)?);
        }
        Ok(self.with_beginning(tokens))
    }

    fn render(&self, chat: &Chat, now: NaiveDateTime) -> Result<String, Failure> {
        let own;
        let template = match (&chat.template, &self.template) {
            (Some(source), _) => {
                own = self.request_template(source)?;
                &own
            }
            (None, Some(Ok(template))) => template,
            (None, Some(Err(error))) => return Err(Failure::BrokenTemplate(error.to_string())),
            (None, None) => return Err(Failure::NoChatTemplate),
        };
        let conversation = Conversation {
            messages: &chat.messages,
            tools: chat.tools.as_deref(),
            documents: chat.documents.as_deref(),
            variables: chat.variables.as_deref(),
            now,
            generation_prompt: chat.generation_prompt,
        };
        template.render(&conversation).map_err(|error| match error.is_of_conversation() {
            true => Failure::Template(error.to_string()),
            false => {
                Failure::TemplateFailed { why: error.to_string(), is_own: chat.template.is_some() }
            }
        })
    }

    /// Compiles the template that a request brings.
    fn request_template(&self, source: &str) -> Result<ChatTemplate, Failure> {
        ChatTemplate::new(source.to_string(), self.special.clone()).map_err(|error| {
            let (param, message) = ("chat_template".into(), format!("chat_template: {error}"));
            Failure::Field { param, message }
        })
    }

    /// Adds the beginning token (BOS) if it is missing. Most templates write it themselves; two of
    /// them harm the response.
    fn with_beginning(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        if let Some((beginning, _)) = self.tokenizer.bos_token()
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

    /// Checks that the prompt is not empty and that prompt and response fit into the context.
    fn check_length(&self, prompt: usize, response: usize, chat: bool) -> Result<(), Failure> {
        if prompt == 0 {
            return Err(Failure::EmptyPrompt);
        }
        let prompt_tokens = u32::try_from(prompt).unwrap_or(u32::MAX);
        if prompt + response > self.context_tokens as usize {
            let context_tokens = self.context_tokens;
            return Err(Failure::ContextExceeded { prompt_tokens, context_tokens, chat });
        }
        Ok(())
    }
}

impl std::fmt::Debug for Preparer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preparer").field("context_tokens", &self.context_tokens).finish()
    }
}

#[cfg(test)]
mod tests;
