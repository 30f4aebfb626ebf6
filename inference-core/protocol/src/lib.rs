//! What the gateway and the nodes of a fleet agree on: the formats of requests, responses and
//! links.
//!
//! Everything here is data and pure functions: no I/O, no async, no clock, no random numbers. The
//! gateway, the agent, the tests and the fuzz targets all use these types, so a format has one
//! definition. `docs/openapi.json` is generated from them.
//!
//! | module | contents |
//! |---|---|
//! | [`openai`] | OpenAI's API: the request fields that we use, responses, errors |
//! | [`fleet`] | the node link: joining a gateway, and the status that a node reports |
//! | [`resume`] | responses that continue on another node if theirs is lost |
//! | [`sse`] | server-sent events: splitting a byte stream, writing an event |
//! | [`ids`] | ids of requests and responses, and the check of names from outside |
//! | [`pin`] | pins of public keys, by which nodes recognize a gateway |
//! | [`time`] | times on the wire: seconds since 1970 |
//!
//! # Example
//!
//! A request body is parsed once; each struct then reads its own fields.
//!
//! ```
//! use inference_protocol::openai::{ChatRequest, Endpoint, RawObject, first_unsupported};
//!
//! let body = br#"{"model":"m","messages":[{"role":"user","content":"hi"}],"mirostat":2}"#;
//! let object = RawObject::parse(body).unwrap();
//! let chat: ChatRequest = object.read().unwrap();
//! assert_eq!(chat.messages[0]["content"], "hi");
//!
//! let unsupported = first_unsupported(Endpoint::Chat, &object).unwrap();
//! assert_eq!(unsupported.unwrap().field, "mirostat");
//! ```

pub mod fleet;
pub mod ids;
pub mod openai;
pub mod pin;
pub mod resume;
pub mod sse;
pub mod time;
