//! The request fields that a gateway uses, read in one pass over the body. A duplicate field is an
//! error: parsers disagree on which of the two counts.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::ParseError;
use super::numbers::whole_float;
use user::{Metadata, Text};

mod user;

/// Maximum choices per prompt: `n`.
pub const CHOICES_MAX: u64 = 16;
/// Maximum choices of a text completion: prompts times `n`.
pub const TEXT_CHOICES_MAX: u64 = 128;

/// The fields of any generation request that the gateway routes by.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
pub struct RoutingFields {
    /// The model's name.
    pub model: String,
    /// Stream the response.
    #[serde(default)]
    pub stream: Option<bool>,
    /// OpenAI's name for the priority.
    #[serde(default)]
    pub service_tier: Option<String>,
    #[serde(default, alias = "n_predict")]
    #[schemars(skip)]
    max_tokens: Count,
    #[serde(default)]
    #[schemars(skip)]
    max_completion_tokens: Count,
    #[serde(default, alias = "n_cmpl")]
    #[schemars(skip)]
    n: Count,
    #[serde(default)]
    #[schemars(skip)]
    best_of: Count,
    #[serde(default)]
    #[schemars(skip)]
    prompt: Entries,
    #[serde(default)]
    #[schemars(skip)]
    input: Entries,
    #[serde(default)]
    #[schemars(skip)]
    documents: Entries,
    #[serde(default, alias = "n_probs")]
    #[schemars(skip)]
    logprobs: Option<IgnoredAny>,
    #[serde(default)]
    #[schemars(skip)]
    echo: Option<IgnoredAny>,
    #[serde(default)]
    #[schemars(skip)]
    safety_identifier: Text,
    #[serde(default)]
    #[schemars(skip)]
    user: Text,
    #[serde(default)]
    #[schemars(skip)]
    metadata: Metadata,
}

/// How much a request asks to generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Maximum tokens per choice, if the request limits them.
    pub tokens_max: Option<u64>,
    /// The highest limit in any of its fields, and that field's name: a server may honor either.
    pub highest: Option<(u64, &'static str)>,
    /// Number of choices: prompts times `n`.
    pub choices: u64,
}

impl RoutingFields {
    /// How much a chat request asks to generate.
    ///
    /// # Errors
    /// A field is not an integer, or is out of range.
    pub fn chat_lengths(&self) -> Result<Lengths, Invalid> {
        let newer = self.max_completion_tokens.length("max_completion_tokens")?;
        let older = self.max_tokens.length("max_tokens")?;
        let named = [(newer, "max_completion_tokens"), (older, "max_tokens")];
        let named = named.into_iter().filter_map(|(length, name)| Some((length?, name)));
        let highest = named.max_by_key(|(length, _)| *length);
        Ok(Lengths { tokens_max: newer.or(older), highest, choices: self.n()? })
    }

    /// How much a text completion request asks to generate.
    ///
    /// # Errors
    /// A field is not an integer, or is out of range.
    pub fn text_lengths(&self) -> Result<Lengths, Invalid> {
        let tokens_max = match self.max_tokens {
            // It computes the prompt only.
            Count::Integer(0) => Some(0),
            count => count.length("max_tokens")?,
        };
        let n = self.n()?;
        if self.best_of.integer("best_of")?.is_some_and(|best_of| best_of != n) {
            return Err(invalid_value("best_of", "must be the same as n"));
        }
        let choices = self.prompt.0.max(1).saturating_mul(n);
        if choices > TEXT_CHOICES_MAX {
            let message = format!("prompts times n must be at most {TEXT_CHOICES_MAX}");
            return Err(Invalid::Value(ParseError { message, param: Some("prompt".into()) }));
        }
        let highest = tokens_max.map(|length| (length, "max_tokens"));
        Ok(Lengths { tokens_max, highest, choices })
    }

    /// Number of separate inputs of an embeddings request.
    pub fn inputs(&self) -> u64 {
        self.input.0
    }

    /// Number of documents of a rerank request.
    pub fn documents(&self) -> u64 {
        self.documents.0
    }

    /// True if the request sets `logprobs`, which makes each token of the response much larger.
    pub fn has_logprobs(&self) -> bool {
        self.logprobs.is_some()
    }

    /// True if the request sets `echo`: the response may contain its prompts.
    pub fn has_echo(&self) -> bool {
        self.echo.is_some()
    }

    /// The id of the client's own user, and the field that it is from: `safety_identifier`, `user`
    /// or `metadata.user_id`, in this order. Empty ids and values that are no strings do not count.
    pub fn user_id(&self) -> Option<(&'static str, &str)> {
        let named = [
            ("safety_identifier", self.safety_identifier.get()),
            ("user", self.user.get()),
            ("metadata.user_id", self.metadata.user_id()),
        ];
        let mut named = named.into_iter().filter_map(|(name, id)| Some((name, id?)));
        named.find(|(_, id)| !id.is_empty())
    }

    fn n(&self) -> Result<u64, Invalid> {
        let n = self.n.integer("n")?.unwrap_or(1);
        match (1..=CHOICES_MAX).contains(&n) {
            true => Ok(n),
            false => Err(invalid_value("n", &format!("must be 1 to {CHOICES_MAX}"))),
        }
    }
}

fn invalid_value(name: &str, expected: &str) -> Invalid {
    Invalid::Value(ParseError { message: format!("{name} {expected}"), param: Some(name.into()) })
}

/// A non-negative integer, also written as a float such as `20.0`. Any other value is recorded as
/// wrong and not kept: some servers accept a string such as `"9000"` as a number.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Count {
    #[default]
    Absent,
    Integer(u64),
    /// Not an integer; its value if it is a number.
    Invalid(Option<f64>),
}

impl Count {
    fn integer(self, name: &str) -> Result<Option<u64>, Invalid> {
        let number = match self {
            Self::Absent => return Ok(None),
            Self::Integer(number) if number <= u64::from(u32::MAX) => return Ok(Some(number)),
            Self::Integer(number) => Some(number as f64),
            Self::Invalid(number) => number,
        };
        let mut message =
            format!("invalid value for '{name}': expected a whole number, at most {}", u32::MAX);
        message += &number.map_or(String::new(), |number| format!(", not {number}"));
        Err(Invalid::Type(ParseError { message, param: Some(name.into()) }))
    }

    /// A maximum of tokens; -1 is none.
    fn length(self, name: &str) -> Result<Option<u64>, Invalid> {
        // The same words as a node's.
        let out_of_range = |number: f64| {
            let most = u32::MAX;
            invalid_value(name, &format!("must be 1 to {most}, or -1 for no limit, not {number}"))
        };
        match self {
            Self::Invalid(Some(-1.0)) => return Ok(None),
            Self::Invalid(Some(number)) if number < 0.0 && number.fract() == 0.0 => {
                return Err(out_of_range(number));
            }
            _ => {}
        }
        match self.integer(name)? {
            Some(0) => Err(invalid_value(name, "must be at least 1, or -1 for no limit")),
            length => Ok(length),
        }
    }
}

/// Why a field is invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalid {
    /// Wrong type.
    Type(ParseError),
    /// Wrong value.
    Value(ParseError),
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(KindVisitor)? {
            Kind::Null => Self::Absent,
            Kind::Integer(number) => Self::Integer(number),
            Kind::Number(number) => match whole_float(number).map(u64::try_from) {
                Some(Ok(whole)) => Self::Integer(whole),
                _ => Self::Invalid(Some(number)),
            },
            Kind::Text | Kind::Other | Kind::List(_) => Self::Invalid(None),
        })
    }
}

/// Number of separate texts in a field: one string, a list of strings or objects, or a list of
/// lists of token ids. A plain list of token ids is one text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Entries(u64);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(KindVisitor)? {
            Kind::Null => Self(0),
            Kind::List(entries) => Self(entries),
            Kind::Integer(_) | Kind::Number(_) | Kind::Text | Kind::Other => Self(1),
        })
    }
}

/// The kind of a JSON value, without its contents.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Null,
    Integer(u64),
    /// Negative, or with a fraction or an exponent.
    Number(f64),
    Text,
    /// A list of this many texts.
    List(u64),
    Other,
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Kind, E> {
        Ok(Kind::Other)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Kind, E> {
        Ok(Kind::Integer(number))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Kind, E> {
        Ok(Kind::Number(number as f64))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Kind, E> {
        Ok(Kind::Number(number))
    }

    fn visit_str<E>(self, _: &str) -> Result<Kind, E> {
        Ok(Kind::Text)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Kind::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Kind, A::Error> {
        let (mut entries, mut has_numbers) = (0, false);
        while let Some(Entry { is_number }) = list.next_element()? {
            entries += u64::from(!is_number);
            has_numbers |= is_number;
        }
        Ok(Kind::List(entries + u64::from(has_numbers)))
    }
}

/// An entry of a list.
struct Entry {
    is_number: bool,
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seen = deserializer.deserialize_any(KindVisitor)?;
        Ok(Self { is_number: matches!(seen, Kind::Integer(_) | Kind::Number(_)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::parse;

    fn name(wrong: Invalid) -> Option<String> {
        let (Invalid::Type(error) | Invalid::Value(error)) = wrong;
        error.param
    }

    fn routed(fields: &str) -> RoutingFields {
        parse(format!(r#"{{"model":"m"{fields}}}"#).as_bytes()).unwrap()
    }

    #[test]
    fn a_length_is_a_whole_number_and_nothing_that_looks_like_one() {
        for value in [
            "-2",
            "-1.5",
            "\"9000\"",
            "9000.5",
            "0",
            "true",
            "[9]",
            "{\"a\":1}",
            "1e99",
            "4294967296",
            "99999999999999999999",
        ] {
            for field in ["max_tokens", "max_completion_tokens"] {
                let wrong = routed(&format!(",\"{field}\":{value}")).chat_lengths().unwrap_err();
                assert_eq!(name(wrong).as_deref(), Some(field), "{value}");
            }
            if value == "0" {
                continue;
            }
            let wrong = routed(&format!(",\"max_tokens\":{value}")).text_lengths().unwrap_err();
            assert_eq!(name(wrong).as_deref(), Some("max_tokens"), "{value}");
        }
        let none = Lengths { tokens_max: None, highest: None, choices: 1 };
        assert_eq!(routed(",\"max_tokens\":-1,\"n\":1.0").chat_lengths(), Ok(none));
        assert_eq!(routed(",\"max_tokens\":-1.0").text_lengths(), Ok(none));
        let nothing = routed(",\"max_tokens\":0").text_lengths().unwrap();
        assert_eq!(nothing.tokens_max, Some(0), "a node computes the prompt");
        for same in ["9000.0", "9e3"] {
            let lengths = routed(&format!(",\"max_tokens\":{same}")).text_lengths().unwrap();
            assert_eq!(lengths.tokens_max, Some(9000));
        }
        let by_alias = routed(",\"n_predict\":9").chat_lengths().unwrap();
        assert_eq!(by_alias.tokens_max, Some(9));
        assert_eq!(routed("").chat_lengths(), Ok(none));
        assert_eq!(routed(",\"max_tokens\":null,\"n\":null").text_lengths(), Ok(none));
    }

    #[test]
    fn the_newer_length_counts_and_the_highest_is_known() {
        let lengths = routed(",\"max_tokens\":9000,\"max_completion_tokens\":5,\"n\":3");
        let highest = Some((9000, "max_tokens"));
        assert_eq!(
            lengths.chat_lengths(),
            Ok(Lengths { tokens_max: Some(5), highest, choices: 3 })
        );
        assert_eq!(lengths.text_lengths().unwrap().tokens_max, Some(9000), "it has no newer name");
    }

    #[test]
    fn a_field_that_occurs_twice_is_refused() {
        for field in ["max_tokens", "max_completion_tokens", "n", "stream", "best_of", "prompt"] {
            let body = format!(r#"{{"model":"m","{field}":null,"{field}":null}}"#);
            let wrong = parse::<RoutingFields>(body.as_bytes()).unwrap_err();
            assert!(wrong.message.contains("occurs twice"), "{}", wrong.message);
        }
    }

    #[test]
    fn choices_are_prompts_times_n() {
        let choices = |fields: &str| routed(fields).text_lengths().map(|lengths| lengths.choices);
        assert_eq!(choices(r#","prompt":"a","n":2"#), Ok(2));
        assert_eq!(choices(r#","prompt":["a","b"],"n":2"#), Ok(4));
        assert_eq!(choices(r#","prompt":[1,2,3],"n":2"#), Ok(2));
        assert_eq!(choices(r#","prompt":[[1,2],[3]]"#), Ok(2));
        for (fields, param) in [
            (r#","prompt":["a","b","c","d","e","f","g","h","i"],"n":15"#, "prompt"),
            (r#","n":0"#, "n"),
            (r#","n":17"#, "n"),
            (r#","n":"2""#, "n"),
            (r#","n":2,"best_of":3"#, "best_of"),
            (r#","best_of":2.5"#, "best_of"),
        ] {
            let wrong = choices(fields).unwrap_err();
            assert_eq!(name(wrong).as_deref(), Some(param), "{fields}");
        }
        assert_eq!(choices(r#","n":2,"best_of":2"#), Ok(2));
    }

    #[test]
    fn a_user_is_named_by_a_text_in_one_of_three_fields_and_nothing_else_is_refused() {
        let all = r#","metadata":{"user_id":"c"},"user":"b","safety_identifier":"a""#;
        assert_eq!(routed(all).user_id(), Some(("safety_identifier", "a")));
        let second = r#","metadata":{"user_id":"c"},"user":"b","safety_identifier":null"#;
        assert_eq!(routed(second).user_id(), Some(("user", "b")));
        let third = r#","metadata":{"session":[1,{}],"user_id":"c"},"user":"""#;
        assert_eq!(routed(third).user_id(), Some(("metadata.user_id", "c")));
        for value in
            ["null", "7", "-7", "0.5", "true", "[\"x\"]", "{\"user_id\":{\"user_id\":\"x\"}}"]
        {
            let fields = ["safety_identifier", "user", "metadata"];
            let fields = fields.map(|field| format!(",\"{field}\":{value}")).concat();
            assert_eq!(routed(&fields).user_id(), None, "{value}");
        }
    }

    #[test]
    fn inputs_and_documents_are_counted() {
        assert_eq!(routed(r#","input":"a""#).inputs(), 1);
        assert_eq!(routed(r#","input":["a","b",""]"#).inputs(), 3);
        assert_eq!(routed(r#","input":[1,2]"#).inputs(), 1);
        assert_eq!(routed(r#","input":[[1],[2,3]]"#).inputs(), 2);
        assert_eq!(routed(r#","documents":["a",{"text":"b"}]"#).documents(), 2);
        assert_eq!(routed("").documents(), 0);
    }
}
