//! Blocks of a page, and what is to be done with them.
//!
//! A comment on the line before a block tells: `<!-- file: NAME -->` writes it into a file, `<!--
//! serves -->` leaves it running until the page ends, `<!-- prints: TEXT -->` wants that in its
//! output, and `<!-- not run: needs SOMETHING -->` (or only the end of that) leaves it out. Blocks
//! of shell without a comment are run, and must succeed.

/// What is done with a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Do {
    /// It is run to its end, and prints this.
    Run(Option<String>),
    /// It serves until the page ends.
    Serve,
    /// It is a file of that name.
    Write(String),
    /// It is not run, and why.
    Leave(String),
    /// It is no command.
    Show,
}

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// What is done with it.
    pub then: Do,
    /// Its text.
    pub text: String,
}

/// The blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let (mut before, mut open): (&str, Option<Block>) = ("", None);
    for line in page.lines() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(language), None) => {
                open = Some(Block { then: what(language, before), text: String::new() });
            }
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => before = line,
        }
    }
    assert!(open.is_none(), "a block is not closed");
    found
}

fn what(language: &str, before: &str) -> Do {
    let told = before.strip_prefix("<!-- ").and_then(|told| told.strip_suffix(" -->"));
    let (word, rest) = told.map(|t| t.split_once(": ").unwrap_or((t, ""))).unwrap_or_default();
    match (word, language) {
        ("not run", _) => {
            assert!(rest.starts_with("needs "), "why is it not run? {before}");
            Do::Leave(rest.into())
        }
        (word, _) if word.starts_with("needs ") => Do::Leave(word.into()),
        ("file", _) => Do::Write(rest.into()),
        ("serves", "sh") => Do::Serve,
        ("prints", "sh") => Do::Run(Some(rest.into())),
        (_, "sh") => Do::Run(None),
        _ => Do::Show,
    }
}

#[test]
fn comments_before_blocks_tell_what_is_done_with_them() {
    let page = "a\n```sh\none\n```\n<!-- not run: needs a cluster -->\n```sh\ntwo\n```\n\
                <!-- file: x.yaml -->\n```yaml\na: 1\n```\n<!-- prints: yes -->\n```sh\nthree\n```\n\
                ```json\n{}\n```\n<!-- serves -->\n```sh\nfour\n```\n";
    let all: Vec<Do> = blocks(page).into_iter().map(|block| block.then).collect();
    let expected = [
        Do::Run(None),
        Do::Leave("needs a cluster".into()),
        Do::Write("x.yaml".into()),
        Do::Run(Some("yes".into())),
        Do::Show,
        Do::Serve,
    ];
    assert_eq!(all, expected);
}
