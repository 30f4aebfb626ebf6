//! `flotilla-gateway health`: checks the health of a running gateway. For a container's
//! HEALTHCHECK, because the image contains no other program.

use std::time::Duration;

use crate::commands::error::CommandError;
use crate::commands::nodes;
use crate::config::Config;
use crate::upstream::external::innermost;

/// URL of the gateway with this configuration. Prefers a listener without TLS.
pub fn url(config: &Config) -> String {
    let public = (config.listen, config.tls.is_some());
    let admin = config.admin.as_ref().map(|admin| (admin.listen, admin.tls.is_some()));
    let (listen, is_tls) = match admin {
        Some(admin) if public.1 && !admin.1 => admin,
        _ => public,
    };
    nodes::url(listen, is_tls)
}

/// Checks the health of a gateway and returns its response.
///
/// # Errors
/// The gateway does not respond in time, or is not ready: [`CommandError::Unhealthy`].
pub async fn check(url: &str, live: bool, within: Duration) -> Result<String, CommandError> {
    let unhealthy = |why: String| CommandError::Unhealthy(why);
    // No secret is sent, and the certificate is not valid for the loopback address.
    let client = reqwest::Client::builder()
        .timeout(within)
        .no_proxy()
        .danger_accept_invalid_certs(true)
        .build()
        .map_err(|e| unhealthy(e.to_string()))?;
    let path = if live { "/livez" } else { "/readyz" };
    let response = client.get(format!("{}{path}", url.trim_end_matches('/'))).send().await;
    let unreachable =
        |e| unhealthy(format!("cannot reach the gateway at {url}: {}", innermost(&e)));
    let mut response = response.map_err(unreachable)?;
    // The response is a single word.
    let status = response.status();
    let word = response.chunk().await.map_err(|e| unhealthy(innermost(&e)))?;
    let text = String::from_utf8_lossy(&word.unwrap_or_default()).trim().to_string();
    match status.is_success() {
        true => Ok(text),
        false => Err(unhealthy(format!("{text} (status {status})"))),
    }
}
