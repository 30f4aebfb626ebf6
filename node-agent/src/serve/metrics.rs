//! All metrics of the agent. [`families`] counts while requests are handled, [`record`] is one
//! request, [`engine`] reports the state of engine and machine at each scrape, [`compat`] reports
//! the same under the names of other servers. `docs/metrics.md` lists all of them.

use std::sync::Arc;

use flotilla_listeners::{CloseCounter, CloseReason};
use inference_metrics::FamilyDescription;

use crate::engine::client::{EngineClient, Figures};
use crate::serve::resources::ResourceSample;

pub(crate) mod compat;
mod engine;
mod families;
mod record;

use families::Families;
pub(crate) use record::Record;

/// The agent's metrics. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    families: Families,
}

/// What a scrape sees of the engine and the machine.
#[derive(Debug)]
pub(crate) struct Snapshot<'a> {
    pub node: &'a str,
    pub model: &'a str,
    pub engine: &'a EngineClient,
    pub figures: Figures,
    pub sample: ResourceSample,
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
        let (figures, sample) = (engine.figures(), ResourceSample::default());
        let engine =
            engine::registry(&Snapshot { node: "", model: "", engine: &engine, figures, sample })?;
        let mut all = [self.0.families.registry.families.clone(), engine.families].concat();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Opens the record of one request.
    pub(crate) fn record(&self, api: &'static str) -> Record {
        Record::new(self.clone(), api)
    }

    /// Renders everything in Prometheus text format 0.0.4.
    pub(crate) fn render(&self, snapshot: &Snapshot<'_>) -> String {
        let counted = self.0.families.registry.gather();
        let engine = engine::registry(snapshot).map(|registry| registry.gather());
        written(engine.and_then(|engine| {
            let all: Vec<_> = counted.into_iter().chain(engine).collect();
            inference_metrics::encode_text(&all)
        }))
    }

    /// Renders the same under another server's names.
    pub(crate) fn render_as(&self, names: compat::Names, snapshot: &Snapshot<'_>) -> String {
        let families = compat::families(names, &self.0.families.registry.gather(), snapshot);
        written(families.and_then(|families| inference_metrics::encode_text(&families)))
    }
}

impl CloseCounter for Metrics {
    fn record_close(&self, reason: CloseReason) {
        self.0.families.closed.with_label_values(&[reason.name()]).inc();
    }
}

fn written(text: prometheus::Result<String>) -> String {
    text.unwrap_or_else(|error| {
        tracing::error!(%error, "metrics rendering failed");
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
