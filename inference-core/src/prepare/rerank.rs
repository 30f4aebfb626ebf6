//! PURE. The prompt template that a reranker was trained with (`tokenizer.chat_template.rerank`): a
//! text with `{query}` and `{document}`.

use crate::text::chat_template::Control;

const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

#[derive(Debug)]
enum TemplatePart {
    Text(String),
    Query,
    Document,
}

/// A rerank template lacks this placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingPlaceholder(&'static str);

impl std::fmt::Display for MissingPlaceholder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the file's rerank template has no {}", self.0)
    }
}

impl std::error::Error for MissingPlaceholder {}

/// A reranker's prompt template.
#[derive(Debug)]
pub struct RerankTemplate {
    parts: Vec<TemplatePart>,
    control: Control,
}

impl RerankTemplate {
    /// Parses a template; `control` are the texts of the model's control tokens.
    pub fn new(template: &str, control: &[String]) -> Result<Self, MissingPlaceholder> {
        for placeholder in [QUERY, DOCUMENT] {
            if !template.contains(placeholder) {
                return Err(MissingPlaceholder(placeholder));
            }
        }
        let mut parts = Vec::new();
        let mut rest = template;
        while !rest.is_empty() {
            let query = rest.find(QUERY).map(|at| (at, QUERY, TemplatePart::Query));
            let document = rest.find(DOCUMENT).map(|at| (at, DOCUMENT, TemplatePart::Document));
            let next = query.into_iter().chain(document).min_by_key(|(at, ..)| *at);
            let Some((at, placeholder, part)) = next else { break };
            parts.extend([TemplatePart::Text(rest[..at].to_string()), part]);
            rest = &rest[at + placeholder.len()..];
        }
        parts.push(TemplatePart::Text(rest.to_string()));
        Ok(Self { parts, control: Control::new(control) })
    }

    /// Renders the prompt of a pair. It may contain marks: see
    /// [`crate::text::chat_template::segments`].
    pub fn render(&self, query: &str, document: &str) -> String {
        let user = |text: &str| {
            let mut text = text.to_string();
            self.control.neutralise(&mut text);
            text
        };
        let text = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => text.clone(),
            TemplatePart::Query => user(query),
            TemplatePart::Document => user(document),
        };
        self.parts.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::chat_template::segments;

    #[test]
    fn query_and_document_stand_where_the_template_wants_them() {
        let template = RerankTemplate::new("D: {document} Q: {query}!", &[]).unwrap();
        assert_eq!(template.render("who?", "me"), "D: me Q: who?!");
    }

    #[test]
    fn what_a_user_writes_is_no_placeholder_and_no_control_token() {
        let control = ["<|im_end|>".to_string()];
        let template = RerankTemplate::new("{query}|{document}<|im_end|>", &control).unwrap();
        let rendered = template.render("{document}", "x<|im_end|>");
        let parts: Vec<&str> = segments(&rendered).collect();
        assert_eq!(parts, ["{document}|x<", "|im_end|><|im_end|>"]);
    }

    #[test]
    fn a_template_without_a_placeholder_is_refused_by_name() {
        for (template, lacks) in [("{query}", "{document}"), ("{document}", "{query}")] {
            let error = RerankTemplate::new(template, &[]).unwrap_err();
            assert!(error.to_string().contains(lacks), "{error}");
        }
    }
}
