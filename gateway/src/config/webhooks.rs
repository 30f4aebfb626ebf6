//! Reads `webhooks`: who is told when stored work ends.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::files::{self, Files};
use super::section::{Problems, Section};
use super::values::{report, unique_name};
use crate::upstream::webhook::Receiver;

const CERTIFICATES_BYTES_MAX: u64 = 1024 * 1024;
/// Receivers.
const WEBHOOKS_MAX: usize = 1000;

/// Events that a receiver may get.
const EVENTS: [&str; 11] = [
    "batch.cancelled",
    "batch.completed",
    "batch.expired",
    "batch.failed",
    "job.cancelled",
    "job.completed",
    "job.failed",
    "response.cancelled",
    "response.completed",
    "response.failed",
    "response.incomplete",
];

/// A receiver, and what it is told.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// Its name in logs and metrics.
    pub name: String,
    /// Where it is.
    pub receiver: Arc<Receiver>,
    /// Tenants whose work it is told about; empty for all.
    tenants: BTreeSet<String>,
    /// Events that it gets; empty for all.
    events: BTreeSet<String>,
}

impl Webhook {
    /// True if it is told about this event of this tenant.
    pub(crate) fn wants(&self, tenant: &str, event: &str) -> bool {
        let has = |set: &BTreeSet<String>, one| set.is_empty() || set.contains(one);
        has(&self.tenants, tenant) && has(&self.events, event)
    }
}

/// Reads the list.
pub(super) fn read(root: &mut Section, files: &Files, problems: &mut Problems) -> Vec<Webhook> {
    let mut names = BTreeSet::new();
    let items = root.list("webhooks", problems);
    if items.len() > WEBHOOKS_MAX {
        root.report("webhooks", &format!("expected at most {WEBHOOKS_MAX}"), problems);
    }
    items.into_iter().filter_map(|item| read_one(item, files, &mut names, problems)).collect()
}

fn read_one(
    mut item: Section,
    files: &Files,
    names: &mut BTreeSet<String>,
    problems: &mut Problems,
) -> Option<Webhook> {
    let name = unique_name(&mut item, names, problems);
    let url = item.required_text("url", problems);
    let secret_file = item.required_text("secret_file", problems);
    let ca_file = item.text("ca_file", problems);
    let allows_private = item.boolean("allow_private", false, problems);
    let tenants = item.texts("tenants", problems).into_iter().collect();
    let events: BTreeSet<String> = item.texts("events", problems).into_iter().collect();
    if let Some(unknown) = events.iter().find(|event| !EVENTS.contains(&event.as_str())) {
        let message = format!("{unknown} is unknown; expected some of {}", EVENTS.join(", "));
        item.report("events", &message, problems);
    }
    let path = item.path.clone();
    item.finish(problems);
    let of = |key| format!("{path}.{key}");
    let secret = report(&of("secret_file"), files.key(&secret_file?), problems)?;
    let roots = ca_file.map(|file| files::read(&files.path(&file), CERTIFICATES_BYTES_MAX));
    let roots = report(&of("ca_file"), roots.transpose(), problems)?;
    let roots = roots.as_deref().map(str::as_bytes);
    let receiver = Receiver::new(&url?, &secret, allows_private, roots);
    let receiver = Arc::new(report(&path, receiver, problems)?);
    Some(Webhook { name: name?, receiver, tenants, events })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_without_lists_is_told_everything() {
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let receiver = Receiver::new("https://example.com/", secret, false, None).unwrap();
        let (tenants, events) = (BTreeSet::new(), BTreeSet::new());
        let mut hook = Webhook { name: "a".into(), receiver: receiver.into(), tenants, events };
        assert!(EVENTS.iter().all(|event| hook.wants("t", event)));
        hook.tenants.insert("t".into());
        hook.events.insert("batch.failed".into());
        assert!(hook.wants("t", "batch.failed"));
        assert!(!hook.wants("t", "batch.expired") && !hook.wants("u", "batch.failed"));
    }
}
