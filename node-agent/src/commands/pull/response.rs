//! PURE. What a response's head says about the file, and whether its bytes fit those that are
//! already here (RFC 9110, sections 8.8, 13.1.5, 14 and 15.5.17).

use hyper::header::{self, HeaderMap, HeaderName};

use super::part_info::PartInfo;
use super::text;

/// Maximum file size in bytes (2 TiB): beyond any model.
pub(crate) const FILE_BYTES_MAX: u64 = 2 << 40;
/// Maximum length of a stored validator.
const VALIDATOR_BYTES_MAX: usize = 1024;

/// Metadata of a file in the hub's headers, also on redirects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct HubMetadata {
    pub sha256: Option<String>,
    /// Length of the file in bytes.
    pub length: Option<u64>,
    /// The commit it is from.
    pub commit: Option<String>,
}

/// Metadata of the file that a server currently offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Entity {
    /// Length of the whole file in bytes.
    pub length: Option<u64>,
    /// A strong `ETag`, or else a `Last-Modified` that is equally reliable.
    pub validator: Option<String>,
    /// SHA-256 of the whole file.
    pub sha256: Option<String>,
}

/// What to do with the body of a response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the whole file.
    Whole(Entity),
    /// It starts where our part ends, and ends before this byte.
    Rest(u64),
    /// It does not fit the part: start over. With the reason.
    StartOver(String),
    /// It must not be used, with the reason.
    Refuse(String),
}

impl HubMetadata {
    /// Reads the hub's headers. `hub`: the response comes from the hub itself, whose `ETag` of 64
    /// hex digits is the SHA-256 of a large file.
    pub(crate) fn read(headers: &HeaderMap, hub: bool) -> Self {
        let metadata = get(headers, &HeaderName::from_static("x-linked-etag"));
        let etag = get(headers, &header::ETAG).filter(|_| hub);
        let sha256 = metadata.or(etag).and_then(|tag| text::sha256(tag.trim_matches('"')));
        let length = get(headers, &HeaderName::from_static("x-linked-size"));
        let commit = get(headers, &HeaderName::from_static("x-repo-commit"));
        let is_commit = |c: &&str| c.len() == 40 && c.bytes().all(|b| b.is_ascii_hexdigit());
        Self {
            sha256,
            length: length.and_then(number),
            commit: commit.filter(is_commit).map(Into::into),
        }
    }

    /// Merges two; earlier responses win.
    pub(crate) fn or(self, later: Self) -> Self {
        Self {
            sha256: self.sha256.or(later.sha256),
            length: self.length.or(later.length),
            commit: self.commit.or(later.commit),
        }
    }
}

/// Judges a 200 or 206 response to a request for the bytes from `from` on, of the file in `info`.
pub(crate) fn judge(
    status: u16,
    headers: &HeaderMap,
    metadata: &HubMetadata,
    resume: Option<(u64, &PartInfo)>,
) -> Verdict {
    if let Some(coding) = get(headers, &header::CONTENT_ENCODING).filter(|c| *c != "identity") {
        return Verdict::Refuse(format!(
            "the server compressed the file ({coding}), which the request excluded"
        ));
    }
    match (status, resume) {
        (200, _) => whole(headers, metadata),
        (_, None) => {
            Verdict::Refuse("the server sent part of the file (206) instead of all of it".into())
        }
        (_, Some((from, info))) => rest(headers, metadata, from, info),
    }
}

fn whole(headers: &HeaderMap, metadata: &HubMetadata) -> Verdict {
    let announced = get(headers, &header::CONTENT_LENGTH).and_then(number);
    let entity = Entity {
        length: announced.or(metadata.length),
        validator: validator(headers),
        sha256: metadata.sha256.clone(),
    };
    match (announced, metadata.length) {
        (Some(0), _) => Verdict::Refuse("the file is empty".into()),
        (Some(here), Some(there)) if here != there => Verdict::Refuse(format!(
            "the hub reports {there} bytes, but the server that sends the file reports {here}"
        )),
        _ if entity.length.is_some_and(|l| l > FILE_BYTES_MAX) => {
            Verdict::Refuse(format!("the file has more than {}", text::bytes(FILE_BYTES_MAX)))
        }
        _ => Verdict::Whole(entity),
    }
}

fn rest(headers: &HeaderMap, metadata: &HubMetadata, from: u64, info: &PartInfo) -> Verdict {
    let Some(range) = get(headers, &header::CONTENT_RANGE).and_then(content_range) else {
        return Verdict::StartOver(
            "the server sent part of the file without a valid Content-Range".into(),
        );
    };
    if range.first != from || Some(range.total) != info.length {
        return Verdict::StartOver(format!(
            "the server sent bytes {} to {} of {} instead of those from {from} on",
            range.first, range.last, range.total
        ));
    }
    let now = Entity {
        length: Some(range.total),
        validator: validator(headers),
        sha256: metadata.sha256.clone(),
    };
    if !is_same(info, &now) {
        return Verdict::StartOver("the file has changed on the server".into());
    }
    Verdict::Rest(range.last + 1)
}

/// True if the part started as the file that is offered now. Digests decide; if either is missing,
/// validators of one kind do.
fn is_same(info: &PartInfo, now: &Entity) -> bool {
    if let (Some(before), Some(now)) = (&info.sha256, &now.sha256) {
        return before == now;
    }
    match (&info.validator, &now.validator) {
        (Some(before), Some(now)) if before.starts_with('"') == now.starts_with('"') => {
            before == now
        }
        _ => true,
    }
}

/// A validator for `If-Range`: a strong `ETag`, or a `Last-Modified` at least a second older than
/// the response, so that the file cannot have changed twice within it (section 8.8.2.2).
fn validator(headers: &HeaderMap) -> Option<String> {
    let etag = get(headers, &header::ETAG)
        .filter(|tag| tag.len() >= 2 && tag.starts_with('"') && tag.ends_with('"'));
    let date = |name| httpdate::parse_http_date(get(headers, name)?).ok();
    let modified = || {
        let age = date(&header::DATE)?.duration_since(date(&header::LAST_MODIFIED)?).ok()?;
        get(headers, &header::LAST_MODIFIED).filter(|_| age.as_secs() >= 1)
    };
    etag.or_else(modified).filter(|v| v.len() <= VALIDATOR_BYTES_MAX).map(Into::into)
}

/// Length of the whole file, from the response to a request for its first byte.
pub(crate) fn whole_length(status: u16, headers: &HeaderMap) -> Option<u64> {
    match status {
        206 => get(headers, &header::CONTENT_RANGE).and_then(content_range).map(|r| r.total),
        _ => get(headers, &header::CONTENT_LENGTH).and_then(number),
    }
}

/// True if the end of the body can be distinguished from a broken connection.
pub(crate) fn has_an_end(headers: &HeaderMap, http1: bool) -> bool {
    let chunked = get(headers, &header::TRANSFER_ENCODING).is_some_and(|t| t.ends_with("chunked"));
    !http1 || chunked || headers.contains_key(header::CONTENT_LENGTH)
}

/// Seconds to wait according to `Retry-After`; a date is relative to the response's own date.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let asked = get(headers, &header::RETRY_AFTER)?;
    if let Some(seconds) = number(asked) {
        return Some(seconds);
    }
    let until = httpdate::parse_http_date(asked).ok()?;
    let from = httpdate::parse_http_date(get(headers, &header::DATE)?).ok()?;
    Some(until.duration_since(from).map_or(0, |wait| wait.as_secs()))
}

#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    total: u64,
}

/// Parses `bytes 0-9/10`; `None` for an impossible range.
fn content_range(text: &str) -> Option<Range> {
    let (range, total) = text.strip_prefix("bytes ")?.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let range = Range { first: number(first)?, last: number(last)?, total: number(total)? };
    (range.first <= range.last && range.last < range.total).then_some(range)
}

/// Parses digits only: `parse` alone accepts a sign.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

fn get<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHA: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(n, v)| (HeaderName::from_static(n), v.parse().unwrap())).collect()
    }

    fn info(validator: Option<&str>, sha256: Option<&str>) -> PartInfo {
        PartInfo {
            source: "s".into(),
            length: Some(100),
            validator: validator.map(Into::into),
            sha256: sha256.map(Into::into),
            boot: String::new(),
        }
    }

    #[test]
    fn the_hubs_digest_is_taken_from_its_own_headers() {
        let quoted = format!("\"{}\"", SHA.to_uppercase());
        let metadata = headers(&[("x-linked-etag", &quoted), ("x-linked-size", "7")]);
        let read = HubMetadata::read(&metadata, false);
        assert_eq!((read.sha256.as_deref(), read.length), (Some(SHA), Some(7)));
        // Some servers name a file by a digest of something else.
        let etag = headers(&[("etag", &quoted)]);
        assert_eq!(HubMetadata::read(&etag, false).sha256, None);
        assert_eq!(HubMetadata::read(&etag, true).sha256.as_deref(), Some(SHA));
        assert_eq!(HubMetadata::read(&headers(&[("etag", "\"abc\"")]), true).sha256, None);
    }

    #[test]
    fn a_rest_must_be_the_one_that_was_asked_for() {
        let info = info(Some("\"1\""), None);
        let offer = |range: &str, etag: &str| {
            let head = headers(&[("content-range", range), ("etag", etag)]);
            judge(206, &head, &HubMetadata::default(), Some((40, &info)))
        };
        assert_eq!(offer("bytes 40-99/100", "\"1\""), Verdict::Rest(100));
        assert_eq!(offer("bytes 40-49/100", "\"1\""), Verdict::Rest(50));
        for wrong in ["bytes 41-99/100", "bytes 40-99/101", "bytes 40-99/*", "bytes 40-100/100", ""]
        {
            assert!(matches!(offer(wrong, "\"1\""), Verdict::StartOver(_)), "{wrong}");
        }
        assert!(matches!(offer("bytes 40-99/100", "\"2\""), Verdict::StartOver(_)));
        let unasked = judge(206, &HeaderMap::new(), &HubMetadata::default(), None);
        assert!(matches!(unasked, Verdict::Refuse(_)));
    }

    #[test]
    fn a_digest_counts_more_than_an_etag() {
        let info = info(Some("\"1\""), Some(SHA));
        let offer = |sha: &str| {
            let head = headers(&[("content-range", "bytes 40-99/100"), ("etag", "\"2\"")]);
            let metadata = HubMetadata { sha256: Some(sha.into()), ..HubMetadata::default() };
            judge(206, &head, &metadata, Some((40, &info)))
        };
        assert_eq!(offer(SHA), Verdict::Rest(100));
        assert!(matches!(offer(&"b".repeat(64)), Verdict::StartOver(_)));
    }

    #[test]
    fn a_whole_file_that_cannot_be_right_is_refused() {
        let refused = |all: &[(&'static str, &str)], metadata: Option<u64>| {
            let metadata = HubMetadata { length: metadata, ..HubMetadata::default() };
            matches!(judge(200, &headers(all), &metadata, None), Verdict::Refuse(_))
        };
        assert!(!refused(&[("content-length", "5")], Some(5)));
        assert!(!refused(&[], None));
        assert!(refused(&[("content-length", "0")], None));
        assert!(refused(&[("content-length", "5")], Some(6)));
        assert!(refused(&[("content-length", "2199023255553")], None));
        assert!(refused(&[("content-length", "5"), ("content-encoding", "gzip")], None));
    }

    #[test]
    fn only_strong_validators_are_kept() {
        let date = "Sat, 21 Nov 2026 10:00:00 GMT";
        let kept = |all: &[(&'static str, &str)]| validator(&headers(all));
        assert_eq!(kept(&[("etag", "\"1\"")]), Some("\"1\"".into()));
        assert_eq!(kept(&[("etag", "W/\"1\"")]), None);
        assert_eq!(kept(&[("etag", "\"")]), None);
        let later = "Sat, 21 Nov 2026 10:00:01 GMT";
        assert_eq!(kept(&[("last-modified", date), ("date", later)]), Some(date.into()));
        assert_eq!(kept(&[("last-modified", date), ("date", date)]), None);
        assert_eq!(kept(&[("last-modified", date)]), None);
    }

    #[test]
    fn a_wait_is_seconds_or_a_date() {
        let date = "Sat, 21 Nov 2026 10:00:00 GMT";
        assert_eq!(retry_after(&headers(&[("retry-after", "7")])), Some(7));
        let both = [("retry-after", "Sat, 21 Nov 2026 10:01:00 GMT"), ("date", date)];
        assert_eq!(retry_after(&headers(&both)), Some(60));
        assert_eq!(retry_after(&headers(&[("retry-after", "soon")])), None);
        assert_eq!(retry_after(&headers(&[("retry-after", "-1")])), None);
    }

    proptest! {
        #[test]
        fn a_range_that_is_taken_makes_sense(
            text in "bytes [0-9]{0,21}-[0-9]{0,3}/[0-9*]{0,21}|\\PC{0,30}"
        ) {
            if let Some(range) = content_range(&text) {
                prop_assert!(range.first <= range.last && range.last < range.total);
            }
        }
    }
}
