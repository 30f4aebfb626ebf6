//! The listeners, from a socket to a handler: accepting, TLS, guards against clients that take too
//! much, and the routes.

pub mod connection;
pub mod file_limit;
pub mod guards;
pub mod listener;
pub mod routes;
