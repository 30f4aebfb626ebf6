//! `flotilla-gateway health`: asks a running gateway how it is, for whoever restarts it (a
//! container's HEALTHCHECK has no other program than ours).

use std::time::Duration;

use crate::commands::nodes;
use crate::config::Config;
use crate::upstream::external::innermost;

/// Where a gateway with this configuration is asked: where no TLS stands between, if there is such
/// a listener.
pub fn url(config: &Config) -> String {
    let public = (config.listen, config.tls.is_some());
    let admin = config.admin.as_ref().map(|admin| (admin.listen, admin.tls.is_some()));
    let (listen, is_tls) = match admin {
        Some(admin) if public.1 && !admin.1 => admin,
        _ => public,
    };
    nodes::url(listen, is_tls)
}

/// What a gateway says about itself; an error unless that is good.
///
/// # Errors
/// It does not answer in time, or is not ready.
pub async fn ask(url: &str, live: bool, within: Duration) -> Result<String, String> {
    // Nothing secret is sent, and its certificate is for other names than this machine's own.
    let client = reqwest::Client::builder()
        .timeout(within)
        .no_proxy()
        .danger_accept_invalid_certs(true)
        .build()
        .map_err(|e| e.to_string())?;
    let path = if live { "/livez" } else { "/readyz" };
    let answer = client.get(format!("{}{path}", url.trim_end_matches('/'))).send().await;
    let mut answer = answer.map_err(|e| format!("no gateway at {url}: {}", innermost(&e)))?;
    // It says one word.
    let (status, word) = (answer.status(), answer.chunk().await.map_err(|e| innermost(&e))?);
    let text = String::from_utf8_lossy(&word.unwrap_or_default()).trim().to_string();
    if status.is_success() { Ok(text) } else { Err(format!("{text} (status {status})")) }
}
