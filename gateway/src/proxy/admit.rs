//! Stage 3: read the body within its limits and find the model.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_listeners::request_body::{self, BodyError, BodyLimits, announced_bytes};
use flotilla_listeners::timers::NOISE_BYTES_MAX;
use http_body::Body;
use hyper::header::{HeaderMap, HeaderName};
use inference_protocol::fleet::ModelStatus;
use inference_protocol::ids::MODEL_NAME_BYTES_MAX;
use inference_protocol::openai::{self, Invalid, Lengths, ParseError, RoutingFields};
use inference_translation::{llama_server, ollama};
use tokio::time::Instant;

use super::authenticate::Authenticated;
use super::deferral::{self, Again, CLASS, Deferral, LatestCheckpoint, ReadOn};
use super::stored::remember_previous;
use super::translation::{self, Sources, Translated, Translation};
use crate::access::keys::Caller;
use crate::access::responses::Reader;
use crate::access::spend::Bill;
use crate::access::users::UserSource;
use crate::config::Config;
use crate::context::Gateway;
use crate::dispatcher::{BodyReservation, Dispatcher};
use crate::scheduler::SlotRequest;
use crate::scheduler::cost::Size;
use crate::scheduler::fleet::RouteConstraints;
use crate::scheduler::prefix_index::Prefix;
use crate::scheduler::usage::{Task, UsageLimits};
use crate::types::api::{Api, RequestedApi};
use crate::types::class::Class;
use crate::types::error::Error;
use crate::types::external::ExternalPolicy;
use crate::types::limits::QueueShare;
use crate::types::request_context::RequestContext;
use crate::types::user::UserId;

/// A request that may wait for a slot.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// What the log says about the request, with its id.
    pub context: Arc<RequestContext>,
    /// The API by which endpoints serve it.
    pub api: Api,
    /// The model file that endpoints must serve; `None` if any will do.
    pub origin: Option<Arc<ModelStatus>>,
    /// Translates the response, if the client called another API.
    pub translation: Option<Translation>,
    /// The tenant.
    pub tenant: Arc<str>,
    /// The group of tenants that share cached prefixes with it.
    pub prefix_group: Option<Arc<str>>,
    /// The user of the tenant, if its key says where requests name them.
    pub user: Option<UserId>,
    /// The tenant's share of the queue, from its key.
    pub share: QueueShare,
    /// The requested model, with aliases resolved.
    pub model: String,
    /// True if the body names the model by an alias.
    pub is_alias: bool,
    /// Most tokens per choice by the key: the key's limit divided by the number of choices.
    pub tokens_max: Option<u32>,
    /// Most tokens per choice by the key or the request.
    pub choice_max: Option<u64>,
    /// Upper bounds on the tokens that the request can use.
    pub usage: UsageLimits,
    /// Scheduling class.
    pub class: Class,
    /// True if the response must include `service_tier`.
    pub tells_tier: bool,
    /// When the request may go to an external endpoint.
    pub external: ExternalPolicy,
    /// When the request must have a slot.
    pub deadline: Instant,
    /// Set if the response is to be made in the background.
    pub deferral: Option<Box<Deferral>>,
    /// Set if the gateway makes the request itself: how far it is.
    pub latest: Option<Arc<LatestCheckpoint>>,
    /// True if the client wants a stream.
    pub is_streamed: bool,
    /// The key's budget of the month for external endpoints.
    pub spend_max: Option<f64>,
    /// The same of its user.
    pub user_spend_max: Option<f64>,
    /// For a part of a list: how many entries of the client's list come before it.
    pub entries_before: Option<u32>,
    /// Expected size, for cost estimates and token reservation.
    pub size: Size,
    /// Prefix fingerprint of the body, for cache-aware routing.
    pub prefix: Prefix,
    /// The body, translated if need be, which nodes receive byte for byte.
    pub body: Bytes,
}

impl Admitted {
    /// The slot request for an endpoint that meets `constraints`.
    pub(crate) fn slot_request<'a>(&'a self, constraints: &'a RouteConstraints) -> SlotRequest<'a> {
        let Self { model, tenant, user, share, class, size, prefix, body, .. } = self;
        let (user, share, class, bytes) = (*user, *share, *class, body.len());
        SlotRequest { model, tenant, user, share, class, size, bytes, prefix, constraints }
    }

    /// What the request may cost at an external endpoint.
    pub(crate) fn bill(&self) -> Bill {
        let user = self.user.zip(self.user_spend_max);
        let (tenant, most) = (self.tenant.clone(), self.usage.at_most());
        Bill { tenant, most, tenant_max: self.spend_max, user }
    }

    /// True if a more urgent request may take its slot: it is the gateway's own, of the least
    /// urgent class, and continues later from its last token.
    pub(crate) fn is_preemptible(&self) -> bool {
        self.latest.is_some() && self.class == Class::Batch && self.api.generates()
    }

    /// Most tokens per choice at an external endpoint, which knows nothing of budgets.
    pub(crate) fn external_choice_max(&self) -> Option<u64> {
        self.choice_max.into_iter().chain(self.usage.choice_max()).min()
    }

    /// A part of a request for embeddings or scores: `body` has these `entries` of a list `of` so
    /// many.
    pub(crate) fn part(
        &self,
        body: Bytes,
        (entries, of): (Range<usize>, u64),
        deadline: Instant,
    ) -> Self {
        let count = entries.len() as u64;
        let usage_max = self.usage.usage_max().map(|max| max * count / of.max(1));
        let task = match self.api {
            Api::Rerank => Task::Rerank(count),
            _ => Task::Embed(count),
        };
        Self {
            context: self.context.clone(),
            api: self.api,
            origin: self.origin.clone(),
            translation: None,
            tenant: self.tenant.clone(),
            prefix_group: self.prefix_group.clone(),
            user: self.user,
            share: self.share,
            model: self.model.clone(),
            is_alias: self.is_alias,
            tokens_max: self.tokens_max,
            choice_max: self.choice_max,
            usage: UsageLimits::new(body.len(), task).within(usage_max),
            class: self.class,
            tells_tier: self.tells_tier,
            external: self.external,
            deadline,
            deferral: None,
            latest: None,
            is_streamed: false,
            spend_max: self.spend_max,
            user_spend_max: self.user_spend_max,
            entries_before: u32::try_from(entries.start).ok(),
            size: Size::new(body.len(), Some(0), 1),
            prefix: Prefix::default(),
            body,
        }
    }
}

/// What becomes of a request that its key allows.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is moved once, and most are the large one")]
pub(crate) enum Admission {
    /// It may wait for a slot.
    Request(Admitted),
    /// It needs no endpoint; the response.
    Reply(Vec<u8>),
}

/// Request header: milliseconds within which the request must get a slot.
pub(crate) const DEADLINE: HeaderName = HeaderName::from_static("x-flotilla-deadline-ms");
const DEADLINE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The fingerprint of a body, which is that of its key's group if it has one.
fn prefix(caller: &Caller, body: &[u8]) -> Prefix {
    match &caller.prefix_group {
        // No name of a tenant has a space.
        Some(group) => Prefix::new(&format!("group {group}"), body),
        None => Prefix::new(&caller.tenant, body),
    }
}

/// Reads and checks a request. After an error, the caller passes the rest of the body to
/// [`request_body::discard`].
pub(crate) async fn admit(
    authenticated: &mut Authenticated,
    config: &Config,
    gateway: &Gateway,
) -> Result<Admission, Error> {
    let dispatcher = &gateway.dispatcher;
    let (limits, timeouts) = (&config.limits, &config.timeouts);
    let Authenticated { context, api, query_model, caller, arrived, headers, body, again, .. } =
        authenticated;
    let wanted = wanted_class(headers)?;
    let patience = deadline(headers)?;
    // The body may ask for any class that the key allows, unless the header has set one.
    let class = wanted.unwrap_or(Class::Interactive).max(caller.key.class_max);
    let mut reading = dispatcher.body_reservation(&caller.tenant, caller.key.limits.queue, class);
    let bounds = BodyLimits { bytes_max: limits.body_bytes_max, time_max: timeouts.body };
    let body = read_body(headers, body, bounds, &mut reading).await?;
    let written = body.clone();
    let body = match *api {
        RequestedApi::PROPS => props_body(query_model.take(), caller, dispatcher),
        _ => body,
    };
    let translate = |body| {
        let stored = |id: &str| {
            let known = again.as_ref().and_then(|again| again.previous(id));
            let get = |reader| gateway.responses.get(&caller.tenant, reader, id);
            known.or_else(|| get(reader(caller, headers, &written)?))
        };
        let only_model = || dispatcher.only_model(|model| caller.allows(model));
        let origin = again.as_ref().map(Again::origin);
        let sources = Sources { origin, stored: &stored, only_model: &only_model };
        translation::translate(*api, body, limits.body_bytes_max, *arrived, &sources)
    };
    let translated = match translate(body.clone()) {
        Err(error) if remember_previous(gateway, caller, &error, &written).await? => {
            translate(body)?
        }
        translated => translated?,
    };
    let (body, translation) = match translated {
        Translated::Request(body, translation) => (body, translation),
        Translated::Reply(named, reply) => {
            check_served(caller, &named.unwrap_or_default(), dispatcher)?;
            return Ok(Admission::Reply(reply));
        }
    };
    let requested = *api;
    reading.grow_to(body.len(), limits.body_bytes_max)?;
    let api = api.served_by();
    let routed: RoutingFields = openai::parse(&body)?;
    let tier = routed.service_tier.as_deref().map(tier_class).transpose()?;
    let named = routed.model.as_str();
    let known = without_tag(named, dispatcher);
    let of_alias = caller.alias_class(known);
    let wanted = wanted.or(tier).or(of_alias).unwrap_or(Class::Standard);
    // A request for a more urgent class than key and alias allow is downgraded, not refused.
    let class = wanted.max(caller.key.class_max).max(of_alias.unwrap_or(Class::Interactive));
    let patience = patience_of(patience, caller.key.deadline, timeouts.queue.of(class));
    let user = caller.user(headers, &routed)?;
    let lengths = lengths(api, &routed)?;
    let tokens_max = lengths.map_or(Ok(None), |lengths| check_tokens(caller, lengths))?;
    let choice_max = lengths.and_then(|lengths| lengths.tokens_max.or(tokens_max));
    let answer_max = if api.generates() { choice_max } else { Some(0) };
    let work_bytes = if api.is_text_query() { 0 } else { body.len() };
    let size = Size::new(work_bytes, answer_max, lengths.map_or(1, |lengths| lengths.choices));
    let usage = UsageLimits::new(body.len(), task(api, &routed, lengths, choice_max));
    let is_streamed = api.generates() && routed.stream.unwrap_or(false);
    let by_key = caller.key.resumable_streams && gateway.store.is_some();
    let read_on = match is_streamed && again.is_none() {
        true => ReadOn::of(headers, by_key)?,
        false => ReadOn::No,
    };
    let sent = (written, deferral::kept_headers(headers, caller));
    let made = (read_on, routed.has_logprobs());
    let deferral = Deferral::of(requested, translation.as_ref(), sent, made)?.map(Box::new);
    if deferral.is_some() && gateway.store.is_none() {
        return Err(Error::StoreOff);
    }
    let model = model(caller, known)?;
    // Embeddings and reranking have no prefix: nodes keep no KV cache for them.
    let prefix = if api.generates() { prefix(caller, &body) } else { Prefix::default() };
    Ok(Admission::Request(Admitted {
        context: context.clone(),
        api,
        origin: again.as_ref().and_then(Again::model),
        translation,
        is_alias: model.is_some() || known != named,
        model: model.unwrap_or_else(|| known.into()),
        share: caller.key.limits.queue,
        tenant: caller.tenant.clone(),
        prefix_group: caller.prefix_group.clone(),
        user,
        tokens_max: tokens_max.and_then(|max| u32::try_from(max).ok()),
        choice_max,
        usage,
        class,
        tells_tier: routed.service_tier.is_some(),
        external: if api.is_text_query() { ExternalPolicy::Never } else { caller.key.external },
        deadline: (*arrived + patience).into(),
        deferral,
        latest: again.as_ref().map(|again| again.latest.clone()),
        is_streamed,
        spend_max: caller.key.budget.spend,
        user_spend_max: caller.key.users.budget.spend,
        entries_before: None,
        size,
        prefix,
        body,
    }))
}

/// Whose stored responses the request may continue. `None` if the id of its user is wrong, which is
/// refused later.
fn reader(caller: &Caller, headers: &HeaderMap, body: &[u8]) -> Option<Reader> {
    let user = match caller.key.users.source {
        UserSource::Field => caller.user(headers, &openai::parse(body).ok()?),
        UserSource::None | UserSource::Header => caller.user_of_head(headers),
    };
    user.ok().map(Reader::User)
}

/// What a request for the properties of a model would say if it had a body.
fn props_body(named: Option<String>, caller: &Caller, dispatcher: &Dispatcher) -> Bytes {
    let only_model = || dispatcher.only_model(|model| caller.allows(model));
    let model = named.or_else(only_model);
    let slots = model.as_deref().map(|model| dispatcher.slots_of(caller.model(model)));
    llama_server::props_body(model.as_deref(), slots.unwrap_or_default()).into()
}

/// The name without Ollama's `:latest`, unless there is a model with that name.
fn without_tag<'a>(name: &'a str, dispatcher: &Dispatcher) -> &'a str {
    let untagged = ollama::without_latest(name);
    if untagged.len() < name.len() && !dispatcher.serves(name) { untagged } else { name }
}

/// Checks the model of a request that no endpoint sees.
fn check_served(caller: &Caller, named: &str, dispatcher: &Dispatcher) -> Result<(), Error> {
    let known = without_tag(named, dispatcher);
    let model = model(caller, known)?;
    match dispatcher.serves(model.as_deref().unwrap_or(known)) {
        true => Ok(()),
        false => Err(Error::UnknownModel(named.into())),
    }
}

/// The model that `name` stands for, if it is an alias; `None` if `name` is the model itself.
///
/// # Errors
/// The name is too long, or the key may not use the model.
fn model(caller: &Caller, name: &str) -> Result<Option<String>, Error> {
    if name.len() > MODEL_NAME_BYTES_MAX {
        return Err(Error::UnknownModel(name.chars().take(MODEL_NAME_BYTES_MAX).collect()));
    }
    match caller.allows(name) {
        true => Ok(Some(caller.model(name)).filter(|model| *model != name).map(String::from)),
        false => Err(Error::ModelForbidden(name.into())),
    }
}

/// How many tokens the request asks to generate. `None` for APIs that generate nothing.
fn lengths(api: Api, routed: &RoutingFields) -> Result<Option<Lengths>, Invalid> {
    match api {
        Api::ChatCompletions => routed.chat_lengths().map(Some),
        Api::Completions => routed.text_lengths().map(Some),
        _ => Ok(None),
    }
}

fn task(
    api: Api,
    routed: &RoutingFields,
    lengths: Option<Lengths>,
    tokens_max: Option<u64>,
) -> Task {
    match (api, lengths) {
        (Api::Embeddings, _) => Task::Embed(routed.inputs()),
        (Api::Rerank, _) => Task::Rerank(routed.documents()),
        (api, _) if api.is_text_query() => Task::TextQuery,
        (_, lengths) => Task::Generate {
            tokens_max,
            choices: lengths.map_or(1, |lengths| lengths.choices),
            has_logprobs: routed.has_logprobs(),
            echoes: routed.has_echo(),
        },
    }
}

/// Most tokens per choice by the key.
///
/// # Errors
/// The request asks for more than the key allows for all choices together.
fn check_tokens(caller: &Caller, lengths: Lengths) -> Result<Option<u64>, Error> {
    let Some(max) = caller.key.tokens_max.map(|max| u64::from(max.get())) else { return Ok(None) };
    let choices = lengths.choices.max(1);
    let (asked, param) = lengths.highest.unwrap_or((1, "n"));
    match asked.saturating_mul(choices) > max {
        false => Ok(Some(max / choices)),
        true => Err(Error::Invalid(ParseError {
            message: format!(
                "{param}: this API key may ask for at most {max} tokens, all choices together"
            ),
            param: Some(param.into()),
        })),
    }
}

fn wanted_class(headers: &HeaderMap) -> Result<Option<Class>, Error> {
    let Some(value) = headers.get(&CLASS) else { return Ok(None) };
    let class = value.to_str().ok().and_then(Class::named);
    let wrong = || Error::Header(CLASS, "interactive, standard or batch".into());
    class.map(Some).ok_or_else(wrong)
}

fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, Error> {
    let Some(value) = headers.get(&DEADLINE) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    let allowed = number.filter(|ms| (1..=DEADLINE_MS_MAX).contains(ms));
    let wrong = || Error::Header(DEADLINE, format!("whole milliseconds, 1 to {DEADLINE_MS_MAX}"));
    allowed.map(|ms| Some(Duration::from_millis(ms))).ok_or_else(wrong)
}

/// Longest wait for a slot: as the request asks, else the timeout of its class, and at most what
/// its key allows.
fn patience_of(asked: Option<Duration>, key_max: Option<Duration>, timeout: Duration) -> Duration {
    match (asked, key_max) {
        (Some(asked), Some(max)) => asked.min(max),
        (asked, max) => asked.or(max).unwrap_or(timeout),
    }
}

fn tier_class(tier: &str) -> Result<Class, Error> {
    Class::of_service_tier(tier).ok_or_else(|| {
        Error::Malformed(ParseError {
            message: "service_tier: expected auto, default, flex or priority".into(),
            param: Some("service_tier".into()),
        })
    })
}

/// Reads a body into reserved memory: by its announced length, or as it arrives.
pub(crate) async fn read_body<B>(
    headers: &HeaderMap,
    body: &mut B,
    limits: BodyLimits,
    room: &mut BodyReservation,
) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let bytes_max = limits.bytes_max;
    room.reserve(announced_bytes(body, bytes_max)?)?;
    request_body::read(headers, body, limits, |bytes| room.grow_to(bytes, bytes_max)).await
}

impl From<BodyError> for Error {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge(bytes_max) => Self::TooLarge(bytes_max),
            BodyError::Incomplete => Self::SlowBody,
            BodyError::Chunks => Self::InvalidChunks,
            BodyError::Encoded => Self::EncodedBody,
        }
    }
}

/// True if the rest of a refused body must be read before the response: so many bytes after a
/// response would count as noise and close the connection.
pub(crate) fn is_read_first(error: &Error, body: &impl Body) -> bool {
    matches!(error, Error::TooLarge(_)) || body.size_hint().lower() > NOISE_BYTES_MAX
}
