//! The account at the ACME server. It is created once and stored.

use instant_acme::{Account, Error, NewAccount, NewOrder, Order};

use super::client::{Client, RetryAfter};
use super::store::{self, StoredAccount, blocking};
use crate::config::acme::Acme;

/// The ACME server no longer knows the account.
const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// Places an order with the stored account. Creates an account if there is none, or if the ACME
/// server does not know it any more.
///
/// # Errors
/// Why there is no order.
pub(super) async fn new_order(
    acme: &Acme,
    retry_after: &RetryAfter,
    order: &NewOrder<'_>,
) -> Result<Order, String> {
    let refused = |e: Error| format!("order refused: {e}");
    if let Some(account) = open(acme, retry_after).await? {
        match account.new_order(order).await {
            Err(Error::Api(problem)) if problem.r#type.as_deref() == Some(UNKNOWN_ACCOUNT) => {
                tracing::warn!("the ACME server does not know the account any more");
            }
            placed => return placed.map_err(refused),
        }
    }
    create(acme, retry_after).await?.new_order(order).await.map_err(refused)
}

/// Opens the stored account, with the contact of the configuration; `None` if there is none.
async fn open(acme: &Acme, retry_after: &RetryAfter) -> Result<Option<Account>, String> {
    let folder = acme.folder.clone();
    let Some(stored) = blocking(move || store::read_account(&folder)).await? else {
        return Ok(None);
    };
    let client = Client::new(acme.roots.as_deref(), retry_after.clone())?;
    let builder = Account::builder_with_http(Box::new(client));
    let account = builder.from_credentials(stored.credentials).await;
    let account = account.map_err(|e| format!("cannot open the account: {e}"))?;
    if stored.email != acme.email {
        update_contact(acme, &account).await;
    }
    Ok(Some(account))
}

/// Tells the ACME server a new contact. It is not needed for a certificate, so failures are logged
/// only.
async fn update_contact(acme: &Acme, account: &Account) {
    let contact = contact(acme);
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    let updated = match account.update_contacts(&contact).await {
        Ok(()) => {
            let (folder, email) = (acme.folder.clone(), acme.email.clone());
            blocking(move || store::write_email(&folder, email)).await
        }
        Err(error) => Err(error.to_string()),
    };
    if let Err(why) = updated {
        tracing::warn!(why, "contact of the ACME account not updated");
    }
}

/// Creates and stores an account. To configure ACME is to agree to the server's terms of service
/// (docs/config.md).
async fn create(acme: &Acme, retry_after: &RetryAfter) -> Result<Account, String> {
    let contact = contact(acme);
    let new = NewAccount {
        contact: &contact.iter().map(String::as_str).collect::<Vec<_>>(),
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let client = Client::new(acme.roots.as_deref(), retry_after.clone())?;
    let builder = Account::builder_with_http(Box::new(client));
    let created = builder.create(&new, acme.directory.clone(), None).await;
    let (account, credentials) = created.map_err(|e| format!("cannot create an account: {e}"))?;
    let (folder, email) = (acme.folder.clone(), acme.email.clone());
    let stored = StoredAccount { email, credentials };
    blocking(move || store::write_account(&folder, &stored)).await?;
    tracing::info!(directory = acme.directory, "ACME account created");
    Ok(account)
}

fn contact(acme: &Acme) -> Option<String> {
    acme.email.as_ref().map(|email| format!("mailto:{email}"))
}
