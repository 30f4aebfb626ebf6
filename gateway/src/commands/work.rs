//! `flotilla-gateway batches` and `jobs`: stored work of all tenants, as a running gateway's admin
//! API shows it.

use std::time::SystemTime;

use inference_protocol::ids::is_plain_id;
use inference_protocol::time::unix_seconds;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::nodes::{AdminClient, columns, span};
use crate::control::work::{BATCHES_PATH, BatchList, BatchView, TASKS_PATH, TaskList, TaskView};

/// Characters of a name in a table; longer ones are cut off.
const NAME_MAX: usize = 40;
/// Digits of a gateway's id in a table.
const GATEWAY_DIGITS: usize = 8;

/// Which work to list.
#[derive(Debug, Clone)]
pub struct Listing {
    /// Most entries.
    pub limit: u16,
    /// The tenant; `None` for all.
    pub tenant: Option<String>,
}

impl Listing {
    fn path(&self, root: &str) -> String {
        let tenant = self.tenant.as_deref().map_or(String::new(), |tenant| {
            format!("&tenant={}", utf8_percent_encode(tenant, NON_ALPHANUMERIC))
        });
        format!("{root}?limit={}{tenant}", self.limit)
    }
}

impl AdminClient {
    /// Batches.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn batches(&self, listing: &Listing) -> Result<BatchList, String> {
        self.get(&listing.path(BATCHES_PATH)).await
    }

    /// Responses and jobs in the background.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn tasks(&self, listing: &Listing) -> Result<TaskList, String> {
        self.get(&listing.path(TASKS_PATH)).await
    }

    /// Cancels a batch.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn cancel_batch(&self, id: &str) -> Result<BatchView, String> {
        self.post(&cancellation(BATCHES_PATH, id)?).await
    }

    /// Cancels a response or job in the background.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn cancel_task(&self, id: &str) -> Result<TaskView, String> {
        self.post(&cancellation(TASKS_PATH, id)?).await
    }
}

fn cancellation(root: &str, id: &str) -> Result<String, String> {
    // Other characters would change the path.
    match is_plain_id(id) {
        true => Ok(format!("{root}/{id}/cancel")),
        false => Err(format!("invalid id '{id}'")),
    }
}

/// Formats batches as a table.
pub fn batch_table(list: &BatchList) -> String {
    let now = unix_seconds(SystemTime::now());
    let rows = list.batches.iter().map(|batch| {
        vec![
            shown(&batch.id),
            shown(&batch.tenant),
            batch.status.clone(),
            shown(&batch.endpoint),
            format!("{}/{}", batch.completed + batch.failed, batch.lines),
            batch.failed.to_string(),
            span(now.saturating_sub(batch.created_at)),
            batch.predicted_end_at.map_or("-".into(), |end| span(end.saturating_sub(now))),
            gateway(batch.gateway.as_deref(), &list.gateway),
        ]
    });
    let head =
        ["ID", "TENANT", "STATUS", "ENDPOINT", "LINES", "FAILED", "AGE", "ENDS IN", "GATEWAY"];
    with_end(columns(&head, rows.collect()), list.has_more)
}

/// Formats responses and jobs in the background as a table.
pub fn task_table(list: &TaskList) -> String {
    let now = unix_seconds(SystemTime::now());
    let rows = list.tasks.iter().map(|task| {
        vec![
            shown(&task.id),
            shown(&task.tenant),
            task.kind.clone(),
            task.status.clone(),
            shown(&task.endpoint),
            shown(&task.model),
            span(now.saturating_sub(task.created_at)),
            gateway(task.gateway.as_deref(), &list.gateway),
        ]
    });
    let head = ["ID", "TENANT", "KIND", "STATUS", "ENDPOINT", "MODEL", "AGE", "GATEWAY"];
    with_end(columns(&head, rows.collect()), list.has_more)
}

fn with_end(table: String, has_more: bool) -> String {
    if has_more { table + "\nThere are more: set --limit or --tenant." } else { table }
}

/// A text of a client or a node, which must not control the terminal.
fn shown(text: &str) -> String {
    if text.is_empty() {
        return "-".into();
    }
    let is_safe = |c: char| c.is_ascii_graphic() || c.is_alphanumeric();
    text.chars().take(NAME_MAX).map(|c| if is_safe(c) { c } else { '?' }).collect()
}

/// `this` is the gateway that responds.
fn gateway(owner: Option<&str>, this: &str) -> String {
    match owner {
        None => "-".into(),
        Some(owner) if owner == this => "this".into(),
        Some(owner) => shown(owner).chars().take(GATEWAY_DIGITS).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_listed_with_their_lines_and_their_end() {
        let now = unix_seconds(SystemTime::now());
        let batch = BatchView {
            id: "batch_1".into(),
            tenant: "ada".into(),
            status: "in_progress".into(),
            endpoint: "/v1/embeddings".into(),
            created_at: now - 60 * 60 * 3,
            expires_at: now + 60,
            ended_at: None,
            predicted_end_at: Some(now + 60 * 60 * 5 + 60),
            lines: 100,
            completed: 18,
            failed: 2,
            gateway: Some("0123456789abcdef".into()),
        };
        let ended = BatchView { predicted_end_at: None, gateway: None, ..batch.clone() };
        let batches = vec![batch, ended];
        let list = BatchList { gateway: "fedc".into(), batches, has_more: true };
        let table = batch_table(&list);
        let lines: Vec<&str> = table.lines().collect();
        let head =
            "ID       TENANT  STATUS       ENDPOINT        LINES   FAILED  AGE  ENDS IN  GATEWAY";
        assert_eq!(lines[0], head, "{table}");
        let row =
            "batch_1  ada     in_progress  /v1/embeddings  20/100  2       3h   5h       01234567";
        assert_eq!(lines[1], row, "{table}");
        assert!(lines[2].ends_with("3h   -        -"), "{table}");
        assert!(lines[3].contains("--limit"), "{table}");
    }

    #[test]
    fn texts_of_others_do_not_control_the_terminal() {
        let task = TaskView {
            id: "job_1".into(),
            tenant: "ada".into(),
            kind: "job".into(),
            status: "queued".into(),
            endpoint: "/v1/rerank".into(),
            model: "\u{1b}[2J\nm".into(),
            created_at: 0,
            gateway: Some("me".into()),
        };
        let nameless = TaskView { model: String::new(), ..task.clone() };
        let tasks = vec![task, nameless];
        let table = task_table(&TaskList { gateway: "me".into(), tasks, has_more: false });
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        let row = "job_1  ada     job   queued  /v1/rerank  ?[2J?m  ";
        assert!(lines[1].starts_with(row) && lines[1].ends_with("  this"), "{table}");
        assert!(lines[2].contains("/v1/rerank  -  "), "{table}");
    }

    #[test]
    fn a_tenant_and_an_id_cannot_change_the_path() {
        let listing = Listing { limit: 7, tenant: Some("a&b=c".into()) };
        assert_eq!(listing.path("/x"), "/x?limit=7&tenant=a%26b%3Dc");
        assert_eq!(cancellation("/x", "job_1").unwrap(), "/x/job_1/cancel");
        assert!(cancellation("/x", "../nodes/a").is_err());
    }
}
