//! Cached metric handles. A request finds its series with one lookup instead of formatting and
//! hashing labels for each family.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use inference_protocol::resume::Usage;
use prometheus::local::LocalHistogram;
use prometheus::{Counter, Histogram, IntCounter};

use super::families::Families;
use super::labels::{EndpointKind, MetricLabels, RequestSample, fault};
use crate::types::api::RequestedApi;
use crate::types::class::Class;

/// Most pairs of tenant and model with their own series. Operators choose both names; the limit is
/// for fleets whose models change names for years.
const PAIRS_MAX: usize = 4096;
/// Label value beyond that limit.
const OTHER: &str = "other";
/// Label value of an unknown tenant or model.
const UNKNOWN: &str = "unknown";

const SLOTS: usize = RequestedApi::COUNT * Class::ALL.len() * EndpointKind::ALL.len();

/// The series of one [`MetricLabels`].
#[derive(Debug)]
pub struct Series {
    ok: IntCounter,
    duration: Histogram,
    answers: Option<SlotSeries>,
}

/// Series of requests that had a slot.
#[derive(Debug)]
struct SlotSeries {
    first_token: Histogram,
    gap: Histogram,
    prompt: IntCounter,
    cached: IntCounter,
    completion: IntCounter,
    saved: Option<Counter>,
}

impl Series {
    fn new(families: &Families, labels: MetricLabels<'_>) -> Self {
        let (tenant, model) = (labels.tenant.unwrap_or(UNKNOWN), labels.model.unwrap_or(UNKNOWN));
        let kind = labels.endpoint.name();
        let values = [model, labels.class.name(), kind];
        let tokens = |what| families.tokens.with_label_values(&[model, tenant, kind, what]);
        let answers = (labels.endpoint != EndpointKind::None).then(|| SlotSeries {
            first_token: families.first_token.with_label_values(&values),
            gap: families.gap.with_label_values(&values),
            prompt: tokens("prompt"),
            cached: tokens("cached"),
            completion: tokens("completion"),
            saved: (labels.endpoint == EndpointKind::Node)
                .then(|| families.saved.with_label_values(&[model, tenant])),
        });
        Self {
            ok: requests(families, labels, "ok", "none"),
            duration: families.duration.with_label_values(&values),
            answers,
        }
    }

    /// Counts a request that has ended.
    pub(crate) fn record_end(
        &self,
        families: &Families,
        labels: MetricLabels<'_>,
        ended: RequestSample,
    ) {
        match ended.outcome {
            "ok" => self.ok.inc(),
            outcome => requests(families, labels, outcome, fault(ended.fault)).inc(),
        }
        if let Some(reason) = ended.refusal {
            let tenant = labels.tenant.unwrap_or(UNKNOWN);
            families.refusals.with_label_values(&[reason, tenant]).inc();
        }
        self.duration.observe(ended.duration.as_secs_f64());
        if let Some((answers, first)) = self.answers.as_ref().zip(ended.first_token) {
            answers.first_token.observe(first.as_secs_f64());
        }
    }

    /// Counts tokens.
    pub(crate) fn record_usage(&self, usage: Usage) {
        let Some(answers) = &self.answers else { return };
        // Prompt tokens include the cached ones.
        answers.prompt.inc_by(usage.prompt.saturating_sub(usage.cached));
        answers.cached.inc_by(usage.cached);
        answers.completion.inc_by(usage.completion);
    }

    /// Adds the amount saved compared to an external endpoint.
    pub(crate) fn add_savings(&self, amount: f64) {
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

fn requests(
    families: &Families,
    labels: MetricLabels<'_>,
    outcome: &str,
    fault: &str,
) -> IntCounter {
    let (tenant, model) = (labels.tenant.unwrap_or(UNKNOWN), labels.model.unwrap_or(UNKNOWN));
    let (api, class, kind) = (labels.api.name(), labels.class.name(), labels.endpoint.name());
    families.requests.with_label_values(&[api, class, kind, fault, model, outcome, tenant])
}

type Pair = [Option<Arc<Series>>; SLOTS];

/// Cached series by tenant, then by model.
#[derive(Debug, Default)]
pub(super) struct SeriesCache {
    pairs: RwLock<HashMap<String, HashMap<String, Box<Pair>>>>,
}

impl SeriesCache {
    /// Finds or creates the series of a key. Returns the key whose labels it has.
    pub(super) fn find<'a>(
        &self,
        families: &Families,
        labels: MetricLabels<'a>,
    ) -> (Arc<Series>, MetricLabels<'a>) {
        let (tenant, model) = (labels.tenant.unwrap_or(UNKNOWN), labels.model.unwrap_or(UNKNOWN));
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
        let pair = pairs.get(tenant).and_then(|models| models.get(model));
        if let Some(series) = pair.and_then(|pair| pair[slot(labels)].as_ref()) {
            return (series.clone(), labels);
        }
        let is_known = pair.is_some();
        drop(pairs);
        self.add(families, labels, is_known)
    }

    fn add<'a>(
        &self,
        families: &Families,
        labels: MetricLabels<'a>,
        is_known: bool,
    ) -> (Arc<Series>, MetricLabels<'a>) {
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        let is_full = !is_known && pairs.values().map(HashMap::len).sum::<usize>() >= PAIRS_MAX;
        let labels = match is_full {
            true => MetricLabels { tenant: Some(OTHER), model: Some(OTHER), ..labels },
            false => labels,
        };
        let (tenant, model) = (labels.tenant.unwrap_or(UNKNOWN), labels.model.unwrap_or(UNKNOWN));
        let models = pairs.entry(tenant.to_string()).or_default();
        let pair = models.entry(model.to_string());
        let pair = pair.or_insert_with(|| Box::new([const { None }; SLOTS]));
        let series =
            pair[slot(labels)].get_or_insert_with(|| Arc::new(Series::new(families, labels)));
        (series.clone(), labels)
    }
}

fn slot(labels: MetricLabels<'_>) -> usize {
    let (api, class, endpoint) =
        (labels.api.index(), labels.class as usize, labels.endpoint as usize);
    (api * Class::ALL.len() + class) * EndpointKind::ALL.len() + endpoint
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::api::Api;

    fn labels<'a>(tenant: &'a str, model: &'a str) -> MetricLabels<'a> {
        MetricLabels {
            api: RequestedApi::Native(Api::Rerank),
            class: Class::Batch,
            tenant: Some(tenant),
            model: Some(model),
            endpoint: EndpointKind::None,
        }
    }

    #[test]
    fn the_same_request_finds_the_same_series_and_another_finds_others() {
        let (families, known) = (Families::new().unwrap(), SeriesCache::default());
        let find = |labels| known.find(&families, labels).0;
        let first = find(labels("a", "m"));
        assert!(Arc::ptr_eq(&first, &find(labels("a", "m"))));
        let other = MetricLabels { endpoint: EndpointKind::Node, ..labels("a", "m") };
        assert!(
            !Arc::ptr_eq(&first, &find(other)) && !Arc::ptr_eq(&first, &find(labels("b", "m")))
        );
        assert!(slot(labels("a", "m")) < SLOTS);
    }

    #[test]
    fn names_beyond_their_bound_are_told_as_one() {
        let (families, known) = (Families::new().unwrap(), SeriesCache::default());
        for number in 0..PAIRS_MAX {
            known.find(&families, labels("a", &number.to_string()));
        }
        let told = known.find(&families, labels("a", "one more")).1;
        assert_eq!((told.tenant, told.model), (Some(OTHER), Some(OTHER)));
        assert_eq!(known.find(&families, labels("a", "7")).1.model, Some("7"));
    }
}
