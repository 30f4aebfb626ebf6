//! Splits requests for embeddings or scores of long lists into requests that several nodes serve,
//! and joins their responses.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::RawObject;

/// Most entries of a list that is split; nodes refuse more.
pub const ENTRIES_MAX: usize = 2048;
/// Most entries of a part.
const PART_ENTRIES_MAX: usize = 32;
/// Most bytes of a part's entries, unless one entry alone has more.
const PART_BYTES_MAX: usize = 32 * 1024;

/// What the entries of a list are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// `input` of an embeddings request.
    Inputs,
    /// `documents` of a rerank request.
    Documents,
}

impl ListKind {
    fn field(self) -> &'static str {
        match self {
            Self::Inputs => "input",
            Self::Documents => "documents",
        }
    }
}

/// How to split a request body. Positions are bytes in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    kind: ListKind,
    /// The list with its brackets.
    list: Range<usize>,
    parts: Vec<Part>,
    /// Most results that the client wants.
    top_n: usize,
}

/// A part of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// Number of entries before it.
    first: usize,
    entries: usize,
    bytes: Range<usize>,
}

impl Split {
    /// How to split a request body; `None` if it has to be sent as it is: its list is short, or a
    /// node would refuse it.
    ///
    /// ```
    /// use inference_protocol::openai::split::{ListKind, Split};
    ///
    /// let body = format!(r#"{{"input":[{}"a"],"model":"m"}}"#, r#""a","#.repeat(32));
    /// let split = Split::of(ListKind::Inputs, body.as_bytes()).unwrap();
    /// assert_eq!(split.len(), 2);
    /// assert_eq!(split.body(body.as_bytes(), 1), br#"{"input":["a"],"model":"m"}"#);
    /// ```
    pub fn of(kind: ListKind, body: &[u8]) -> Option<Self> {
        let object = RawObject::parse(body).ok()?;
        let mut lists = object.fields().filter(|field| field.name == kind.field());
        let (list, None) = (lists.next()?, lists.next()) else { return None };
        let at = |part: &str| part.as_ptr().addr() - body.as_ptr().addr();
        let start = at(list.value);
        let Entries(entries) = serde_json::from_str(list.value).ok()?;
        let entry = |raw: &RawValue| at(raw.get())..at(raw.get()) + raw.get().len();
        let entries: Vec<Range<usize>> = entries?.into_iter().map(entry).collect();
        let parts = parts(&entries);
        let top_n = match kind {
            ListKind::Inputs => entries.len(),
            ListKind::Documents => object.read::<TopN>().ok()?.top_n.unwrap_or(entries.len()),
        };
        let list = start..start + list.value.len();
        (parts.len() > 1 && top_n > 0).then_some(Self { kind, list, parts, top_n })
    }

    /// Number of parts.
    #[expect(clippy::len_without_is_empty, reason = "there are always two at least")]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Which entries of the list are in a part.
    pub fn entries(&self, part: usize) -> Range<usize> {
        self.parts.get(part).map_or(0..0, |part| part.first..part.first + part.entries)
    }

    /// The body of the request for a part.
    pub fn body(&self, body: &[u8], part: usize) -> Vec<u8> {
        let slice = |range: Range<usize>| body.get(range).unwrap_or_default();
        let entries = self.parts.get(part).map_or(0..0, |part| part.bytes.clone());
        let (before, after) = (slice(0..self.list.start), slice(self.list.end..body.len()));
        [before, b"[", slice(entries), b"]", after].concat()
    }

    /// Joins the responses to all parts, in order.
    ///
    /// # Errors
    /// A response is not one to its part.
    pub fn join(&self, responses: &[impl AsRef<[u8]>]) -> Result<Vec<u8>, NotJoined> {
        if responses.len() != self.parts.len() {
            return Err(NotJoined);
        }
        let parts = self.parts.iter().zip(responses.iter().map(AsRef::as_ref));
        let joined = match self.kind {
            ListKind::Inputs => join_embeddings(parts),
            ListKind::Documents => join_scores(parts, self.top_n),
        };
        joined?.ok_or(NotJoined)
    }
}

/// A response is not one to a part of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotJoined;

/// Groups neighbors. Small parts balance nodes of different speed, and cost little when one fails.
fn parts(entries: &[Range<usize>]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let fits = |part: &Part| {
            part.entries < PART_ENTRIES_MAX && entry.end - part.bytes.start <= PART_BYTES_MAX
        };
        match parts.last_mut().filter(|part| fits(part)) {
            Some(part) => {
                part.entries += 1;
                part.bytes.end = entry.end;
            }
            None => parts.push(Part { first: index, entries: 1, bytes: entry.clone() }),
        }
    }
    parts
}

#[derive(Deserialize)]
struct TopN {
    top_n: Option<usize>,
}

/// The entries of a list. `None` for a value that is no list, has more than [`ENTRIES_MAX`]
/// entries, or contains numbers: a list of tokens is one entry.
struct Entries<'a>(Option<Vec<&'a RawValue>>);

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EntriesVisitor).map(Self)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Option<Vec<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = list.next_element::<&RawValue>()? {
            let is_number = entry.get().starts_with(|c: char| c == '-' || c.is_ascii_digit());
            if is_number || entries.len() == ENTRIES_MAX {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(None);
            }
            entries.push(entry);
        }
        Ok(Some(entries))
    }
}

/// The response to a part. Numbers are kept as written: a number that is read and written again may
/// change.
#[derive(Deserialize)]
struct EmbeddingsPart<'a> {
    #[serde(borrow)]
    data: Vec<Embedding<'a>>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    usage: Option<TokenCounts>,
}

#[derive(Deserialize, Serialize)]
struct Embedding<'a> {
    #[serde(skip_deserializing, default = "embedding")]
    object: &'static str,
    index: usize,
    #[serde(borrow)]
    embedding: &'a RawValue,
}

fn embedding() -> &'static str {
    "embedding"
}

#[derive(Debug, Clone, Copy, Default, Deserialize, Serialize)]
struct TokenCounts {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    total_tokens: u64,
}

impl TokenCounts {
    fn add(&mut self, other: Option<Self>) {
        let other = other.unwrap_or_default();
        self.prompt_tokens = self.prompt_tokens.saturating_add(other.prompt_tokens);
        self.total_tokens = self.total_tokens.saturating_add(other.total_tokens);
    }
}

#[derive(Serialize)]
struct Embeddings<'a> {
    object: &'static str,
    data: Vec<Embedding<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a RawValue>,
    usage: TokenCounts,
}

type Joined = Result<Option<Vec<u8>>, NotJoined>;

fn join_embeddings<'a>(parts: impl Iterator<Item = (&'a Part, &'a [u8])>) -> Joined {
    let mut joined =
        Embeddings { object: "list", data: Vec::new(), model: None, usage: TokenCounts::default() };
    for (part, response) in parts {
        let mut response: EmbeddingsPart<'a> =
            serde_json::from_slice(response).map_err(|_| NotJoined)?;
        response.data.sort_by_key(|entry| entry.index);
        let is_complete = response.data.iter().map(|entry| entry.index).eq(0..part.entries);
        if !is_complete {
            return Err(NotJoined);
        }
        let moved = |entry: Embedding<'a>| Embedding { index: part.first + entry.index, ..entry };
        joined.data.extend(response.data.into_iter().map(moved));
        joined.model = joined.model.or(response.model);
        joined.usage.add(response.usage);
    }
    Ok(serde_json::to_vec(&joined).ok())
}

#[derive(Deserialize)]
struct ScoresPart<'a> {
    #[serde(borrow)]
    results: Vec<Score<'a>>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    usage: Option<TokenCounts>,
}

#[derive(Deserialize, Serialize)]
struct Score<'a> {
    index: usize,
    #[serde(borrow)]
    relevance_score: &'a RawValue,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    document: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Scores<'a> {
    object: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a RawValue>,
    results: Vec<Score<'a>>,
    usage: TokenCounts,
}

fn join_scores<'a>(parts: impl Iterator<Item = (&'a Part, &'a [u8])>, top_n: usize) -> Joined {
    let mut ranked: Vec<(f64, Score<'a>)> = Vec::new();
    let (mut model, mut usage) = (None, TokenCounts::default());
    for (part, response) in parts {
        let response: ScoresPart<'a> = serde_json::from_slice(response).map_err(|_| NotJoined)?;
        let is_complete = response.results.len() == part.entries.min(top_n)
            && response.results.iter().all(|result| result.index < part.entries);
        if !is_complete {
            return Err(NotJoined);
        }
        for score in response.results {
            let value = score.relevance_score.get().parse().map_err(|_| NotJoined)?;
            ranked.push((value, Score { index: part.first + score.index, ..score }));
        }
        model = model.or(response.model);
        usage.add(response.usage);
    }
    ranked.sort_by(|(a, x), (b, y)| b.total_cmp(a).then(x.index.cmp(&y.index)));
    let results = ranked.into_iter().map(|(_, score)| score).take(top_n).collect();
    Ok(serde_json::to_vec(&Scores { object: "list", model, results, usage }).ok())
}

#[cfg(test)]
mod tests;
