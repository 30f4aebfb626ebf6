//! What operators and nodes ask of the gateway: the admin API, the fleet page, the health
//! endpoints, and nodes that join.

use hyper::Request;

use crate::types::error::Error;

pub mod admin;
pub mod health;
pub mod join;
pub mod overview;
pub(crate) mod page;

/// Refuses other methods than these.
pub fn only<B>(request: &Request<B>, allowed: &'static str) -> Result<(), Error> {
    let method = request.method().as_str();
    match allowed.split(", ").any(|m| m == method) {
        true => Ok(()),
        false => Err(Error::Method(allowed)),
    }
}
