//! Creates and registers metric families, and keeps a list of them.

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Counter, CounterVec, Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec,
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, Result, TextEncoder,
};

/// Description of a metric family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyDescription {
    /// Metric name.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Label names.
    pub labels: Vec<String>,
    /// Help text.
    pub help: String,
}

/// Creates metric families. Label values come from closed sets or from configured names only.
#[derive(Debug, Default)]
pub struct MetricsBuilder {
    registry: Registry,
    families: Vec<FamilyDescription>,
}

/// Registered families and their descriptions.
#[derive(Debug)]
pub struct MetricsRegistry {
    registry: Registry,
    /// Descriptions, in order of creation.
    pub families: Vec<FamilyDescription>,
}

impl MetricsRegistry {
    /// Collects the families that have samples.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }
}

impl MetricsBuilder {
    /// Creates a counter of integers with labels.
    ///
    /// # Errors
    /// Another family has that name; the same holds for all functions below.
    pub fn counters(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        let family = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.register("counter", (name, help, labels), family)
    }

    /// Creates a counter of integers without labels.
    pub fn counter(&mut self, name: &str, help: &str) -> Result<IntCounter> {
        let family = IntCounter::new(name, help)?;
        self.register("counter", (name, help, &[]), family)
    }

    /// Creates a counter of floats with labels.
    pub fn float_counters(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<CounterVec> {
        let family = CounterVec::new(Opts::new(name, help), labels)?;
        self.register("counter", (name, help, labels), family)
    }

    /// Creates a counter of floats without labels.
    pub fn float_counter(&mut self, name: &str, help: &str) -> Result<Counter> {
        let family = Counter::new(name, help)?;
        self.register("counter", (name, help, &[]), family)
    }

    /// Creates a gauge of integers with labels.
    pub fn gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        let family = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.register("gauge", (name, help, labels), family)
    }

    /// Creates a gauge of integers without labels.
    pub fn gauge(&mut self, name: &str, help: &str) -> Result<IntGauge> {
        let family = IntGauge::new(name, help)?;
        self.register("gauge", (name, help, &[]), family)
    }

    /// Creates a gauge of floats with labels.
    pub fn float_gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<GaugeVec> {
        let family = GaugeVec::new(Opts::new(name, help), labels)?;
        self.register("gauge", (name, help, labels), family)
    }

    /// Creates a gauge of floats without labels.
    pub fn float_gauge(&mut self, name: &str, help: &str) -> Result<Gauge> {
        let family = Gauge::new(name, help)?;
        self.register("gauge", (name, help, &[]), family)
    }

    /// Creates a histogram with labels; `buckets` are upper bounds.
    pub fn histograms(
        &mut self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register("histogram", (name, help, labels), HistogramVec::new(opts, labels)?)
    }

    /// Creates a histogram without labels.
    pub fn histogram(&mut self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register("histogram", (name, help, &[]), Histogram::with_opts(opts)?)
    }

    fn register<C: Collector + Clone + 'static>(
        &mut self,
        kind: &'static str,
        (name, help, labels): (&str, &str, &[&str]),
        family: C,
    ) -> Result<C> {
        self.registry.register(Box::new(family.clone()))?;
        let labels = labels.iter().map(ToString::to_string).collect();
        self.families.push(FamilyDescription {
            name: name.into(),
            kind,
            labels,
            help: help.into(),
        });
        Ok(family)
    }

    /// Finishes creating families.
    pub fn build(self) -> MetricsRegistry {
        MetricsRegistry { registry: self.registry, families: self.families }
    }
}

/// Renders families in Prometheus text format 0.0.4.
///
/// # Errors
/// A family is inconsistent.
pub fn encode_text(families: &[MetricFamily]) -> Result<String> {
    let mut out = Vec::new();
    TextEncoder::new().encode(families, &mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_listed_and_told_once_it_has_a_value() {
        let mut builder = MetricsBuilder::default();
        let eggs = builder.counters("eggs_total", "Eggs.", &["colour"]).unwrap();
        builder.gauge("hens", "Hens.").unwrap().set(3);
        assert!(builder.gauge("hens", "Again.").is_err());
        let registry = builder.build();
        let listed: Vec<_> = registry.families.iter().map(|m| (m.name.as_str(), m.kind)).collect();
        assert_eq!(listed, [("eggs_total", "counter"), ("hens", "gauge")]);
        assert_eq!(
            encode_text(&registry.gather()).unwrap(),
            "# HELP hens Hens.\n# TYPE hens gauge\nhens 3\n"
        );
        eggs.with_label_values(&["brown"]).inc();
        assert!(
            encode_text(&registry.gather()).unwrap().contains("eggs_total{colour=\"brown\"} 1\n")
        );
    }
}
