//! Cached metric handles. A request finds its series with one lookup instead of formatting and
//! hashing labels for each family.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use inference_protocol::resume::Usage;
use prometheus::local::LocalHistogram;
use prometheus::{Counter, Histogram, IntCounter};

use super::families::Families;
use super::labels::{Ended, EndpointKind, Key, fault};
use crate::types::api::Api;
use crate::types::class::Class;

/// Most pairs of tenant and model with their own series. Operators choose both names; the limit is
/// for fleets whose models change names for years.
const PAIRS_MAX: usize = 4096;
/// Label value beyond that limit.
const OTHER: &str = "other";
/// Label value of an unknown tenant or model.
const UNKNOWN: &str = "unknown";

const SLOTS: usize = Api::ALL.len() * Class::ALL.len() * EndpointKind::ALL.len();

/// The series of one [`Key`].
#[derive(Debug)]
pub struct Series {
    ok: IntCounter,
    duration: Histogram,
    answers: Option<Answers>,
}

/// Series of requests that had a slot.
#[derive(Debug)]
struct Answers {
    first_token: Histogram,
    gap: Histogram,
    prompt: IntCounter,
    cached: IntCounter,
    completion: IntCounter,
    saved: Option<Counter>,
}

impl Series {
    fn new(families: &Families, key: Key<'_>) -> Self {
        let (tenant, model) = (key.tenant.unwrap_or(UNKNOWN), key.model.unwrap_or(UNKNOWN));
        let kind = key.endpoint.name();
        let labels = [model, key.class.name(), kind];
        let tokens = |what| families.tokens.with_label_values(&[model, tenant, kind, what]);
        let answers = (key.endpoint != EndpointKind::None).then(|| Answers {
            first_token: families.first_token.with_label_values(&labels),
            gap: families.gap.with_label_values(&labels),
            prompt: tokens("prompt"),
            cached: tokens("cached"),
            completion: tokens("completion"),
            saved: (key.endpoint == EndpointKind::Node)
                .then(|| families.saved.with_label_values(&[model, tenant])),
        });
        Self {
            ok: requests(families, key, "ok", "none"),
            duration: families.duration.with_label_values(&labels),
            answers,
        }
    }

    /// Counts a request that has ended.
    pub fn ends(&self, families: &Families, key: Key<'_>, ended: Ended) {
        match ended.outcome {
            "ok" => self.ok.inc(),
            outcome => requests(families, key, outcome, fault(ended.fault)).inc(),
        }
        if let Some(reason) = ended.refusal {
            let tenant = key.tenant.unwrap_or(UNKNOWN);
            families.refusals.with_label_values(&[reason, tenant]).inc();
        }
        self.duration.observe(ended.duration.as_secs_f64());
        if let Some((answers, first)) = self.answers.as_ref().zip(ended.first_token) {
            answers.first_token.observe(first.as_secs_f64());
        }
    }

    /// Counts tokens.
    pub fn used(&self, usage: Usage) {
        let Some(answers) = &self.answers else { return };
        // Prompt tokens include the cached ones.
        answers.prompt.inc_by(usage.prompt.saturating_sub(usage.cached));
        answers.cached.inc_by(usage.cached);
        answers.completion.inc_by(usage.completion);
    }

    /// Adds the amount saved compared to an external endpoint.
    pub fn saved(&self, amount: f64) {
        if let Some(saved) = self.answers.as_ref().and_then(|answers| answers.saved.as_ref()) {
            saved.inc_by(amount.max(0.0));
        }
    }

    /// Observes the gaps between pieces of one response without a lock, and reports them when
    /// dropped.
    pub fn gaps(&self) -> Option<LocalHistogram> {
        self.answers.as_ref().map(|answers| answers.gap.local())
    }
}

fn requests(families: &Families, key: Key<'_>, outcome: &str, fault: &str) -> IntCounter {
    let (tenant, model) = (key.tenant.unwrap_or(UNKNOWN), key.model.unwrap_or(UNKNOWN));
    let (api, class, kind) = (key.api.name(), key.class.name(), key.endpoint.name());
    families.requests.with_label_values(&[api, class, kind, fault, model, outcome, tenant])
}

type Pair = [Option<Arc<Series>>; SLOTS];

/// Cached series by tenant, then by model.
#[derive(Debug, Default)]
pub(super) struct Known {
    pairs: RwLock<HashMap<String, HashMap<String, Box<Pair>>>>,
}

impl Known {
    /// Finds or creates the series of a key. Returns the key whose labels it has.
    pub(super) fn find<'a>(&self, families: &Families, key: Key<'a>) -> (Arc<Series>, Key<'a>) {
        let (tenant, model) = (key.tenant.unwrap_or(UNKNOWN), key.model.unwrap_or(UNKNOWN));
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        let pair = pairs.get(tenant).and_then(|models| models.get(model));
        if let Some(series) = pair.and_then(|pair| pair[slot(key)].as_ref()) {
            return (series.clone(), key);
        }
        let is_known = pair.is_some();
        drop(pairs);
        self.add(families, key, is_known)
    }

    fn add<'a>(&self, families: &Families, key: Key<'a>, is_known: bool) -> (Arc<Series>, Key<'a>) {
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = !is_known && pairs.values().map(HashMap::len).sum::<usize>() >= PAIRS_MAX;
        let key = match is_full {
            true => Key { tenant: Some(OTHER), model: Some(OTHER), ..key },
            false => key,
        };
        let (tenant, model) = (key.tenant.unwrap_or(UNKNOWN), key.model.unwrap_or(UNKNOWN));
        let models = pairs.entry(tenant.to_string()).or_default();
        let pair = models.entry(model.to_string());
        let pair = pair.or_insert_with(|| Box::new([const { None }; SLOTS]));
        let series = pair[slot(key)].get_or_insert_with(|| Arc::new(Series::new(families, key)));
        (series.clone(), key)
    }
}

fn slot(key: Key<'_>) -> usize {
    let (api, class, endpoint) = (key.api as usize, key.class as usize, key.endpoint as usize);
    (api * Class::ALL.len() + class) * EndpointKind::ALL.len() + endpoint
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key<'a>(tenant: &'a str, model: &'a str) -> Key<'a> {
        Key {
            api: Api::Rerank,
            class: Class::Batch,
            tenant: Some(tenant),
            model: Some(model),
            endpoint: EndpointKind::None,
        }
    }

    #[test]
    fn the_same_request_finds_the_same_series_and_another_finds_others() {
        let (families, known) = (Families::new().unwrap(), Known::default());
        let find = |key| known.find(&families, key).0;
        let first = find(key("a", "m"));
        assert!(Arc::ptr_eq(&first, &find(key("a", "m"))));
        let other = Key { endpoint: EndpointKind::Node, ..key("a", "m") };
        assert!(!Arc::ptr_eq(&first, &find(other)) && !Arc::ptr_eq(&first, &find(key("b", "m"))));
        assert!(slot(key("a", "m")) < SLOTS);
    }

    #[test]
    fn names_beyond_their_bound_are_told_as_one() {
        let (families, known) = (Families::new().unwrap(), Known::default());
        for number in 0..PAIRS_MAX {
            known.find(&families, key("a", &number.to_string()));
        }
        let told = known.find(&families, key("a", "one more")).1;
        assert_eq!((told.tenant, told.model), (Some(OTHER), Some(OTHER)));
        assert_eq!(known.find(&families, key("a", "7")).1.model, Some("7"));
    }
}
