//! Paths of stored responses.

use inference_protocol::openai::ParseError;

use super::{Page, Stored};

/// What a path below `/v1/responses/` stands for, with the response's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path<'a> {
    /// `{id}`
    Response(&'a str),
    /// `{id}/input_items`
    InputItems(&'a str),
    /// `{id}/cancel`
    Cancel(&'a str),
}

impl<'a> Path<'a> {
    /// What is at `path`, if there is something.
    ///
    /// ```
    /// use inference_translation::store::Path;
    ///
    /// assert_eq!(Path::at("/v1/responses/resp_1"), Some(Path::Response("resp_1")));
    /// assert_eq!(Path::at("/v1/responses"), None);
    /// ```
    pub fn at(path: &'a str) -> Option<Self> {
        let rest = path.strip_prefix("/v1/responses/")?;
        match rest.split_once('/') {
            None if !rest.is_empty() => Some(Self::Response(rest)),
            Some((id, "input_items")) => Some(Self::InputItems(id)),
            Some((id, "cancel")) => Some(Self::Cancel(id)),
            _ => None,
        }
    }

    /// The response's id.
    pub fn id(self) -> &'a str {
        let (Self::Response(id) | Self::InputItems(id) | Self::Cancel(id)) = self;
        id
    }

    /// The body of the response to `GET`, or why the request is refused. What was made on its
    /// client's connection cannot be canceled.
    ///
    /// # Errors
    /// The query is invalid, or nothing can be canceled.
    pub fn read(self, stored: &Stored, query: Option<&str>) -> Result<Vec<u8>, ParseError> {
        match self {
            Self::Response(_) => Ok(stored.response().to_vec()),
            Self::InputItems(_) => stored.input_items(&Page::read(query)?),
            Self::Cancel(_) => Err(ParseError { message: NOT_CANCELABLE.into(), param: None }),
        }
    }

    /// The methods that the path supports, separated by commas.
    pub fn methods(self) -> &'static str {
        match self {
            Self::Response(_) => "GET, HEAD, DELETE",
            Self::InputItems(_) => "GET, HEAD",
            Self::Cancel(_) => "POST",
        }
    }
}

const NOT_CANCELABLE: &str = "only responses in the background can be canceled, and this was none; \
     close the connection to end a response";
