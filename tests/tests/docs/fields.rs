//! The tables of every field of translated APIs, made of those that the code reads by.

use std::fmt::Write;

use inference_translation::fields::{Effect, Field};
use inference_translation::{llama_server, messages, ollama, rerank, responses};

use crate::current;

/// A table, with the name of its mark.
type Table = (&'static str, &'static [Field]);

/// The tables of each page.
const PAGES: [(&str, &[Table]); 5] = [
    ("docs/api.md", &[("texts", rerank::TEXTS_FIELDS)]),
    ("docs/responses.md", &[("responses", responses::FIELDS)]),
    (
        "docs/llama-server.md",
        &[
            ("completion", llama_server::COMPLETION_FIELDS),
            ("infill", llama_server::INFILL_FIELDS),
            ("embedding", llama_server::EMBEDDING_FIELDS),
        ],
    ),
    ("docs/messages.md", &[("messages", messages::FIELDS)]),
    (
        "docs/ollama.md",
        &[
            ("chat", ollama::CHAT_FIELDS),
            ("message", ollama::MESSAGE_FIELDS),
            ("generate", ollama::GENERATE_FIELDS),
            ("options", ollama::OPTION_FIELDS),
            ("embed", ollama::EMBED_FIELDS),
            ("embeddings", ollama::EMBEDDINGS_FIELDS),
        ],
    ),
];

fn table(fields: &[Field]) -> String {
    let mut text = String::from("| Field | Support | Notes |\n| --- | --- | --- |\n");
    for Field { name, effect, note } in fields {
        let support = match effect {
            Effect::Honored => "honored",
            Effect::Ignored => "accepted without effect",
            Effect::Rejected => "rejected",
        };
        writeln!(text, "| `{name}` | {support} | {note} |").unwrap();
    }
    text
}

/// The page with its tables: what stands between two marks is replaced.
fn made(page: &str, tables: &[Table]) -> String {
    let mut page = page.to_string();
    for (name, fields) in tables {
        let begin = format!("<!-- fields {name} -->\n\n");
        let from = page.find(&begin).expect("a mark is missing") + begin.len();
        let to = from + page[from..].find("<!-- end -->").expect("a mark is missing");
        page.replace_range(from..to, &(table(fields) + "\n"));
    }
    page
}

#[test]
fn the_tables_of_translated_apis_are_those_of_this_code() {
    for (file, tables) in PAGES {
        current::check(file, &made(&current::read(file), tables));
    }
}
