//! What each API is called and how its errors look.

use inference_protocol::openai::ErrorDetail;

use crate::messages;
use crate::writer::ClientApi;

impl ClientApi {
    /// All APIs, in declaration order.
    pub const ALL: [Self; 1] = [Self::Messages];

    /// Label in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
        }
    }

    /// The API at a path, if there is one.
    pub fn at(path: &str) -> Option<Self> {
        match path {
            "/v1/messages" => Some(Self::Messages),
            _ => None,
        }
    }

    /// The body of an error response with this status.
    pub fn error_body(self, status: u16, error: &ErrorDetail, request_id: Option<&str>) -> String {
        match self {
            Self::Messages => messages::error_body(status, error, request_id),
        }
    }
}
