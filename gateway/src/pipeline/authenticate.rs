//! Stage 2: who asks. Constant time, and still nothing of the body is read.

use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};

use super::accept::Received;
use crate::admission::Class;
use crate::api::Api;
use crate::config::ApiKey;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::secret::KeyDigest;

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
#[derive(Debug, Clone)]
pub struct Caller {
    /// The owner's name.
    pub tenant: String,
    /// The most urgent class that may be asked for.
    pub class_max: Class,
    /// What the key may use.
    pub limiter: Arc<Limiter>,
}

/// A key, and what is used of its limits.
#[derive(Debug)]
pub struct Key {
    key: ApiKey,
    limiter: Arc<Limiter>,
}

impl Key {
    /// A key that was not used yet.
    pub fn new(key: ApiKey) -> Self {
        let limiter = Arc::new(Limiter::new(&key.limits));
        Self { key, limiter }
    }

    fn is(&self, sent: &KeyDigest) -> bool {
        self.key.digest.is(sent)
    }
}

/// Finds the tenant of a request.
pub fn authenticate(keys: &[Key], received: Received) -> Result<Authenticated, Error> {
    let caller = caller(keys, &received.headers)?;
    let Received { request_id, api, arrived, headers, body } = received;
    Ok(Authenticated { request_id, api, caller, arrived, headers, body })
}

/// The owner of the key in `headers`. Every key is compared, so that the time does not
/// tell which one was nearly right.
pub fn caller(keys: &[Key], headers: &HeaderMap) -> Result<Caller, Error> {
    if keys.is_empty() {
        let (tenant, limiter) = (ANONYMOUS.into(), Arc::default());
        return Ok(Caller { tenant, class_max: Class::Interactive, limiter });
    }
    let sent = KeyDigest::of(bearer(headers).ok_or(Error::KeyMissing)?);
    let found = keys.iter().fold(None, |found, key| match key.is(&sent) {
        true => Some(key),
        false => found,
    });
    let Key { key, limiter } = found.ok_or(Error::KeyWrong)?;
    let (tenant, limiter) = (key.name.clone(), limiter.clone());
    Ok(Caller { tenant, class_max: key.class_max, limiter })
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
    use crate::limiter::KeyLimits;
    use hyper::header::HeaderValue;

    fn ask(authorization: Option<&'static str>) -> Result<String, Error> {
        let class_max = Class::Standard;
        let key = |name: &str| {
            let (digest, limits) = (KeyDigest::of(name), KeyLimits::default());
            Key::new(ApiKey { name: name.into(), digest, class_max, limits })
        };
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
