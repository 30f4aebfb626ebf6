//! Gets the public listener's certificate from an ACME server and renews it in the background.
//!
//! The certificate is stored, so a restart needs no ACME server. Start reading here; [`order`]
//! talks to the server, [`schedule`] (pure) says when.

use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::config::acme::Acme;
use crate::config::tls::live::{Certificate, Validity};
use crate::context::Gateway;
use crate::types::random::random;

mod account;
mod client;
mod order;
mod schedule;
mod store;

use client::RetryAfter;
use schedule::{limit_delay, next_renewal_delay, renewal_delay, retry_delay};
use store::blocking;

/// Timeout of an attempt, from the first request to the stored certificate.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest sleep: the machine may be suspended, and its clock may be set.
const SLEEP_MAX: Duration = Duration::from_secs(600);

/// Keeps the certificate valid until the gateway stops, or `retired` is canceled because the
/// settings have changed.
pub(crate) async fn maintain(gateway: Gateway, acme: Acme, retired: CancellationToken) {
    let mut renewal = Renewal { gateway: gateway.clone(), acme, failures: 0 };
    tokio::select! {
        () = renewal.run() => {}
        () = retired.cancelled() => {}
        () = gateway.stop.cancelled() => {}
    }
    // With other settings, another task has taken over.
    if gateway.settings.now().config.acme.is_none() {
        gateway.metrics.forget_certificate();
    }
}

struct Renewal {
    gateway: Gateway,
    acme: Acme,
    /// Failed attempts in a row.
    failures: u32,
}

impl Renewal {
    async fn run(&mut self) {
        let mut due = match self.load().await {
            Some(validity) => now().saturating_add(renewal_delay(validity, now()).as_secs()),
            None => now(),
        };
        loop {
            due = due.max(now() + self.limit().await.as_secs());
            while let Some(left) = due.checked_sub(now()).filter(|left| *left > 0) {
                tokio::time::sleep(Duration::from_secs(left).min(SLEEP_MAX)).await;
            }
            due = now() + self.attempt().await.as_secs();
        }
    }

    /// Loads the stored certificate. Returns when it is valid, unless another one must be ordered
    /// at once.
    async fn load(&self) -> Option<Validity> {
        let file = self.acme.certificate_file();
        let stored = blocking(move || Certificate::read(&file)).await;
        let stored = stored.unwrap_or_else(|why| {
            tracing::error!(why, "stored certificate unusable; ordering another one");
            None
        });
        let Some(certificate) = stored else {
            if self.acme.certificate.get().is_none() {
                let domains = self.acme.domains.join(",");
                tracing::warn!(
                    domains,
                    "no certificate yet: TLS handshakes fail until one is issued"
                );
            }
            return None;
        };
        let covers = certificate.covers(&self.acme.domains);
        let validity = self.serve(certificate);
        let expires_in_s = validity.not_after.saturating_sub(now());
        tracing::info!(expires_in_s, covers, "certificate loaded");
        covers.then_some(validity)
    }

    fn serve(&self, certificate: Certificate) -> Validity {
        let validity = certificate.validity;
        let domain = self.acme.domains.first().map_or("", String::as_str);
        self.gateway.metrics.set_certificate(domain, validity.not_before, validity.not_after);
        self.acme.certificate.set(certificate);
        validity
    }

    /// How long the limit on attempts delays the next one.
    async fn limit(&self) -> Duration {
        let folder = self.acme.folder.clone();
        let attempts = blocking(move || Ok(store::read_attempts(&folder, now()))).await;
        let wait = limit_delay(&attempts.unwrap_or_default(), now());
        if !wait.is_zero() {
            let retry_in_s = wait.as_secs();
            tracing::warn!(retry_in_s, "too many failed attempts to get a certificate in an hour");
        }
        wait
    }

    /// Orders a certificate and serves it. Returns the time until the next attempt.
    async fn attempt(&mut self) -> Duration {
        let retry_after = RetryAfter::default();
        let attempt = Box::pin(try_once(&self.acme, &retry_after));
        let done = timeout(ATTEMPT_TIMEOUT, attempt).await;
        let done = done.unwrap_or_else(|_| Err("the ACME server takes too long".into()));
        // A timeout drops the order, but a pending challenge must not outlive it either.
        self.acme.certificate.forget_challenges();
        self.gateway.metrics.record_certificate_order(done.is_ok());
        match done {
            Ok(certificate) => self.record_success(certificate),
            Err(why) => {
                let asked = *retry_after.lock().unwrap_or_else(PoisonError::into_inner);
                self.record_failure(&why, asked)
            }
        }
    }

    fn record_success(&mut self, certificate: Certificate) -> Duration {
        self.failures = 0;
        let validity = self.serve(certificate);
        let wait = next_renewal_delay(validity, now());
        let expires_in_s = validity.not_after.saturating_sub(now());
        let (domains, renewal_in_s) = (self.acme.domains.join(","), wait.as_secs());
        tracing::info!(domains, expires_in_s, renewal_in_s, "certificate issued");
        wait
    }

    /// `asked` is how long the ACME server wants us to wait.
    fn record_failure(&mut self, why: &str, asked: Option<Duration>) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let wait = retry_delay(self.failures, fraction()).max(asked.unwrap_or_default());
        let (domains, retry_in_s) = (self.acme.domains.join(","), wait.as_secs());
        let (failures, has_one) = (self.failures, self.acme.certificate.get().is_some());
        tracing::error!(domains, why, failures, retry_in_s, has_one, "certificate not issued");
        wait
    }
}

/// One attempt. It counts as failed until it has succeeded, so a gateway that dies in the middle
/// of attempts keeps to the limit, too.
async fn try_once(acme: &Acme, retry_after: &RetryAfter) -> Result<Certificate, String> {
    let folder = acme.folder.clone();
    let recorded = blocking(move || {
        let mut attempts = store::read_attempts(&folder, now());
        attempts.push(now());
        store::write_attempts(&folder, &attempts)
    });
    recorded.await?;
    let certificate = order::order(acme, retry_after).await?;
    let folder = acme.folder.clone();
    if let Err(why) = blocking(move || store::write_attempts(&folder, &[])).await {
        tracing::warn!(why, "attempt not forgotten; it counts towards the hourly limit");
    }
    Ok(certificate)
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// A random number from 0 to 1.
fn fraction() -> f64 {
    random() as f64 / u128::MAX as f64
}
