//! PURE. Decides whether a request is traced: by sampling, or by the client's `traceparent` (W3C
//! Trace Context) if its key may force that. Also determines the position of its span.

use hyper::header::HeaderMap;
use opentelemetry::trace::{SpanId, SpanKind, TraceId};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

const TRACEPARENT: &str = "traceparent";
/// The flag that says that the client's own span is recorded.
const SAMPLED: u8 = 1;

/// Position of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// Trace id.
    pub trace: TraceId,
    /// Span id.
    pub span: SpanId,
    /// The client's span that it belongs to.
    pub parent: Option<SpanId>,
}

/// The client's span as its `traceparent` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parent {
    trace: TraceId,
    span: SpanId,
    is_sampled: bool,
}

/// Reads the `traceparent` header.
pub(crate) fn parent(headers: &HeaderMap) -> Option<Parent> {
    let mut parents = headers.get_all(TRACEPARENT).into_iter();
    let sent = parents.next().filter(|_| parents.next().is_none());
    sent.and_then(|value| parse(value.to_str().ok()?))
}

/// Position of a request's span; `None` if it is not traced. If the caller may force traces, the
/// parent's flag decides. Otherwise the ratio decides, applied to our own random number, because a
/// client chooses its own trace id. `trace` and `span` are random numbers.
pub(crate) fn sample(
    parent: Option<Parent>,
    may_force: bool,
    ratio: f64,
    trace: u128,
    span: u128,
) -> Option<Context> {
    // 0 is not a valid id.
    let span = SpanId::from((span as u64).max(1));
    let trace = TraceId::from(trace.max(1));
    let is_traced = match parent.filter(|_| may_force) {
        Some(parent) => parent.is_sampled,
        None => is_drawn(ratio, trace),
    };
    let context = match parent {
        Some(parent) => Context { trace: parent.trace, span, parent: Some(parent.span) },
        None => Context { trace, span, parent: None },
    };
    is_traced.then_some(context)
}

fn is_drawn(ratio: f64, number: TraceId) -> bool {
    let sampler = Sampler::TraceIdRatioBased(ratio);
    let drawn = sampler.should_sample(None, number, "", &SpanKind::Server, &[], &[]).decision;
    drawn == SamplingDecision::RecordAndSample
}

/// Accepts later versions, which may append fields. (The SDK's own parser accepts ids that are too
/// short.)
fn parse(text: &str) -> Option<Parent> {
    let mut parts = text.trim().splitn(5, '-');
    let version = number(parts.next()?, 2)?;
    let trace = number(parts.next()?, 32)?;
    let span = number(parts.next()?, 16)?;
    let flags = number(parts.next()?, 2)?;
    let is_known = version != 0xff && (version != 0 || parts.next().is_none());
    (is_known && trace != 0 && span != 0).then(|| Parent {
        trace: TraceId::from(trace),
        span: SpanId::from(span as u64),
        is_sampled: flags as u8 & SAMPLED != 0,
    })
}

/// Parses exactly this many lowercase hex digits.
fn number(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let is_right = text.len() == digits && is_hex;
    is_right.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn headers(values: &[&str]) -> HeaderMap {
        let pairs = values.iter().map(|v| (TRACEPARENT.parse().unwrap(), v.parse().unwrap()));
        let mut headers = HeaderMap::new();
        pairs.for_each(|(name, value): (hyper::header::HeaderName, _)| {
            headers.append(name, value);
        });
        headers
    }

    fn sent(flags: &str) -> Option<Parent> {
        parent(&headers(&[&format!("00-{TRACE}-{SPAN}-{flags}")]))
    }

    #[test]
    fn a_client_that_may_decides_for_its_own_trace() {
        for ratio in [0.0, 1.0] {
            let context = sample(sent("01"), true, ratio, 1, 2).unwrap();
            assert_eq!(context.trace.to_string(), TRACE);
            assert_eq!(context.parent.unwrap().to_string(), SPAN);
            assert_eq!(context.span, SpanId::from(2));
            assert!(sample(sent("03"), true, ratio, 1, 2).is_some());
            assert_eq!(sample(sent("00"), true, ratio, 1, 2), None);
            assert_eq!(sample(sent("02"), true, ratio, 1, 2), None);
        }
    }

    #[test]
    fn any_other_client_is_sampled_as_all_are_and_keeps_its_trace() {
        for flags in ["00", "01"] {
            let context = sample(sent(flags), false, 1.0, 1, 2).unwrap();
            assert_eq!(context.trace.to_string(), TRACE);
            assert_eq!(context.parent.unwrap().to_string(), SPAN);
            assert_eq!(sample(sent(flags), false, 0.0, 1, 2), None);
        }
        // Nor by choosing its id: the smallest ids are sampled at any ratio.
        let low = format!("00-{}1-{SPAN}-01", "0".repeat(31));
        let low = parent(&headers(&[&low]));
        assert!(low.is_some());
        assert_eq!(sample(low, false, 0.01, u128::MAX, 2), None);
    }

    #[test]
    fn what_is_no_traceparent_is_as_none() {
        let wrong = [
            String::new(),
            "00".into(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-+1"),
            format!("00-{TRACE}-{}-01", &SPAN[1..]),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
        ];
        for text in &wrong {
            assert_eq!(parse(text), None, "{text}");
        }
        let twice = format!("00-{TRACE}-{SPAN}-00");
        let context = sample(parent(&headers(&[&twice, &twice])), true, 1.0, 7, 8).unwrap();
        assert_eq!((context.trace, context.parent), (TraceId::from(7), None));
        // A later version may append fields.
        assert!(parse(&format!("01-{TRACE}-{SPAN}-01-more")).unwrap().is_sampled);
    }

    #[test]
    fn chance_decides_for_the_others() {
        let drawn = |ratio| {
            let ids =
                (0..1000u128).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
            ids.filter(|id| sample(None, false, ratio, *id, 1).is_some()).count()
        };
        assert_eq!((drawn(0.0), drawn(1.0)), (0, 1000));
        assert!((400..600).contains(&drawn(0.5)), "{}", drawn(0.5));
    }
}
