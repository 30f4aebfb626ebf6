//! The format of a keys file, as it is written. [`super::api_keys`] reads it.

use std::collections::BTreeMap;

use hyper::header::HeaderName;
use serde::Serialize;

use super::yaml;
use crate::access::keys::{Alias, ApiKey};
use crate::access::users::UserPolicy;
use crate::types::class::Class;
use crate::types::external::ExternalPolicy;

/// An entry of the keys file.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    name: &'a str,
    sha256: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    class_max: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    aliases: BTreeMap<&'a str, AliasEntry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_month: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spend_per_month: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrent_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_depth_max: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_bytes_max: Option<usize>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    models: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    users: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_header: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    users_max: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_limits: Option<UserLimits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix_group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    force_trace: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resumable_streams: Option<bool>,
}

/// Limits of each user of a key.
#[derive(Debug, PartialEq, Default, Serialize)]
struct UserLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    requests_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrent_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_month: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spend_per_month: Option<f64>,
}

impl From<&UserPolicy> for UserLimits {
    fn from(UserPolicy { limits, budget, .. }: &UserPolicy) -> Self {
        Self {
            requests_per_minute: limits.requests_per_minute.map(u32::from),
            tokens_per_minute: limits.tokens_per_minute.map(u32::from),
            concurrent_max: limits.concurrent_max.map(u32::from),
            tokens_per_month: budget.tokens.map(u64::from),
            spend_per_month: budget.spend,
        }
    }
}

/// An alias of the key: the model's name, or with its class.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum AliasEntry<'a> {
    Short(&'a str),
    Long { model: &'a str, class: &'static str },
}

impl<'a> From<&'a Alias> for AliasEntry<'a> {
    fn from(Alias { model, class }: &'a Alias) -> Self {
        match class {
            Some(class) => Self::Long { model, class: class.name() },
            None => Self::Short(model),
        }
    }
}

/// Keys in the format of a keys file.
#[derive(Debug, Serialize)]
pub(crate) struct Entries<'a> {
    keys: Vec<Entry<'a>>,
}

impl<'a> Entries<'a> {
    pub(crate) fn of(keys: &'a [ApiKey]) -> Self {
        Self { keys: keys.iter().map(Entry::from).collect() }
    }
}

/// The text of a keys file.
pub(crate) fn to_yaml(keys: &[ApiKey]) -> Result<String, String> {
    yaml::to_yaml(&Entries::of(keys))
}

impl<'a> From<&'a ApiKey> for Entry<'a> {
    fn from(key: &'a ApiKey) -> Self {
        let ApiKey { name, digest, class_max, external, deadline, tokens_max, .. } = key;
        let ApiKey { aliases, limits, budget, users, prefix_group, .. } = key;
        let defaults = UserPolicy::default();
        Self {
            name,
            sha256: digest.to_hex(),
            class_max: (*class_max != Class::Interactive).then(|| class_max.name()),
            external: (*external != ExternalPolicy::Overflow).then(|| external.name()),
            deadline_ms: deadline.map(|d| d.as_millis() as u64),
            max_tokens: tokens_max.map(u32::from),
            aliases: aliases.iter().map(|(name, alias)| (name.as_str(), alias.into())).collect(),
            requests_per_minute: limits.requests_per_minute.map(u32::from),
            tokens_per_minute: limits.tokens_per_minute.map(u32::from),
            tokens_per_month: budget.tokens.map(u64::from),
            spend_per_month: budget.spend,
            concurrent_max: limits.concurrent_max.map(u32::from),
            queue_depth_max: limits.queue.depth_max,
            queue_bytes_max: limits.queue.bytes_max,
            models: &limits.models,
            users: (users.source != defaults.source).then(|| users.source.name()),
            user_header: users.header.as_ref().map(HeaderName::as_str),
            users_max: (users.users_max != defaults.users_max).then_some(users.users_max),
            user_limits: Some(users.into()).filter(|limits| *limits != UserLimits::default()),
            prefix_group: prefix_group.as_deref(),
            force_trace: key.force_trace.then_some(true),
            resumable_streams: key.resumable_streams.then_some(true),
        }
    }
}
