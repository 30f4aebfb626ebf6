//! API keys: their tenants and permissions.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{self, HeaderMap, HeaderValue};
use inference_protocol::openai::RoutingFields;

use crate::access::limiter::{KeyLimits, Limiter};
use crate::access::spend::Budget;
use crate::access::users::{UserPolicy, Users};
use crate::types::class::Class;
use crate::types::error::Error;
use crate::types::external::ExternalPolicy;
use crate::types::secret::KeyDigest;
use crate::types::served_model::ServedModel;
use crate::types::user::UserId;

/// Tenant of requests without a key, where those are allowed.
const ANONYMOUS: &str = "anonymous";

/// Tenant of operators' requests from the fleet page. No key can have this name.
const ADMIN_TENANT: &str = "operators:chat";

/// An authenticated caller.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Name of the tenant.
    pub tenant: Arc<str>,
    /// The group of tenants that share cached prefixes with this one.
    pub prefix_group: Option<Arc<str>>,
    /// The key as configured.
    pub key: Arc<ApiKey>,
    /// Model aliases for all keys.
    aliases: Arc<Aliases>,
    /// The key's rate limits and their current use.
    pub limiter: Arc<Limiter>,
    /// The key's users and the use of their limits.
    pub users: Arc<Users>,
    /// Cached list of the models that the key may use.
    pub models: Arc<ModelListCache>,
}

impl Caller {
    /// Resolves a model alias; the key's own aliases come first.
    pub fn model<'a>(&'a self, name: &'a str) -> &'a str {
        self.alias(name).map_or(name, |alias| &alias.model)
    }

    /// The class of requests that name a model by this alias, if the alias sets one.
    pub fn alias_class(&self, name: &str) -> Option<Class> {
        self.alias(name)?.class
    }

    fn alias(&self, name: &str) -> Option<&Alias> {
        self.key.aliases.get(name).or_else(|| self.aliases.get(name))
    }

    /// True if the key may use the model under this name.
    pub fn allows(&self, name: &str) -> bool {
        self.limiter.allows(name) || self.limiter.allows(self.model(name))
    }

    /// The user of a request by its head. `None` if the key has no users, or the head does not name
    /// them.
    ///
    /// # Errors
    /// The id is too long.
    pub(crate) fn user_of_head(&self, headers: &HeaderMap) -> Result<Option<UserId>, Error> {
        self.key.users.user_of_head(&self.key.digest, headers)
    }

    /// The user of a request. `None` if the key has no users.
    ///
    /// # Errors
    /// The id is too long.
    pub(crate) fn user(
        &self,
        headers: &HeaderMap,
        fields: &RoutingFields,
    ) -> Result<Option<UserId>, Error> {
        match self.user_of_head(headers)? {
            None => self.key.users.user_of_body(&self.key.digest, fields),
            user => Ok(user),
        }
    }

    /// The caller for work that has its own limits: only the models stay restricted.
    pub(crate) fn without_rate_limits(self) -> Self {
        let models = self.key.limits.models.clone();
        let limits = KeyLimits { models, ..KeyLimits::default() };
        Self { limiter: Arc::new(Limiter::new(&limits)), ..self }
    }

    /// Aliases that the key may use, with their models.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.key.aliases.iter();
        let others = self.aliases.iter().filter(|(name, _)| !self.key.aliases.contains_key(*name));
        let all = own.chain(others).map(|(name, alias)| (name.as_str(), alias.model.as_str()));
        all.filter(|(name, _)| self.allows(name))
    }
}

/// Another name of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The model.
    pub model: String,
    /// The class of its requests, unless they ask for a less urgent one.
    pub class: Option<Class>,
}

/// Aliases by name.
pub type Aliases = BTreeMap<String, Alias>;

/// Models by name.
type Models = Arc<BTreeMap<String, ServedModel>>;

/// Cached model list of a key, with the version it was made from.
#[derive(Debug, Default)]
pub struct ModelListCache(Mutex<Option<(u64, Models)>>);

impl ModelListCache {
    /// The list for this version. Calls `make` if the cache is of another version.
    pub(crate) fn get_or_build(
        &self,
        version: u64,
        make: impl FnOnce() -> (u64, BTreeMap<String, ServedModel>),
    ) -> Models {
        let mut listed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, models)) = &*listed
            && *known == version
        {
            return models.clone();
        }
        let (version, models) = make();
        let models = Arc::new(models);
        *listed = Some((version, models.clone()));
        models
    }
}

/// The API keys and the use of their limits.
#[derive(Debug)]
pub struct Keys {
    callers: HashMap<KeyDigest, Caller>,
    /// The caller without a key, if anonymous access is allowed.
    anonymous: Option<Caller>,
    /// The caller with the admin key, on the admin listener.
    admin: Caller,
    /// False until the keys of the store are known.
    is_complete: bool,
}

impl Keys {
    /// Loads the keys of a configuration, and those of the store as far as their names and digests
    /// differ from the former. Keys with unchanged limits keep their current use.
    pub fn new(keys: &[ApiKey], stored: &[ApiKey], aliases: &Aliases, old: Option<&Self>) -> Self {
        let aliases = Arc::new(aliases.clone());
        let admin = admin_caller(&aliases, old);
        let old = old.into_iter().flat_map(|old| old.callers.values());
        let old: HashMap<&str, &Caller> = old.map(|caller| (&*caller.tenant, caller)).collect();
        let caller = |key: &ApiKey| {
            let old = old.get(key.name.as_str());
            let same = old.filter(|old| old.key.limits == key.limits);
            let limiter = same.map(|old| old.limiter.clone());
            let same = old.filter(|old| *old.users.policy() == key.users);
            let users = same.map(|old| old.users.clone());
            let caller = Caller {
                tenant: key.name.as_str().into(),
                prefix_group: key.prefix_group.as_deref().map(Arc::from),
                key: Arc::new(key.clone()),
                aliases: aliases.clone(),
                limiter: limiter.unwrap_or_else(|| Arc::new(Limiter::new(&key.limits))),
                users: users.unwrap_or_else(|| Arc::new(Users::new(&key.users))),
                models: Arc::default(),
            };
            (key.digest.clone(), caller)
        };
        let names: HashSet<&str> = keys.iter().map(|key| &*key.name).collect();
        let stored = stored.iter().filter(|key| !names.contains(&*key.name));
        // The last one with a digest stays.
        let callers = stored.chain(keys).map(caller).collect();
        Self { callers, anonymous: None, admin, is_complete: true }
    }

    /// The same keys where others may exist: one that is not known may be right.
    pub fn incomplete(self) -> Self {
        Self { is_complete: false, ..self }
    }

    /// Allows anonymous access; no key is needed.
    pub fn anonymous(aliases: &Aliases, old: Option<&Self>) -> Self {
        let (key, aliases) = (Arc::new(anonymous_key()), Arc::new(aliases.clone()));
        let admin = admin_caller(&aliases, old);
        let anonymous = Some(unlimited_caller(key, aliases));
        Self { callers: HashMap::new(), anonymous, admin, is_complete: true }
    }

    /// The caller for requests from the fleet page. Check the admin key first.
    pub(crate) fn admin_caller(&self) -> &Caller {
        &self.admin
    }

    /// All callers.
    pub fn tenants(&self) -> impl Iterator<Item = &Caller> {
        self.callers.values().chain(&self.anonymous).chain([&self.admin])
    }

    /// Authenticates by the key in `headers`. The lookup uses the first bytes of the digest, which
    /// are not secret; whole digests are compared in constant time.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Error> {
        if let Some(anonymous) = &self.anonymous {
            return Ok(anonymous.clone());
        }
        let sent = bearer(headers).or_else(|| api_key(headers));
        let sent = KeyDigest::of(sent.ok_or(Error::KeyMissing)?);
        let unknown = if self.is_complete { Error::KeyWrong } else { Error::StoreUnavailable };
        self.callers.get(&sent).cloned().ok_or(unknown)
    }
}

fn admin_caller(aliases: &Arc<Aliases>, old: Option<&Keys>) -> Caller {
    let key = Arc::new(ApiKey { name: ADMIN_TENANT.into(), force_trace: true, ..anonymous_key() });
    let limiter = old.map_or_else(Arc::default, |old| old.admin.limiter.clone());
    Caller { limiter, ..unlimited_caller(key, aliases.clone()) }
}

/// The caller with a key that has neither limits nor users.
fn unlimited_caller(key: Arc<ApiKey>, aliases: Arc<Aliases>) -> Caller {
    let (tenant, users) = (key.name.as_str().into(), Arc::new(Users::new(&key.users)));
    let (limiter, models) = (Arc::default(), Arc::default());
    Caller { tenant, prefix_group: None, key, aliases, limiter, users, models }
}

impl ApiKey {
    /// A key without limits.
    pub(crate) fn new(name: &str, digest: KeyDigest) -> Self {
        Self {
            name: name.into(),
            digest,
            class_max: Class::Interactive,
            external: ExternalPolicy::Overflow,
            deadline: None,
            tokens_max: None,
            aliases: BTreeMap::new(),
            limits: KeyLimits::default(),
            budget: Budget::default(),
            users: UserPolicy::default(),
            prefix_group: None,
            force_trace: false,
            resumable_streams: false,
        }
    }
}

/// The key settings of anonymous access.
fn anonymous_key() -> ApiKey {
    ApiKey::new(ANONYMOUS, KeyDigest::of(""))
}

/// The key in `x-api-key`, where Anthropic's clients send it.
fn api_key(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get("x-api-key").map(HeaderValue::as_bytes)
}

/// The key in `Authorization: Bearer <key>`.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    let key = key.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !key.is_empty()).then_some(key)
}

/// An API key.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiKey {
    /// Name of the tenant.
    pub name: String,
    /// Digest of the key.
    pub digest: KeyDigest,
    /// The most urgent class that the key may use.
    pub class_max: Class,
    /// When its requests may go to external endpoints.
    pub external: ExternalPolicy,
    /// Longest queue wait; also the default for requests that set none.
    pub deadline: Option<Duration>,
    /// Most tokens per request, all choices together.
    pub tokens_max: Option<NonZeroU32>,
    /// Model aliases for this key only.
    pub aliases: Aliases,
    /// Rate limits.
    pub limits: KeyLimits,
    /// Monthly budget.
    pub budget: Budget,
    /// Where its requests name their users, and the limits of each.
    pub users: UserPolicy,
    /// Keys of one group share cached prefixes.
    pub prefix_group: Option<String>,
    /// True if requests are traced whenever their `traceparent` says so.
    pub force_trace: bool,
    /// True if clients may read on every stream, where it is possible.
    pub resumable_streams: bool,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use hyper::header::HeaderValue;

    use super::*;

    fn key(name: &str, limits: KeyLimits) -> ApiKey {
        ApiKey { name: name.into(), digest: KeyDigest::of(name), limits, ..anonymous_key() }
    }

    fn caller(keys: &Keys, authorization: &str) -> Result<Caller, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_str(authorization).unwrap());
        keys.authenticate(&headers)
    }

    fn alias(model: &str, class: Option<Class>) -> Alias {
        Alias { model: model.into(), class }
    }

    fn ask(authorization: &str) -> Result<String, Error> {
        let keys = ["ada", "bob"].map(|name| key(name, KeyLimits::default()));
        caller(&Keys::new(&keys, &[], &BTreeMap::new(), None), authorization)
            .map(|caller| caller.tenant.to_string())
    }

    #[test]
    fn a_key_finds_its_tenant() {
        assert_eq!(ask("Bearer bob"), Ok("bob".into()));
        assert_eq!(ask("bearer  ada "), Ok("ada".into()));
    }

    #[test]
    fn a_missing_key_and_a_wrong_one_are_told_apart() {
        let none = Keys::new(&[], &[], &BTreeMap::new(), None);
        assert_eq!(none.authenticate(&HeaderMap::new()).unwrap_err(), Error::KeyMissing);
        assert_eq!(caller(&none, "Bearer bob").unwrap_err(), Error::KeyWrong, "no keys, no door");
        assert_eq!(ask("Basic bob"), Err(Error::KeyMissing));
        assert_eq!(ask("Bearer "), Err(Error::KeyMissing));
        assert_eq!(ask("Bearer eve"), Err(Error::KeyWrong));
    }

    #[test]
    fn what_is_used_of_limits_outlives_a_reload_that_leaves_them_alone() {
        let limits = |n| KeyLimits { concurrent_max: NonZeroU32::new(n), ..KeyLimits::default() };
        let before =
            Keys::new(&[key("ada", limits(1)), key("bob", limits(1))], &[], &BTreeMap::new(), None);
        let limiter = |keys: &Keys, name: &str| caller(keys, name).unwrap().limiter;
        let _running = ["Bearer ada", "Bearer bob"].map(|n| limiter(&before, n).admit().unwrap());
        let after = [key("ada", limits(1)), key("bob", limits(2))];
        let after = Keys::new(&after, &[], &BTreeMap::new(), Some(&before));
        assert!(limiter(&after, "Bearer ada").admit().is_err());
        assert!(limiter(&after, "Bearer bob").admit().is_ok());
    }

    #[test]
    fn the_models_of_a_key_are_listed_anew_only_when_they_are_others() {
        let (listed, made) = (ModelListCache::default(), std::cell::Cell::new(0));
        let at = |version| {
            listed.get_or_build(version, || {
                made.set(made.get() + 1);
                let model = ServedModel { created: 1, context_tokens: 8 };
                (version, BTreeMap::from([(version.to_string(), model)]))
            })
        };
        assert!(Arc::ptr_eq(&at(0), &at(0)));
        assert_eq!((at(1).keys().next().map(String::as_str), made.get()), (Some("1"), 2));
    }

    #[test]
    fn a_keys_own_names_of_models_win_over_everybodys() {
        let pair = |name: &str, model: &str| (name.to_string(), alias(model, None));
        let own = BTreeMap::from([pair("fast", "small"), pair("best", "secret")]);
        let limits = KeyLimits {
            models: ["small", "big", "best"].map(String::from).to_vec(),
            ..KeyLimits::default()
        };
        let ada = ApiKey { aliases: own, ..key("ada", limits) };
        let all = BTreeMap::from([pair("fast", "big"), pair("gpt", "big"), pair("o", "other")]);
        let ada = caller(&Keys::new(&[ada], &[], &all, None), "Bearer ada").unwrap();
        assert_eq!(["fast", "gpt", "big"].map(|name| ada.model(name)), ["small", "big", "big"]);
        assert!(["fast", "gpt", "big", "best"].iter().all(|name| ada.allows(name)));
        assert!(!ada.allows("o") && !ada.allows("secret"), "neither the name nor what it means");
        let names: Vec<&str> = ada.aliases().map(|(name, _)| name).collect();
        assert_eq!(names, ["best", "fast", "gpt"]);
    }
    #[test]
    fn an_alias_may_set_a_class_and_the_keys_own_alias_wins() {
        let all = [("titles", Class::Batch), ("chat", Class::Standard)];
        let all = all.map(|(name, class)| (name.to_string(), alias("m", Some(class))));
        let own = BTreeMap::from([("chat".to_string(), alias("m", None))]);
        let ada = ApiKey { aliases: own, ..key("ada", KeyLimits::default()) };
        let ada =
            caller(&Keys::new(&[ada], &[], &BTreeMap::from(all), None), "Bearer ada").unwrap();
        let classes = ["titles", "chat", "m"].map(|name| ada.alias_class(name));
        assert_eq!(classes, [Some(Class::Batch), None, None]);
    }
}
