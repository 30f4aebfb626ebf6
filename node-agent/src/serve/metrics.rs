//! All metrics of the agent. [`families`] counts while requests are handled, [`record`] is one
//! request, [`engine`] reports the state of engine and machine at each scrape, [`compat`] reports
//! the same under the names of other servers. `docs/metrics.md` lists all of them.

use std::sync::Arc;

use flotilla_listeners::{Closed, CountClosed};
use inference_metrics::{FamilyDescription, MetricsRegistry};

use crate::engine::client::{EngineClient, Figures};
use crate::serve::vitals::Sample;

pub mod compat;
mod engine;
mod families;
mod record;

use families::Families;
pub use record::Record;

/// The agent's metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    families: Families,
}

/// What a scrape sees of the engine and the machine.
#[derive(Debug)]
pub struct Sight<'a> {
    /// Node name.
    pub node: &'a str,
    /// Model name.
    pub model: &'a str,
    /// Client of the engine.
    pub engine: &'a EngineClient,
    /// Statistics of the engine.
    pub figures: Figures,
    /// Kernel statistics of engine and machine.
    pub sample: Sample,
}

impl Metrics {
    /// Creates every family. Fails only if two share a name.
    pub fn new() -> prometheus::Result<Self> {
        Ok(Self(Arc::new(Shared { families: Families::new()? })))
    }

    /// The description of every family, by name.
    ///
    /// # Errors
    /// Two share a name.
    pub fn list(&self) -> prometheus::Result<Vec<FamilyDescription>> {
        let engine = EngineClient::default();
        let (figures, sample) = (engine.figures(), Sample::default());
        let engine =
            engine::registry(&Sight { node: "", model: "", engine: &engine, figures, sample })?;
        let mut all = [self.0.families.registry.families.clone(), engine.families].concat();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Opens the record of one request.
    pub fn record(&self, api: &'static str) -> Record {
        Record::new(self.clone(), api)
    }

    /// Renders everything in Prometheus text format 0.0.4.
    pub fn render(&self, sight: &Sight<'_>) -> String {
        let counted = self.0.families.registry.gather();
        let engine = engine::registry(sight)
            .as_ref()
            .map(MetricsRegistry::gather)
            .map_err(ToString::to_string);
        written(engine.and_then(|engine| {
            let all: Vec<_> = counted.into_iter().chain(engine).collect();
            inference_metrics::encode_text(&all).map_err(|error| error.to_string())
        }))
    }

    /// Renders the same under another server's names.
    pub fn render_as(&self, names: compat::Names, sight: &Sight<'_>) -> String {
        let families = compat::families(names, &self.0.families.registry.gather(), sight);
        let text = families.and_then(|families| inference_metrics::encode_text(&families));
        written(text.map_err(|error| error.to_string()))
    }
}

impl CountClosed for Metrics {
    fn connection_closed(&self, why: Closed) {
        self.0.families.closed.with_label_values(&[why.name()]).inc();
    }
}

fn written(text: Result<String, String>) -> String {
    text.unwrap_or_else(|error| {
        tracing::error!(error, "metrics rendering failed");
        String::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_a_help_and_a_name_of_ours() {
        let all = Metrics::new().unwrap().list().unwrap();
        assert!(all.len() > 40, "{}", all.len());
        for made in &all {
            let known = ["node_", "process_"].iter().any(|p| made.name.starts_with(p));
            assert!(known && made.help.ends_with('.'), "{made:?}");
        }
    }
}
