//! `flotilla-agent health`: asks a running agent for its health, for process managers that restart
//! it (a container's HEALTHCHECK has no program other than ours).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use clap::Args;

use crate::types::causes::with_causes;
use crate::types::exit::Failed;
use crate::types::print::print_line;

/// Health checks understand two results: exit codes 0 and 1.
const EXIT_UNHEALTHY: u8 = 1;

/// `health`
#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Address that the agent listens on, as for `serve`
    #[arg(long, env = "FLOTILLA_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Check only that the agent runs, not that its model is loaded
    #[arg(long)]
    pub live: bool,
    /// Timeout in milliseconds
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub timeout_ms: u64,
}

impl HealthArgs {
    /// Prints the agent's response; fails unless it is healthy.
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| Failed::new(EXIT_UNHEALTHY, e))?;
        let answer =
            runtime.block_on(self.request()).map_err(|why| Failed::new(EXIT_UNHEALTHY, why))?;
        Ok(print_line(&answer)?)
    }

    async fn request(&self) -> Result<String, String> {
        let client = reqwest::Client::builder()
            .timeout(Duration::from_millis(self.timeout_ms))
            .no_proxy()
            .build()
            .map_err(|e| e.to_string())?;
        let path = if self.live { "/livez" } else { "/readyz" };
        let address = local_address(self.listen);
        let answer = client.get(format!("http://{address}{path}")).send().await;
        let mut answer =
            answer.map_err(|e| format!("no agent responds at {address}: {}", with_causes(&e)))?;
        // The response is one word.
        let (status, word) = (answer.status(), answer.chunk().await.map_err(|e| with_causes(&e))?);
        let text = String::from_utf8_lossy(&word.unwrap_or_default()).trim().to_string();
        if status.is_success() { Ok(text) } else { Err(format!("{text} (status {status})")) }
    }
}

/// The local address of a listener, also for one on all addresses.
fn local_address(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_this_machine() {
        let address_of = |text: &str| local_address(text.parse().unwrap()).to_string();
        assert_eq!(address_of("0.0.0.0:1"), "127.0.0.1:1");
        assert_eq!(address_of("[::]:2"), "127.0.0.1:2");
        assert_eq!(address_of("10.0.0.1:3"), "10.0.0.1:3");
    }
}
