//! Serves other APIs with chat completions: OpenAI's Responses, Anthropic's Messages, Ollama's API;
//! and completions, embeddings and rerank requests of other servers with ours.
//!
//! A request is read into a [`conversation::Conversation`] and sent to a node or an external
//! endpoint as a chat completion request. A [`ResponseWriter`] turns the response, whole or
//! streamed, back into the API that the client speaks. So all APIs share admission, routing,
//! resume, and accounting, and nodes keep one wire format.
//!
//! Everything here is data and pure functions: no I/O, no async, no clock, no random numbers. The
//! gateway and a standalone agent both use it.
//!
//! ```
//! use inference_translation::{ClientApi, Origin, Translation, translate};
//!
//! let body = br#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}"#;
//! let origin = Origin { random: 7, now: 0 };
//! let translation = translate(ClientApi::Messages, body, origin, &|_| None).unwrap();
//! let Translation::Request(translated) = translation else { panic!() };
//! assert!(translated.body.starts_with(br#"{"model":"m","messages":[{"role":"user","#));
//!
//! let mut writer = translated.writer;
//! let completion = br#"{"choices":[{"message":{"content":"Hello"},"finish_reason":"stop"}],
//!     "usage":{"prompt_tokens":5,"completion_tokens":2}}"#;
//! let message = String::from_utf8(writer.whole(completion).unwrap()).unwrap();
//! assert!(message.contains(r#"{"type":"text","text":"Hello"}"#));
//! ```

mod answer;
mod api;
mod body;
pub mod chat;
pub mod conversation;
mod count;
mod fault;
pub mod fields;
mod json;
pub mod llama_server;
pub mod messages;
pub mod ollama;
pub mod rerank;
pub mod responses;
pub mod store;
mod writer;

pub use api::Service;
pub use writer::{
    Background, ClientApi, Lookup, Origin, ResponseWriter, StreamFormat, Translated, Translation,
    Unreadable, translate,
};
