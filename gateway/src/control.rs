//! Endpoints for operators and nodes: the admin API, the fleet page, health endpoints, and joining
//! nodes.

use hyper::Request;

use crate::types::error::Error;

pub mod admin;
pub mod health;
pub(crate) mod join;
pub mod keys;
pub mod overview;
pub(crate) mod page;
pub mod usage;
pub mod work;

/// Refuses methods other than `allowed`, a list separated by `, `.
pub fn only<B>(request: &Request<B>, allowed: &'static str) -> Result<(), Error> {
    let method = request.method().as_str();
    match allowed.split(", ").any(|m| m == method) {
        true => Ok(()),
        false => Err(Error::Method(allowed)),
    }
}
