//! Reads the settings of trace export.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;

use super::section::{Problems, Section};
use crate::config::values::{report, server_url};

/// Settings of trace export.
#[derive(Debug, Clone)]
pub struct TraceExport {
    /// Exporter to the collector.
    pub collector: Arc<SpanExporter>,
    /// Share of requests to trace, among those whose client cannot force it.
    pub sample_ratio: f64,
}

impl TraceExport {
    /// Exports to the collector at this URL.
    ///
    /// # Errors
    /// The exporter cannot be created.
    pub fn new(endpoint: &str, sample_ratio: f64) -> Result<Self, String> {
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(EXPORT_TIMEOUT)
            .tcp_nodelay(true)
            .no_proxy()
            .build();
        let mut collector = SpanExporter::builder()
            .with_http()
            .with_http_client(http.map_err(|e| e.to_string())?)
            .with_endpoint(format!("{}{PATH}", endpoint.trim_end_matches('/')))
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|e| e.to_string())?;
        collector.set_resource(&resource());
        Ok(Self { collector: Arc::new(collector), sample_ratio })
    }
}

/// Describes this gateway in spans.
fn resource() -> Resource {
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let attributes = [version, KeyValue::new("host.name", host())];
    let resource = Resource::builder_empty().with_service_name("flotilla-gateway");
    resource.with_attributes(attributes).build()
}

/// Hostname of this machine.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Path of OTLP over HTTP below the endpoint.
const PATH: &str = "/v1/traces";

/// Timeout for exporting a batch.
pub(crate) const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads `traces`.
pub(super) fn read(section: Option<Section>, problems: &mut Problems) -> Option<TraceExport> {
    let mut section = section?;
    let endpoint = section.required_text("otlp_endpoint", problems);
    section.pattern("otlp_endpoint", "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]+[^?#]*$");
    let sample_ratio = section.share("sample_ratio", 1.0, problems);
    let endpoint = endpoint.filter(|url| {
        let is_right = server_url(url).is_some();
        if !is_right {
            let message = "expected http://host:4318 or https://host:4318";
            section.report("otlp_endpoint", message, problems);
        }
        is_right
    });
    section.finish(problems);
    report("traces.otlp_endpoint", TraceExport::new(&endpoint?, sample_ratio), problems)
}
