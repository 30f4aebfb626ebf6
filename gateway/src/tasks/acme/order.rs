//! One order at an ACME server: challenges, then the certificate.

use std::time::Duration;

use instant_acme::{
    AuthorizationHandle, AuthorizationStatus, ChallengeType, Error, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};

use super::account;
use super::client::RetryAfter;
use super::store::{self, blocking};
use crate::config::acme::{Acme, Challenge};
use crate::config::tls::live::{Certificate, LiveCertificate};

/// How long the ACME server may take to validate the domains, and then to issue the certificate.
/// It says in its responses when to ask again.
const POLL: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(90));

/// Orders a certificate and stores it.
///
/// # Errors
/// Why there is none.
pub(super) async fn order(acme: &Acme, retry_after: &RetryAfter) -> Result<Certificate, String> {
    let names: Vec<Identifier> = acme.domains.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account::new_order(acme, retry_after, &NewOrder::new(&names)).await?;
    // Dropped when the order ends, however it ends.
    let answers = Answers(&acme.certificate);
    publish_answers(&mut order, acme).await?;
    let fail = |e: Error| format!("certificate not issued: {e}");
    match order.poll_ready(&POLL).await {
        Ok(OrderStatus::Ready | OrderStatus::Valid) => {}
        Ok(_) => return Err(why_invalid(&mut order, "the order is invalid".into()).await),
        Err(Error::Api(problem)) => {
            return Err(why_invalid(&mut order, problem.to_string()).await);
        }
        Err(error) => return Err(format!("domains not validated: {error}")),
    }
    let key = order.finalize().await.map_err(fail)?;
    let chain = order.poll_certificate(&POLL).await.map_err(fail)?;
    drop(answers);
    let text = format!("{}\n{key}", chain.trim_end());
    let certificate = Certificate::parse(&text)?;
    let (folder, path) = (acme.folder.clone(), acme.certificate_file());
    let stored = blocking(move || store::write(&folder, &path, &text)).await;
    if let Err(why) = stored {
        // It is valid all the same.
        tracing::error!(why, "certificate not stored: a restart must order another one");
    }
    Ok(certificate)
}

/// Answers to challenges; dropping it takes them back.
struct Answers<'a>(&'a LiveCertificate);

impl Drop for Answers<'_> {
    fn drop(&mut self) {
        self.0.forget_challenges();
    }
}

/// Publishes the answers to the challenges of all domains that are not validated yet, and tells the
/// ACME server that it may ask for them.
async fn publish_answers(order: &mut Order, acme: &Acme) -> Result<(), String> {
    let fail = |e: Error| format!("cannot begin validation: {e}");
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(fail)?;
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => return Err(format!("the authorization of a domain is {status:?}")),
        }
        let kind = match acme.challenge {
            Challenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            Challenge::Http01 => ChallengeType::Http01,
        };
        let challenge = authorization.challenge(kind);
        let none = || format!("the ACME server does not offer {}", acme.challenge.name());
        let mut challenge = challenge.ok_or_else(none)?;
        let answer = challenge.key_authorization();
        match acme.challenge {
            Challenge::TlsAlpn01 => {
                let domain = challenge.identifier().to_string();
                acme.certificate.answer_tls(&domain, answer.digest().as_ref())?;
            }
            Challenge::Http01 => acme.certificate.answer_http(&challenge.token, answer.as_str()),
        }
        challenge.set_ready().await.map_err(fail)?;
    }
    Ok(())
}

/// Why the ACME server did not validate the domains: what it says about each challenge, or else
/// about the order.
async fn why_invalid(order: &mut Order, otherwise: String) -> String {
    let mut found = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_ok() {
            found.extend(problems(&authorization));
        }
    }
    match found.is_empty() {
        true => format!("domains not validated: {otherwise}"),
        false => format!("domains not validated: {}", found.join("; ")),
    }
}

/// Problems of the challenges of one domain.
fn problems(authorization: &AuthorizationHandle<'_>) -> Vec<String> {
    let domain = authorization.identifier().to_string();
    let problems = authorization.challenges.iter().filter_map(|one| one.error.as_ref());
    problems.map(|problem| format!("{domain}: {problem}")).collect()
}
