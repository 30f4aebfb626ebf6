//! Parameters that chat and text completions share: ranges, defaults, rejections.

use std::ops::RangeInclusive;
use std::time::Duration;

use inference_core::types::request::{
    BIASES_MAX, LOGPROBS_MAX, LineRules, Options, RECENT_TOKENS_MAX, STOP_BYTES_MAX, STOPS_MAX,
    Sampling, SamplingDefaults, SlotName, Token, Xtc,
};
use inference_protocol::openai::{
    BiasFields, CHOICES_MAX, Endpoint, RawObject, SamplingFields, first_unsupported,
};
use serde_json::Value;

use crate::serve::stream::TimingsMode;
use crate::types::error::Error;

mod dry;
mod lists;

/// Checked parameters.
#[derive(Debug, PartialEq)]
pub(super) struct Parameters {
    /// Sampling and stop options, without logprobs.
    pub(super) options: Options,
    /// Number of choices.
    pub(super) n: u32,
    /// Which parts of the response have timings.
    pub(super) timings: TimingsMode,
    /// True if a stream tells how much of the prompt is computed.
    pub(super) shows_prefill: bool,
}

/// What a request gets that does not set a parameter.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Absent {
    /// Seed of the response.
    pub(super) seed: u64,
    /// Maximum tokens.
    pub(super) max_tokens: Option<u32>,
    /// Parameters that the model recommends.
    pub(super) sampling: SamplingDefaults,
}

/// Checks the fields that both endpoints share.
pub(super) fn check(fields: SamplingFields, absent: &Absent) -> Result<Parameters, Error> {
    let n = fields.n.unwrap_or(1);
    if !(1..=CHOICES_MAX).contains(&n.into()) {
        return Err(invalid("n", &format!("n must be 1 to {CHOICES_MAX}")));
    }
    let max_tokens = match fields.max_tokens {
        None => absent.max_tokens,
        given => limit("max_tokens", given)?,
    };
    let options = Options {
        max_tokens,
        stop: check_stop(fields.stop.as_ref().map_or(&[], |s| s.as_slice()))?,
        stop_tokens: lists::stop_tokens(fields.stop_token_ids.as_deref())?,
        lines: line_rules(&fields)?,
        sampling: check_sampling(&fields, absent)?,
        logprobs: None,
        prompt_logprobs: false,
        reasoning_max: None,
        prediction: None,
        uses_cache: fields.cache_prompt.unwrap_or(true),
        prefix_group: None,
        reports_prefill: false,
        slot: Some(slot_name(fields.id_slot)),
        usage_max: None,
    };
    let timings = match (fields.timings_per_token, fields.timings) {
        (Some(true), _) => TimingsMode::EveryChunk,
        (_, Some(true)) => TimingsMode::AtEnd,
        _ => TimingsMode::Off,
    };
    Ok(Parameters { options, n, timings, shows_prefill: fields.return_progress == Some(true) })
}

/// A negative number is any slot, as in llama-server.
fn slot_name(id: Option<i64>) -> SlotName {
    match id {
        Some(id @ 0..) => SlotName::Number(u32::try_from(id).unwrap_or(u32::MAX)),
        _ => SlotName::Own,
    }
}

/// A maximum of tokens; -1 and absent are none.
pub(super) fn limit(param: &'static str, tokens: Option<i64>) -> Result<Option<u32>, Error> {
    match tokens {
        None | Some(-1) => Ok(None),
        Some(n) => u32::try_from(n).ok().filter(|n| *n > 0).map(Some).ok_or_else(|| {
            let most = u32::MAX;
            invalid(param, &format!("{param} must be 1 to {most}, or -1 for no limit, not {n}"))
        }),
    }
}

/// What applies where neither the request nor the model file says anything: llama.cpp's defaults
/// (`common_params_sampling` in its `common.h`). Small models write nonsense without them.
const TEMPERATURE: f32 = 0.8;
const TOP_K: u32 = 40;
const TOP_P: f32 = 0.95;
const MIN_P: f32 = 0.05;

fn check_sampling(fields: &SamplingFields, absent: &Absent) -> Result<Sampling, Error> {
    let defaults = &absent.sampling;
    let temperature = fields.temperature.or(defaults.temperature);
    let top_k = fields.top_k.map(|k| u32::try_from(k).unwrap_or(0));
    let repeat_penalty = fields.repeat_penalty.or(defaults.repeat_penalty);
    let repeat_last_n = match (fields.repeat_last_n, defaults.repeat_last_n) {
        (None, Some(tokens)) => tokens,
        (tokens, _) => recent(tokens)?,
    };
    Ok(Sampling {
        temperature: range("temperature", temperature, TEMPERATURE, 0.0..=2.0)?,
        top_k: top_k.or(defaults.top_k).unwrap_or(TOP_K),
        top_p: range("top_p", fields.top_p.or(defaults.top_p), TOP_P, 0.0..=1.0)?,
        min_p: range("min_p", fields.min_p.or(defaults.min_p), MIN_P, 0.0..=1.0)?,
        typical_p: range("typical_p", fields.typical_p, 1.0, 0.0..=1.0)?,
        repeat_penalty: range("repeat_penalty", repeat_penalty, 1.0, 0.1..=10.0)?,
        repeat_last_n,
        frequency_penalty: range("frequency_penalty", fields.frequency_penalty, 0.0, -2.0..=2.0)?,
        presence_penalty: range("presence_penalty", fields.presence_penalty, 0.0, -2.0..=2.0)?,
        // Any smaller number turns it off, as in llama.cpp.
        top_n_sigma: range("top_n_sigma", fields.top_n_sigma, 0.0, f32::MIN..=f32::MAX)?.max(0.0),
        xtc: Xtc {
            probability: range("xtc_probability", fields.xtc_probability, 0.0, 0.0..=1.0)?,
            threshold: range("xtc_threshold", fields.xtc_threshold, 0.1, 0.0..=1.0)?,
        },
        dry: dry::check(fields)?,
        min_tokens: fields.min_tokens.unwrap_or(0),
        bad_words: lists::bad_words(fields.bad_words.as_deref())?,
        allowed: lists::allowed_tokens(fields.allowed_token_ids.as_deref())?,
        bias: fields.logit_bias.as_ref().map_or(Ok(Vec::new()), biases)?,
        ignore_end: fields.ignore_eos.unwrap_or(false),
        // A negative seed is as valid as any other.
        seed: fields.seed.map_or(absent.seed, |s| s as u64),
    })
}

/// Most spaces and tabs that a line may have to begin with.
const INDENT_MAX: u32 = 1024;

fn line_rules(fields: &SamplingFields) -> Result<LineRules, Error> {
    let indent_min = fields.n_indent.unwrap_or(0);
    if indent_min > INDENT_MAX {
        return Err(invalid("n_indent", &format!("n_indent must be 0 to {INDENT_MAX}")));
    }
    let time_max = match fields.t_max_predict_ms {
        None | Some(-1 | 0) => None,
        Some(ms) => Some(u64::try_from(ms).map_err(|_| {
            let message = "t_max_predict_ms must be milliseconds, or 0 or -1 for no limit";
            invalid("t_max_predict_ms", message)
        })?),
    };
    Ok(LineRules { indent_min, time_max: time_max.map(Duration::from_millis) })
}

fn check_stop(stop: &[String]) -> Result<Vec<String>, Error> {
    if stop.len() > STOPS_MAX {
        return Err(invalid("stop", &format!("stop takes at most {STOPS_MAX} strings")));
    }
    if stop.iter().any(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
        let message = format!("a stop string must have 1 to {STOP_BYTES_MAX} bytes");
        return Err(invalid("stop", &message));
    }
    Ok(stop.to_vec())
}

/// -1 means all tokens.
fn recent(tokens: Option<i64>) -> Result<u32, Error> {
    match tokens {
        None => Ok(Sampling::GREEDY.repeat_last_n),
        Some(-1) => Ok(RECENT_TOKENS_MAX),
        Some(n) => u32::try_from(n).ok().filter(|n| *n <= RECENT_TOKENS_MAX).ok_or_else(|| {
            let message = format!("repeat_last_n must be -1 (all) to {RECENT_TOKENS_MAX}");
            invalid("repeat_last_n", &message)
        }),
    }
}

fn biases(fields: &BiasFields) -> Result<Vec<(Token, f32)>, Error> {
    let (count, read): (usize, Option<Vec<_>>) = match fields {
        BiasFields::Map(map) => {
            let pair = |(token, shift): (&String, &Value)| bias(token.parse().ok()?, shift);
            (map.len(), map.iter().map(pair).collect())
        }
        BiasFields::Pairs(pairs) => {
            let pair = |(token, shift): &(Value, Value)| bias(token.as_u64()?, shift);
            (pairs.len(), pairs.iter().map(pair).collect())
        }
    };
    if count > BIASES_MAX {
        return Err(invalid(
            "logit_bias",
            &format!("logit_bias takes at most {BIASES_MAX} tokens"),
        ));
    }
    let message = "logit_bias maps token ids to numbers from -100 to 100, or to false";
    read.ok_or_else(|| invalid("logit_bias", message))
}

/// -100 means never, as OpenAI documents; `false` is llama.cpp's equivalent.
fn bias(token: u64, shift: &Value) -> Option<(Token, f32)> {
    let shift = match shift {
        Value::Bool(false) => f32::NEG_INFINITY,
        other => other.as_f64().filter(|b| (-100.0..=100.0).contains(b))? as f32,
    };
    let shift = if shift <= -100.0 { f32::NEG_INFINITY } else { shift };
    Some((Token::try_from(token).ok()?, shift))
}

/// Checks the number of most likely tokens to report.
pub(super) fn top_logprobs(param: &'static str, count: u32) -> Result<u32, Error> {
    match count {
        0..=LOGPROBS_MAX => Ok(count),
        _ => Err(invalid(param, &format!("{param} must be 0 to {LOGPROBS_MAX}"))),
    }
}

/// Rejects a field that would change the response and that we do not honor.
pub(super) fn refuse_unsupported(endpoint: Endpoint, body: &RawObject<'_>) -> Result<(), Error> {
    match first_unsupported(endpoint, body)? {
        Some(row) => Err(invalid(row.field, &row.refusal())),
        None => Ok(()),
    }
}

fn range(
    param: &'static str,
    value: Option<f32>,
    default: f32,
    allowed: RangeInclusive<f32>,
) -> Result<f32, Error> {
    let value = value.unwrap_or(default);
    if allowed.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (allowed.start(), allowed.end());
    let message = match allowed == (f32::MIN..=f32::MAX) {
        true => format!("{param} must be a finite number"),
        false => format!("{param} must be {least} to {most}, not {value}"),
    };
    Err(invalid(param, &message))
}

/// An error that names its parameter.
pub(super) fn invalid(param: &'static str, message: &str) -> Error {
    Error::Invalid { param, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_json(json: &str) -> Result<Parameters, Error> {
        let body = RawObject::parse(json.as_bytes())?;
        refuse_unsupported(Endpoint::Chat, &body)?;
        check(body.read()?, &Absent { seed: 42, ..Absent::default() })
    }

    fn sampling(json: &str) -> Sampling {
        check_json(json).unwrap().options.sampling
    }

    #[test]
    fn absent_and_null_are_the_defaults() {
        let expected = Sampling {
            temperature: TEMPERATURE,
            top_k: TOP_K,
            top_p: TOP_P,
            min_p: MIN_P,
            seed: 42,
            ..Sampling::GREEDY
        };
        assert_eq!(sampling("{}"), expected);
        assert_eq!(sampling(r#"{"temperature":null,"stop":null,"mirostat":null}"#), expected);
    }

    #[test]
    fn the_model_recommends_and_the_request_decides() {
        let model = SamplingDefaults {
            temperature: Some(0.5),
            top_k: Some(20),
            top_p: Some(0.75),
            min_p: Some(0.25),
            repeat_penalty: Some(1.5),
            repeat_last_n: Some(9),
        };
        let of = |json: &str| {
            let body = RawObject::parse(json.as_bytes()).unwrap();
            let absent = Absent { seed: 1, sampling: model, max_tokens: None };
            check(body.read().unwrap(), &absent).unwrap().options.sampling
        };
        let recommended = Sampling {
            temperature: 0.5,
            top_k: 20,
            top_p: 0.75,
            min_p: 0.25,
            repeat_penalty: 1.5,
            repeat_last_n: 9,
            seed: 1,
            ..Sampling::GREEDY
        };
        assert_eq!(of("{}"), recommended);
        assert_eq!(of(r#"{"top_p":null}"#), recommended);
        let asked = r#"{"temperature":1,"top_k":-1,"top_p":1,"min_p":0,"repeat_penalty":1,
            "repeat_last_n":64}"#;
        assert_eq!(of(asked), Sampling { temperature: 1.0, seed: 1, ..Sampling::GREEDY });
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        for (json, param) in [
            (r#"{"n":0}"#, "n"),
            (r#"{"n":17}"#, "n"),
            (r#"{"temperature":2.1}"#, "temperature"),
            (r#"{"temperature":-0.1}"#, "temperature"),
            (r#"{"top_p":1.5}"#, "top_p"),
            (r#"{"typical_p":1.5}"#, "typical_p"),
            (r#"{"repeat_penalty":0}"#, "repeat_penalty"),
            (r#"{"repeat_last_n":-2}"#, "repeat_last_n"),
            (r#"{"max_tokens":0}"#, "max_tokens"),
            (r#"{"max_tokens":-2}"#, "max_tokens"),
            (r#"{"n_predict":0}"#, "max_tokens"),
            (r#"{"xtc_probability":1.5}"#, "xtc_probability"),
            (r#"{"xtc_threshold":-0.5}"#, "xtc_threshold"),
            (r#"{"top_n_sigma":1e39}"#, "top_n_sigma"),
            (r#"{"dry_multiplier":-1}"#, "dry_multiplier"),
            (r#"{"dry_base":1000}"#, "dry_base"),
            (r#"{"dry_penalty_last_n":-2}"#, "dry_penalty_last_n"),
            (r#"{"dry_sequence_breakers":[]}"#, "dry_sequence_breakers"),
            (r#"{"dry_sequence_breakers":[""]}"#, "dry_sequence_breakers"),
            (r#"{"bad_words":[""]}"#, "bad_words"),
            (r#"{"frequency_penalty":2.5}"#, "frequency_penalty"),
            (r#"{"presence_penalty":-3}"#, "presence_penalty"),
            (r#"{"logit_bias":{"1":500}}"#, "logit_bias"),
            (r#"{"logit_bias":{"x":5}}"#, "logit_bias"),
            (r#"{"logit_bias":[[-1,5]]}"#, "logit_bias"),
            (r#"{"stop":""}"#, "stop"),
            (r#"{"n_indent":1025}"#, "n_indent"),
            (r#"{"t_max_predict_ms":-2}"#, "t_max_predict_ms"),
        ] {
            assert_eq!(check_json(json).unwrap_err().param().as_deref(), Some(param), "{json}");
        }
    }

    #[test]
    fn an_unsupported_field_is_refused_by_name_with_what_to_use_instead() {
        let error = check_json(r#"{"mirostat":2}"#).unwrap_err();
        assert_eq!(error.param().as_deref(), Some("mirostat"));
        let said = "mirostat is not supported by this engine: use temperature, top_p or min_p";
        assert_eq!(error.to_string(), said);
        assert!(check_json(r#"{"mirostat":null,"length_penalty":1.0}"#).is_ok());
    }

    #[test]
    fn a_limit_of_minus_one_is_none_and_replaces_the_default() {
        let of = |json: &str| {
            let body = RawObject::parse(json.as_bytes()).unwrap();
            let absent = Absent { max_tokens: Some(16), ..Absent::default() };
            check(body.read().unwrap(), &absent).unwrap().options.max_tokens
        };
        assert_eq!(of("{}"), Some(16));
        assert_eq!(of(r#"{"max_tokens":null}"#), Some(16));
        assert_eq!(of(r#"{"max_tokens":-1}"#), None);
        assert_eq!(of(r#"{"n_predict":20.0}"#), Some(20));
    }

    #[test]
    fn samplers_of_llama_cpp_have_its_defaults() {
        let read = sampling(
            r#"{"dry_multiplier":0.8,"dry_base":0.5,"xtc_probability":0.5,"top_n_sigma":-1}"#,
        );
        assert_eq!((read.dry.multiplier, read.dry.base), (0.8, 1.75), "a base below 1 is ours");
        assert_eq!((read.dry.allowed_length, read.dry.last_n), (2, 64));
        assert_eq!((read.xtc.probability, read.xtc.threshold), (0.5, 0.1));
        assert_eq!(read.top_n_sigma, 0.0);
        assert_eq!(sampling(r#"{"dry_penalty_last_n":-1}"#).dry.last_n, u32::MAX);
    }

    #[test]
    fn lines_end_a_response_by_llama_servers_rules() {
        let lines = |json: &str| check_json(json).unwrap().options.lines;
        for none in ["{}", r#"{"n_indent":0,"t_max_predict_ms":-1}"#, r#"{"t_max_predict_ms":0}"#] {
            assert_eq!(lines(none), LineRules::NONE);
        }
        let time_max = Some(Duration::from_millis(500));
        let asked = lines(r#"{"n_indent":4.0,"t_max_predict_ms":500}"#);
        assert_eq!(asked, LineRules { indent_min: 4, time_max });
    }

    #[test]
    fn empty_lists_ask_for_nothing() {
        let body = r#"{"stop_token_ids":[],"bad_words":[],"allowed_token_ids":[]}"#;
        let options = check_json(body).unwrap().options;
        assert_eq!((options.sampling.allowed, options.stop_tokens), (None, Vec::new()));
    }

    #[test]
    fn biases_are_a_map_or_pairs_and_the_least_means_never() {
        let never = f32::NEG_INFINITY;
        assert_eq!(sampling(r#"{"logit_bias":{"5":-100,"6":1.5}}"#).bias, [(5, never), (6, 1.5)]);
        assert_eq!(sampling(r#"{"logit_bias":[[5,false],[6,2]]}"#).bias, [(5, never), (6, 2.0)]);
    }

    #[test]
    fn other_names_of_parameters_are_known() {
        let read = sampling(r#"{"repetition_penalty":1.2,"typ_p":0.9,"repeat_last_n":-1}"#);
        assert_eq!((read.repeat_penalty, read.typical_p), (1.2, 0.9));
        assert_eq!(read.repeat_last_n, RECENT_TOKENS_MAX);
    }

    #[test]
    fn stop_is_a_string_or_a_list() {
        let stop = |json| check_json(json).unwrap().options.stop;
        assert_eq!(stop(r#"{"stop":"a"}"#), ["a"]);
        assert_eq!(stop(r#"{"stop":["a","b"]}"#), ["a", "b"]);
    }
}
