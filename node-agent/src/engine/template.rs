//! The flags that choose the chat template.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::FalseyValueParser;
use inference_core::text::chat_template::{ChatTemplate, Sources, SpecialTokens};
use serde::{Deserialize, Serialize};

/// llama.cpp's name for the template below.
const CHATML: &str = "chatml";
/// The ChatML format, as in llama.cpp.
const CHATML_SOURCE: &str = "{%- for message in messages -%}\
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}\
    {%- endfor -%}\
    {%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";
/// Most bytes of a template: it is passed to the engine on its command line, where a byte may take
/// two and an argument has 128 KiB.
const SOURCE_BYTES_MAX: usize = 60_000;

/// Which chat template applies.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Chat template")]
pub(crate) struct TemplateFlags {
    /// Chat template instead of the model file's: Jinja, or the name chatml [default: the model
    /// file's]
    #[arg(
        long,
        env = "FLOTILLA_CHAT_TEMPLATE",
        value_name = "JINJA",
        conflicts_with = "chat_template_file"
    )]
    pub chat_template: Option<String>,
    /// File with a chat template (Jinja) that replaces the model file's [default: none]
    #[arg(long, env = "FLOTILLA_CHAT_TEMPLATE_FILE", value_name = "FILE")]
    pub chat_template_file: Option<PathBuf>,
    /// Use the ChatML format for chats if the model file has no chat template
    #[arg(long, env = "FLOTILLA_CHATML_FALLBACK", value_parser = FalseyValueParser::new())]
    pub chatml_fallback: bool,
    /// Let requests replace the chat template (chat_template)
    #[arg(long, env = "FLOTILLA_ALLOW_CHAT_TEMPLATE", value_parser = FalseyValueParser::new())]
    pub allow_chat_template: bool,
}

/// The operator's choice of a chat template.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TemplateChoice {
    /// Replaces the model file's.
    source: Option<String>,
    /// True if ChatML replaces a missing one.
    is_chatml_fallback: bool,
}

impl TemplateFlags {
    /// Reads the template and checks its syntax.
    ///
    /// # Errors
    /// It cannot be read, is too long, or is invalid.
    pub(crate) fn choice(&self) -> Result<TemplateChoice, String> {
        let (flag, source) = match (&self.chat_template, &self.chat_template_file) {
            (Some(source), _) => ("--chat-template", Some(source.clone())),
            (None, Some(file)) => {
                let flag = "--chat-template-file";
                (flag, Some(read(file).map_err(|e| format!("{flag}: {}: {e}", file.display()))?))
            }
            (None, None) => ("", None),
        };
        let source = source.map(|source| check(flag, source)).transpose()?;
        Ok(TemplateChoice { source, is_chatml_fallback: self.chatml_fallback })
    }
}

/// Reads a template; of one that is too long, only as much as shows that.
fn read(file: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(file)?.take(SOURCE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > SOURCE_BYTES_MAX {
        return Err(io::Error::other(format!("more than {SOURCE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn check(flag: &str, source: String) -> Result<String, String> {
    if source.trim() == CHATML {
        return Ok(CHATML_SOURCE.into());
    }
    if source.len() > SOURCE_BYTES_MAX {
        let bytes = source.len();
        return Err(format!("{flag}: it has {bytes} bytes; {SOURCE_BYTES_MAX} are allowed"));
    }
    if !source.contains("{{") && !source.contains("{%") {
        return Err(format!(
            "{flag}: this is not a template: give Jinja, or the name {CHATML}; of llama.cpp's \
             built-in formats, no other is known here"
        ));
    }
    match ChatTemplate::new(source.clone(), SpecialTokens::default()) {
        Ok(_) => Ok(source),
        Err(error) => Err(format!("{flag}: {error}")),
    }
}

impl TemplateChoice {
    /// The templates to use with a model file that has these.
    pub(crate) fn choose(&self, own: Option<Sources>) -> Option<Sources> {
        let source = self.replacement(own.is_some()).map(|source| source.to_string().into());
        source.or(own)
    }

    /// The template that replaces the model file's, if the file has one, or the missing one.
    pub(crate) fn replacement(&self, has_own: bool) -> Option<&str> {
        let fallback = (self.is_chatml_fallback && !has_own).then_some(CHATML_SOURCE);
        self.source.as_deref().or(fallback)
    }
}

#[cfg(test)]
mod tests {
    use inference_core::text::chat_template::{Conversation, segments};

    use super::*;

    fn choice(template: &str) -> Result<TemplateChoice, String> {
        let chat_template = Some(template.to_string());
        TemplateFlags { chat_template, ..TemplateFlags::default() }.choice()
    }

    #[test]
    fn a_template_is_checked_before_the_model_is_loaded() {
        for (template, expected) in [
            ("{% for %}", "--chat-template: "),
            ("{{ messages", "--chat-template: "),
            ("llama2", "give Jinja, or the name chatml"),
            (&"{{ a }}".repeat(10_000), "60000 are allowed"),
        ] {
            let said = choice(template).unwrap_err();
            assert!(said.contains(expected), "{said}");
        }
        let missing = TemplateFlags {
            chat_template_file: Some("/nonexistent/t.jinja".into()),
            ..TemplateFlags::default()
        };
        let said = missing.choice().unwrap_err();
        assert!(said.starts_with("--chat-template-file: /nonexistent/t.jinja: "), "{said}");
    }

    #[test]
    fn chatml_has_a_name_and_replaces_a_missing_template_only_if_asked() {
        let own = || Some(Sources::from("{{ messages }}".to_string()));
        let source = |choice: &TemplateChoice, own| choice.choose(own).map(|s| s.default);
        let named = choice("chatml").unwrap();
        assert_eq!(source(&named, own()).as_deref(), Some(CHATML_SOURCE));
        let none = TemplateFlags::default().choice().unwrap();
        assert_eq!((source(&none, None), none.replacement(false)), (None, None));
        let fallback = TemplateFlags { chatml_fallback: true, ..TemplateFlags::default() };
        let fallback = fallback.choice().unwrap();
        assert_eq!(source(&fallback, own()).as_deref(), Some("{{ messages }}"));
        assert_eq!(source(&fallback, None).as_deref(), Some(CHATML_SOURCE));
    }

    #[test]
    fn chatml_is_what_it_is_elsewhere() {
        let template = ChatTemplate::new(CHATML_SOURCE.to_string(), SpecialTokens::default());
        let messages = r#"[{"role":"system","content":"A"},{"role":"user","content":"B"}]"#;
        let chat = Conversation::new(messages, chrono::NaiveDateTime::default());
        let rendered = template.unwrap().render(&chat).unwrap();
        assert_eq!(
            segments(&rendered).collect::<String>(),
            "<|im_start|>system\nA<|im_end|>\n<|im_start|>user\nB<|im_end|>\n\
             <|im_start|>assistant\n"
        );
    }
}
