//! Tests of lists of stored work.

use super::super::sql::values;
use super::super::testing::{SECRET, batch, task, with_store};
use super::super::{BackgroundTask, Batch, TaskEnd};
use super::*;

async fn add_batch(store: &Store, id: &str, tenant: &str) {
    store.insert_batch(batch(id, tenant), 10).await.unwrap();
}

async fn end_batch(store: &Store, id: &str, tenant: &str) {
    let batch = store.batch(tenant, id).await.unwrap();
    let end = |batch: &mut Batch| {
        batch.status = BatchStatus::Completed;
        Vec::new()
    };
    store.update_batch(&batch, end).await.unwrap();
}

async fn add_task(store: &Store, id: &str) -> BackgroundTask {
    let task = task(id, "ada");
    store.insert_task(task.clone(), SECRET.into(), SECRET.into(), 10).await.unwrap();
    task
}

async fn batches(store: &Store, tenant: Option<&str>, limit: usize) -> (Vec<String>, bool) {
    let filter = Filter { tenant: tenant.map(Into::into), limit };
    let (batches, has_more) = store.list_batches(filter).await.unwrap();
    (batches.into_iter().map(|batch| batch.id).collect(), has_more)
}

fn ids(ids: &[&str], has_more: bool) -> (Vec<String>, bool) {
    (ids.iter().map(ToString::to_string).collect(), has_more)
}

#[tokio::test]
async fn a_list_is_bounded_and_drops_what_has_ended_before_what_has_not() {
    with_store(async |store| {
        for id in ["a", "b", "c", "d"] {
            add_batch(store, id, "ada").await;
        }
        end_batch(store, "b", "ada").await;
        end_batch(store, "d", "ada").await;
        assert_eq!(batches(store, None, 4).await, ids(&["d", "c", "b", "a"], false));
        assert_eq!(batches(store, None, 3).await, ids(&["d", "c", "a"], true));
        assert_eq!(batches(store, None, 2).await, ids(&["c", "a"], true));
        assert_eq!(batches(store, None, 1).await, ids(&["c"], true));
    })
    .await;
}

#[tokio::test]
async fn a_list_has_all_tenants_or_one() {
    with_store(async |store| {
        add_batch(store, "a", "ada").await;
        add_batch(store, "b", "bob").await;
        end_batch(store, "a", "ada").await;
        assert_eq!(batches(store, None, 10).await, ids(&["b", "a"], false));
        assert_eq!(batches(store, Some("ada"), 10).await, ids(&["a"], false));
        assert_eq!(batches(store, Some("bob"), 10).await, ids(&["b"], false));
        assert_eq!(batches(store, Some("eve' OR 1=1"), 10).await, ids(&[], false));
        let found = store.any_batch("b").await.unwrap();
        assert_eq!((found.tenant.as_str(), found.owner.as_deref()), ("bob", Some("me")));
        assert_eq!(store.any_batch("c").await, Err(StoreError::Unknown));
    })
    .await;
}

#[tokio::test]
async fn a_task_has_the_status_with_which_it_has_ended() {
    with_store(async |store| {
        let status = async |id| store.any_task(id).await.unwrap().status;
        let task = add_task(store, "resp_1").await;
        assert_eq!(status("resp_1").await, "queued");
        let live = store.live(&task);
        live.begin();
        assert_eq!(status("resp_1").await, "in_progress");
        drop(live);
        store.record_begin("resp_1").await.unwrap();
        assert_eq!(status("resp_1").await, "in_progress");
        let (events, messages) = (Vec::new(), Vec::new());
        let end = TaskEnd { status: "incomplete".into(), result: b"{}".into(), events, messages };
        store.finish_task(&task, end).await.unwrap();
        assert_eq!(status("resp_1").await, "incomplete");
        let (known, _) = store.task("ada", "resp_1").await.unwrap();
        assert_eq!(known, BackgroundTask { is_active: false, has_begun: true, bytes: 2, ..task });
        // One that ended before the status was stored.
        add_task(store, "job_1").await;
        let end = |transaction: &mut Transaction<'_>| {
            let sql = "UPDATE tasks SET is_active = 0 WHERE id = ?1";
            Ok(transaction.execute(sql, values!["job_1"])?)
        };
        store.0.database.run(end).await.unwrap();
        assert_eq!(status("job_1").await, "ended");
    })
    .await;
}

#[tokio::test]
async fn a_list_has_nothing_of_prompts_results_headers_and_metadata() {
    with_store(async |store| {
        add_batch(store, "a", "ada").await;
        add_task(store, "resp_1").await;
        let filter = Filter { tenant: None, limit: 10 };
        let (batches, _) = store.list_batches(filter.clone()).await.unwrap();
        let (tasks, _) = store.list_tasks(filter).await.unwrap();
        assert_eq!((batches.len(), tasks.len()), (1, 1));
        let listed = format!("{batches:?}{tasks:?}");
        assert!(!listed.contains(SECRET), "{listed}");
    })
    .await;
}
