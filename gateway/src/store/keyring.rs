//! The keys that encrypt what the store holds, and encrypted values.
//!
//! A value begins with a header: a mark, the id of its key, and a random salt. HKDF-SHA256 derives
//! a key for this value alone from both and from where the value belongs; AES-256-GCM encrypts with
//! it. So no key encrypts two values, however many there are, and a value that is moved to another
//! record, column or tenant cannot be decrypted. Without a key, values stay as they are.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::StoreError;

mod read;
#[cfg(test)]
mod tests;

/// What everything encrypted begins with: bytes that no text in UTF-8 has, and a version.
const MARK: [u8; 8] = [0xff, 0xf5, 0xc0, 0xfb, 0xc1, 0xf8, 0xfe, 1];
const SALT_BYTES: usize = 24;
const ID_BYTES: usize = 8;
/// Bytes before what is encrypted.
pub(super) const HEADER_BYTES: usize = MARK.len() + ID_BYTES + SALT_BYTES;
/// Bytes after it, which show whether it was altered.
pub(super) const TAG_BYTES: usize = 16;
/// What encrypted text begins with: characters that names of files never have.
const TEXT_MARK: &str = "\u{1}\u{2}\u{3}";

/// What derived keys are for, whatever else somebody uses the same key for.
const PURPOSE: &[u8] = b"flotilla store";
/// Values that are logged once; then all are logged again.
const LOGGED_MAX: usize = 1000;

/// The id of a key: the beginning of its digest.
type KeyId = [u8; ID_BYTES];

#[derive(Clone)]
struct Key {
    id: KeyId,
    secret: [u8; 32],
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({}, ***)", hex(&self.id))
    }
}

impl Key {
    fn new(secret: [u8; 32]) -> Self {
        let digest = Sha256::new().chain_update(b"flotilla store key id").chain_update(secret);
        let digest = digest.finalize();
        Self { id: std::array::from_fn(|i| digest[i]), secret }
    }

    /// The key of what is bound so and has this salt.
    fn derive(&self, salt: &[u8], binding: &Binding) -> Option<LessSafeKey> {
        let extracted = Salt::new(HKDF_SHA256, salt).extract(&self.secret);
        let info = [&*binding.0];
        let derived = extracted.expand(&info, &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

/// Where an encrypted value belongs: nowhere else it can be decrypted.
#[derive(Debug, Clone)]
pub(super) struct Binding(Vec<u8>);

impl Binding {
    /// A column of a tenant's record, such as `tasks.result`.
    pub(super) fn new(column: &str, tenant: &str, id: &str) -> Self {
        Self::numbered(column, tenant, id, 0)
    }

    /// One of several values of a column that belong to a record.
    pub(super) fn numbered(column: &str, tenant: &str, id: &str, number: u64) -> Self {
        let mut bytes = PURPOSE.to_vec();
        for part in [column, tenant, id] {
            bytes.extend((part.len() as u64).to_be_bytes());
            bytes.extend(part.as_bytes());
        }
        bytes.extend(number.to_be_bytes());
        Self(bytes)
    }

    /// For logs: column, tenant and id.
    fn text(&self) -> String {
        let (mut rest, mut parts) = (self.0.get(PURPOSE.len()..).unwrap_or_default(), Vec::new());
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let length = usize::try_from(u64::from_be_bytes(*length)).unwrap_or(usize::MAX);
            let Some((part, after)) = after.split_at_checked(length) else { break };
            parts.push(String::from_utf8_lossy(part));
            rest = if parts.len() < 3 { after } else { &[] };
        }
        parts.join(" ")
    }
}

/// Why something cannot be decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sealed {
    /// This gateway lacks its key.
    KeyMissing(KeyId),
    /// It was altered, or belongs elsewhere.
    Altered,
}

/// Keys: the first encrypts, all decrypt. Clones share them. Two are equal if they have the same
/// keys and do the same.
#[derive(Debug, Clone, Default)]
pub struct Keyring(Arc<Keys>);

#[derive(Debug, Default)]
struct Keys {
    keys: Vec<Key>,
    /// False if what is new is not encrypted.
    encrypts: bool,
    /// Values whose failure to decrypt was logged: requests for them are repeated.
    logged: Mutex<HashSet<String>>,
}

impl PartialEq for Keyring {
    fn eq(&self, other: &Self) -> bool {
        (self.0.encrypts, &self.0.keys) == (other.0.encrypts, &other.0.keys)
    }
}

impl Eq for Keyring {}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Key {}

impl Keyring {
    /// Logs the ids of the keys, by which errors name them.
    pub(super) fn log(&self) {
        let ids: Vec<String> = self.0.keys.iter().map(|key| hex(&key.id)).collect();
        if !ids.is_empty() {
            let (keys, encrypts) = (ids.join(" "), self.0.encrypts);
            tracing::info!(keys, encrypts, "keys of the store read");
        }
    }

    /// The header and the key of something new; `None` if that is not to be encrypted.
    pub(super) fn begin(
        &self,
        binding: &Binding,
    ) -> Result<Option<(Vec<u8>, LessSafeKey)>, StoreError> {
        let Some(key) = self.0.keys.first().filter(|_| self.0.encrypts) else { return Ok(None) };
        let mut salt = [0; SALT_BYTES];
        let derived = getrandom::fill(&mut salt).ok().and_then(|()| key.derive(&salt, binding));
        let derived = derived.ok_or_else(|| {
            tracing::error!("store cannot encrypt: the system gives no random numbers");
            StoreError::Unavailable
        })?;
        Ok(Some(([&MARK[..], &key.id, &salt].concat(), derived)))
    }

    /// The key of what begins so; `None` if that is not encrypted.
    pub(super) fn find(
        &self,
        binding: &Binding,
        begin: &[u8],
    ) -> Result<Option<LessSafeKey>, StoreError> {
        self.key_of(binding, begin).map_err(|error| self.failed(binding, error))
    }

    fn key_of(&self, binding: &Binding, begin: &[u8]) -> Result<Option<LessSafeKey>, Sealed> {
        if !is_marked(begin) {
            return Ok(None);
        }
        let rest = begin.strip_prefix(&MARK).ok_or(Sealed::Altered)?;
        let (id, rest) = rest.split_first_chunk::<ID_BYTES>().ok_or(Sealed::Altered)?;
        let (salt, _) = rest.split_first_chunk::<SALT_BYTES>().ok_or(Sealed::Altered)?;
        let key = self.0.keys.iter().find(|key| key.id == *id);
        let key = key.ok_or(Sealed::KeyMissing(*id))?;
        key.derive(salt, binding).map(Some).ok_or(Sealed::Altered)
    }

    /// A value as it is stored.
    pub(super) fn seal(&self, binding: &Binding, value: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        let Some((mut sealed, key)) = self.begin(binding)? else { return Ok(value) };
        let mut value = value;
        let tag = key.seal_in_place_separate_tag(only_nonce(), Aad::empty(), &mut value);
        let tag = tag.map_err(|_| self.failed(binding, Sealed::Altered))?;
        sealed.reserve(value.len() + TAG_BYTES);
        sealed.extend(value);
        sealed.extend(tag.as_ref());
        Ok(sealed)
    }

    /// A value that was stored.
    pub(super) fn open(&self, binding: &Binding, stored: Vec<u8>) -> Result<Vec<u8>, StoreError> {
        self.try_open(binding, stored).map_err(|error| self.failed(binding, error))
    }

    fn try_open(&self, binding: &Binding, mut stored: Vec<u8>) -> Result<Vec<u8>, Sealed> {
        let Some(key) = self.key_of(binding, &stored)? else { return Ok(stored) };
        let opened = key.open_within(only_nonce(), Aad::empty(), &mut stored, HEADER_BYTES..);
        let length = opened.map_err(|_| Sealed::Altered)?.len();
        stored.truncate(length);
        Ok(stored)
    }

    /// A text as it is stored.
    pub(super) fn seal_text(&self, binding: &Binding, text: &str) -> Result<String, StoreError> {
        if !self.0.encrypts {
            return Ok(text.into());
        }
        Ok(format!("{TEXT_MARK}{}", STANDARD.encode(self.seal(binding, text.into())?)))
    }

    /// A text that was stored.
    pub(super) fn open_text(
        &self,
        binding: &Binding,
        stored: String,
    ) -> Result<String, StoreError> {
        if !stored.contains(|c| TEXT_MARK.contains(c)) {
            return Ok(stored);
        }
        let text = stored.strip_prefix(TEXT_MARK).ok_or(Sealed::Altered);
        let text = text.and_then(|text| STANDARD.decode(text).map_err(|_| Sealed::Altered));
        let sealed = text.and_then(|sealed| match is_marked(&sealed) {
            true => self.try_open(binding, sealed),
            false => Err(Sealed::Altered),
        });
        let text = sealed.and_then(|text| String::from_utf8(text).map_err(|_| Sealed::Altered));
        text.map_err(|error| self.failed(binding, error))
    }

    /// Logs that something was altered.
    pub(super) fn altered(&self, binding: &Binding) -> StoreError {
        self.failed(binding, Sealed::Altered)
    }

    /// Logs why a value cannot be decrypted, once for each.
    fn failed(&self, binding: &Binding, error: Sealed) -> StoreError {
        let value = binding.text();
        let mut logged = self.0.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() >= LOGGED_MAX {
            logged.clear();
        }
        if logged.insert(value.clone()) {
            match error {
                Sealed::KeyMissing(id) => tracing::error!(
                    value,
                    key = hex(&id),
                    "stored value cannot be decrypted: \
                     its key is not in store.encryption_key_file"
                ),
                Sealed::Altered => {
                    tracing::error!(value, "stored value cannot be decrypted: it was altered")
                }
            }
        }
        StoreError::Unavailable
    }
}

/// True if something is encrypted, even if some of its mark was altered.
fn is_marked(begin: &[u8]) -> bool {
    let equal = MARK.iter().zip(begin).filter(|(mark, byte)| mark == byte).count();
    equal > 0 && equal * 2 >= MARK.len().min(begin.len())
}

/// The key of a value encrypts nothing else.
fn only_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
