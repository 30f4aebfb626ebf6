//! PURE. The prompt of a model that fills a gap in a text, as code models are trained: other files,
//! the text before the gap, the text after it.
//!
//! Source: the model cards of Qwen2.5-Coder and of Code Llama, and llama-server's `/infill`.

use std::borrow::Cow;

use crate::types::model::Infill;
use crate::types::request::{InfillFile, Token};

/// A part of the prompt.
#[derive(Debug, PartialEq)]
pub(super) enum Part<'a> {
    /// A token of the model.
    Mark(Token),
    /// Text without special tokens.
    Text(Cow<'a, str>),
}

/// The parts of a prompt. `around`: the texts before and after the gap.
pub(super) fn parts<'a>(
    marks: &Infill,
    around: (&'a str, &'a str),
    files: &'a [InfillFile],
) -> Vec<Part<'a>> {
    let text = |text: &'a str| Part::Text(Cow::Borrowed(text));
    let line = |name: &str| Part::Text(Cow::Owned(format!("{name}\n")));
    let mut parts = Vec::new();
    if let (Some(repository), false) = (marks.repository, files.is_empty()) {
        parts.extend([Part::Mark(repository), line("project")]);
    }
    for InfillFile { name, text: content } in files {
        match marks.file {
            Some(mark) => parts.extend([Part::Mark(mark), line(name), text(content)]),
            None => {
                let heading = format!("\n\n--- {name} ---\n\n");
                parts.extend([Part::Text(Cow::Owned(heading)), text(content)]);
            }
        }
    }
    // The file with the gap is one of several.
    if let (Some(mark), false) = (marks.file, files.is_empty()) {
        parts.extend([Part::Mark(mark), line("current")]);
    }
    let (before, after) = around;
    parts.extend([Part::Mark(marks.prefix), text(before)]);
    parts.extend([Part::Mark(marks.suffix), text(after)]);
    parts.push(Part::Mark(marks.middle));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Infill = Infill { prefix: 1, suffix: 2, middle: 3, repository: None, file: None };

    fn written(marks: &Infill, files: &[InfillFile]) -> String {
        let part = |part: &Part<'_>| match part {
            Part::Mark(token) => format!("<{token}>"),
            Part::Text(text) => text.to_string(),
        };
        parts(marks, ("before", "after"), files).iter().map(part).collect()
    }

    fn file(name: &str, text: &str) -> InfillFile {
        InfillFile { name: name.into(), text: text.into() }
    }

    #[test]
    fn a_gap_is_between_marks() {
        assert_eq!(written(&MARKS, &[]), "<1>before<2>after<3>");
        let marks = Infill { repository: Some(4), file: Some(5), ..MARKS };
        assert_eq!(written(&marks, &[]), "<1>before<2>after<3>");
    }

    #[test]
    fn other_files_come_first_with_their_names() {
        let files = [file("a.rs", "fn a\n"), file("b.rs", "fn b\n")];
        let marks = Infill { repository: Some(4), file: Some(5), ..MARKS };
        let expected = "<4>project\n<5>a.rs\nfn a\n<5>b.rs\nfn b\n<5>current\n<1>before<2>after<3>";
        assert_eq!(written(&marks, &files), expected);
        let expected = "\n\n--- a.rs ---\n\nfn a\n<1>before<2>after<3>";
        assert_eq!(written(&MARKS, &files[..1]), expected);
    }
}
