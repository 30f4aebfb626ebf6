//! Stage 2: who asks. Constant time, and still nothing of the body is read.

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};

use std::time::Instant;

use super::accept::Received;
use crate::admission::Class;
use crate::api::Api;
use crate::config::ApiKey;
use crate::error::Error;

/// The tenant of requests without a key, where those are allowed.
const ANONYMOUS: &str = "anonymous";

/// A request whose sender is known.
#[derive(Debug)]
pub struct Authenticated {
    /// Its id.
    pub request_id: String,
    /// Which endpoint.
    pub api: Api,
    /// Who asks.
    pub caller: Caller,
    /// When it arrived.
    pub arrived: Instant,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body, unread.
    pub body: Incoming,
}

/// The owner of a key, and what the key allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The owner's name.
    pub tenant: String,
    /// The most urgent class that may be asked for.
    pub class_max: Class,
}

/// Finds the tenant of a request.
pub fn authenticate(keys: &[ApiKey], received: Received) -> Result<Authenticated, Error> {
    let caller = caller(keys, &received.headers)?;
    let Received { request_id, api, arrived, headers, body } = received;
    Ok(Authenticated { request_id, api, caller, arrived, headers, body })
}

/// The owner of the key in `headers`. Every key is compared, so that the time does not
/// tell which one was nearly right.
pub fn caller(keys: &[ApiKey], headers: &HeaderMap) -> Result<Caller, Error> {
    if keys.is_empty() {
        return Ok(Caller { tenant: ANONYMOUS.into(), class_max: Class::Interactive });
    }
    let sent = bearer(headers).ok_or(Error::KeyMissing)?;
    let matches = |found, key| if ApiKey::matches(key, sent) { Some(key) } else { found };
    let key = keys.iter().fold(None, matches).ok_or(Error::KeyWrong)?;
    Ok(Caller { tenant: key.name.clone(), class_max: key.class_max })
}

/// The key of `Authorization: Bearer <key>`.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::KeyDigest;
    use hyper::header::HeaderValue;

    fn ask(authorization: Option<&'static str>) -> Result<String, Error> {
        let class_max = Class::Standard;
        let key = |name: &str| ApiKey { name: name.into(), digest: KeyDigest::of(name), class_max };
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        caller(&[key("ada"), key("bob")], &headers).map(|caller| caller.tenant)
    }

    #[test]
    fn a_key_finds_its_tenant() {
        assert_eq!(ask(Some("Bearer bob")), Ok("bob".into()));
        assert_eq!(ask(Some("bearer  ada ")), Ok("ada".into()));
    }

    #[test]
    fn a_missing_key_and_a_wrong_one_are_told_apart() {
        assert_eq!(ask(None), Err(Error::KeyMissing));
        assert_eq!(ask(Some("Basic bob")), Err(Error::KeyMissing));
        assert_eq!(ask(Some("Bearer ")), Err(Error::KeyMissing));
        assert_eq!(ask(Some("Bearer eve")), Err(Error::KeyWrong));
    }
}
