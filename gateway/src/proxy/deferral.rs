//! What passes between the stages about a response in the background: what is stored of its
//! request, and what was made of it before.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName};
use inference_protocol::fleet::ModelStatus;
use inference_protocol::resume::{Resume, ResumedChoice};
use inference_translation::store::Stored;
use inference_translation::{Background, Origin};
use serde::{Deserialize, Serialize};

use super::translation::Translation;
use crate::access::keys::Caller;
use crate::store::BackgroundTask;

/// Class header of requests and responses. It overrides `service_tier`.
pub(crate) const CLASS: HeaderName = HeaderName::from_static("x-flotilla-class");

/// What a response in the background needs of its request.
#[derive(Debug)]
pub(crate) struct Deferral {
    /// Its body.
    pub request: Bytes,
    /// Headers on which the response depends.
    pub headers: Vec<(String, String)>,
    /// Where its ids and times come from.
    pub origin: Origin,
    /// How it is made.
    pub background: Background,
}

impl Deferral {
    /// `None` if the response is to be sent on the request's connection.
    pub(crate) fn of(
        translation: Option<&Translation>,
        request: Bytes,
        headers: Vec<(String, String)>,
    ) -> Option<Self> {
        let translation = translation?;
        let (background, origin) = (translation.background?, translation.origin);
        Some(Self { request, headers, origin, background })
    }
}

/// The headers on which a response depends: its class, and its user.
pub(crate) fn kept_headers(headers: &HeaderMap, caller: &Caller) -> Vec<(String, String)> {
    let class = [CLASS];
    let names = caller.key.users.header_names().iter().chain(&class);
    let sent = names.filter_map(|name| {
        Some((name.as_str().to_string(), headers.get(name)?.to_str().ok()?.to_string()))
    });
    sent.collect()
}

/// A response that was begun before.
#[derive(Debug)]
pub(crate) struct Again {
    /// Where its ids and times come from.
    pub origin: Origin,
    /// What was made of it.
    pub checkpoint: Checkpoint,
    /// The response that it continues, which may be gone elsewhere.
    pub previous: Option<Arc<Stored>>,
}

impl Again {
    /// The model file that must make the rest.
    pub(crate) fn model(&self) -> Option<Arc<ModelStatus>> {
        self.checkpoint.model.clone().map(Arc::new)
    }

    /// The response that it continues, if that has this id.
    pub(crate) fn previous(&self, id: &str) -> Option<Arc<Stored>> {
        self.previous.clone().filter(|previous| previous.id() == id)
    }
}

/// What another gateway process needs to continue a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The seed, and the tokens so far. Their events are written again.
    pub resume: Resume,
    /// The model file that has made them.
    model: Option<ModelStatus>,
    /// True if nobody can make the same again: an external endpoint has begun.
    pub is_lost: bool,
}

impl Checkpoint {
    /// Before anything is made. The seed follows from the response, so that it is always the same.
    pub(crate) fn first(response: &BackgroundTask) -> Self {
        let resume = Resume::new(response.number(), response.created_at);
        Self { resume, model: None, is_lost: false }
    }

    pub(super) fn new(
        resume: &Resume,
        is_resumable: bool,
        model: Option<&Arc<ModelStatus>>,
    ) -> Self {
        let mut resume = Resume { is_usage_sent: false, ..resume.clone() };
        for choice in &mut resume.choices {
            *choice =
                ResumedChoice { tokens: std::mem::take(&mut choice.tokens), events: 0, bytes: 0 };
        }
        let model = model.filter(|_| !resume.choices.is_empty()).map(|model| (**model).clone());
        Self { resume, model, is_lost: !is_resumable }
    }

    /// Leaves out the tokens, for a response whose events only the node of a token can write.
    pub(crate) fn without_tokens(mut self) -> Self {
        self.resume.choices.clear();
        self
    }
}
