//! Keys of the store, as a running gateway's admin API changes them.

use inference_protocol::ids::is_plain_id;
use reqwest::Method;

use super::nodes::AdminClient;
use crate::access::keys::ApiKey;
use crate::config::{api_keys, key_entries};
use crate::control::keys::{KEYS_PATH, KeyChanges};

impl AdminClient {
    /// The keys of the store.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn keys(&self) -> Result<Vec<ApiKey>, String> {
        let text = self.text(KEYS_PATH).await?;
        api_keys::read_text(&text).map_err(|_| "unexpected response: no list of keys".into())
    }

    /// Adds keys, none of which may be there.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn add_keys(&self, keys: &[ApiKey]) -> Result<KeyChanges, String> {
        self.send_text(Method::POST, KEYS_PATH, key_entries::to_yaml(keys)?).await
    }

    /// Adds keys, and replaces those with the same names.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn put_keys(&self, keys: &[ApiKey]) -> Result<KeyChanges, String> {
        self.send_text(Method::PUT, KEYS_PATH, key_entries::to_yaml(keys)?).await
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn delete_key(&self, name: &str) -> Result<KeyChanges, String> {
        // Other characters would change the path.
        if !is_plain_id(name) {
            return Err(format!("invalid name '{name}'"));
        }
        self.send_text(Method::DELETE, &format!("{KEYS_PATH}/{name}"), String::new()).await
    }
}
