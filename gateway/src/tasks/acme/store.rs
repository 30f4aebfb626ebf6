//! The folder of the account and the certificate. Every file is written atomically and only its
//! owner reads it.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use instant_acme::AccountCredentials;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::schedule::forget_old;
use crate::config::files;
use crate::types::atomic_file::replace;

const ACCOUNT_FILE: &str = "account.json";
const ATTEMPTS_FILE: &str = "attempts.json";
const BYTES_MAX: u64 = 64 * 1024;
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// The account at the ACME server: its URL and key, and the contact that it was given.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredAccount {
    pub email: Option<String>,
    pub credentials: AccountCredentials,
}

/// The stored account, if there is one.
///
/// # Errors
/// The file is unreadable.
pub(super) fn read_account(folder: &Path) -> Result<Option<StoredAccount>, String> {
    let path = folder.join(ACCOUNT_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = files::read(&path, BYTES_MAX)?;
    serde_json::from_str(&text).map(Some).map_err(|e| format!("{}: {e}", path.display()))
}

/// Stores the account.
pub(super) fn write_account(folder: &Path, account: &StoredAccount) -> Result<(), String> {
    let text = serde_json::to_string(account).map_err(|e| e.to_string())?;
    write(folder, &folder.join(ACCOUNT_FILE), &text)
}

/// Changes the contact in the stored account.
pub(super) fn write_email(folder: &Path, email: Option<String>) -> Result<(), String> {
    match read_account(folder)? {
        Some(account) => write_account(folder, &StoredAccount { email, ..account }),
        None => Ok(()),
    }
}

/// Times of the attempts that count towards the limit. An unreadable file counts as none.
pub(super) fn read_attempts(folder: &Path, now: u64) -> Vec<u64> {
    let text = files::read(&folder.join(ATTEMPTS_FILE), BYTES_MAX).unwrap_or_default();
    let mut attempts: Vec<u64> = serde_json::from_str(&text).unwrap_or_default();
    forget_old(&mut attempts, now);
    attempts
}

/// Stores the times of the attempts.
pub(super) fn write_attempts(folder: &Path, attempts: &[u64]) -> Result<(), String> {
    let text = serde_json::to_string(attempts).map_err(|e| e.to_string())?;
    write(folder, &folder.join(ATTEMPTS_FILE), &text)
}

/// Runs file operations, which can take long, on a thread for them.
pub(super) async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    spawn_blocking(run).await.unwrap_or_else(|e| Err(e.to_string()))
}

/// Writes a secret file into the folder, which need not exist.
pub(super) fn write(folder: &Path, path: &Path, text: &str) -> Result<(), String> {
    let fail = |path: &Path, e| format!("cannot write {}: {e}", path.display());
    let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder);
    made.map_err(|e| fail(folder, e))?;
    replace(path, text, FILE_MODE).map_err(|e| fail(path, e))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ACCOUNT: &str = r#"{"email":"ops@example.com","credentials":{"id":"https://ca/1",
        "key_pkcs8":"AAAA","directory":"https://ca/directory"}}"#;

    #[test]
    fn what_is_written_is_read_again_and_only_its_owner_reads_it() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("acme/ca.example");
        assert!(read_account(&folder).unwrap().is_none());
        assert_eq!(read_attempts(&folder, 9), [0; 0]);
        let account: StoredAccount = serde_json::from_str(ACCOUNT).unwrap();
        write_account(&folder, &account).unwrap();
        let read = read_account(&folder).unwrap().unwrap();
        assert_eq!(read.email.as_deref(), Some("ops@example.com"));
        write_attempts(&folder, &[5, 8]).unwrap();
        assert_eq!(read_attempts(&folder, 9), [5, 8]);
        assert_eq!(read_attempts(&folder, 3604), [5, 8]);
        assert_eq!(read_attempts(&folder, 3605), [8]);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join(ACCOUNT_FILE)), 0o600);
        assert_eq!(mode(&folder.join(ATTEMPTS_FILE)), 0o600);
    }

    #[test]
    fn a_broken_account_is_an_error_and_not_a_new_account() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(ACCOUNT_FILE), "{").unwrap();
        assert!(read_account(folder.path()).err().unwrap().contains(ACCOUNT_FILE));
        let nowhere = folder.path().join(ACCOUNT_FILE).join("acme");
        assert!(write_attempts(&nowhere, &[]).unwrap_err().contains("cannot write"));
    }
}
