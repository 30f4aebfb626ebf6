//! Tests of a store whose records are encrypted, with and without their keys.

use std::path::Path;

use super::sql::{Transaction, values};
use super::testing::{SECRET, batch, keyring, store, task};
use super::*;

/// Adds a record of each kind that holds what clients have written.
async fn fill(store: &Store) {
    let (task, batch) = (task("job_1", "ada"), batch("batch_1", "ada"));
    store.insert_task(task.clone(), SECRET.into(), SECRET.into(), 10).await.unwrap();
    store.record_progress(&task, SECRET.into(), Some(part())).await.unwrap();
    let ended = self::task("stream_1", "ada");
    store.insert_task(ended.clone(), SECRET.into(), SECRET.into(), 10).await.unwrap();
    let (status, messages) = ("completed".into(), Vec::new());
    let end = TaskEnd { status, result: SECRET.into(), events: part().data, messages };
    store.finish_task(&ended, end).await.unwrap();
    store.insert_batch(batch.clone(), 10).await.unwrap();
    store.record_lines(&batch, vec![(0, SECRET.into()), (1, SECRET.into())]).await.unwrap();
    store.record_line(&batch, 0, false, SECRET.into()).await.unwrap();
    let mut upload = store.upload("ada").await.unwrap();
    upload.write(SECRET.as_bytes()).await.unwrap();
    let (id, name, purpose) = (upload.id().into(), SECRET.into(), "batch".into());
    let (bytes, created_at, expires_at) = (upload.bytes(), 1, 2);
    let record = FileRecord { id, name, purpose, bytes, created_at, expires_at };
    store.finish_upload(upload, "ada", record).await.unwrap();
}

fn part() -> live::Part {
    live::Part { first: 0, next: 1, data: format!("data: {SECRET}\n\n").into() }
}

/// True if all that was added is read as it was written.
async fn is_read(store: &Store) -> bool {
    let (job, batch) = (task("job_1", "ada"), batch("batch_1", "ada"));
    let page = || Page { after: None, limit: 10, is_ascending: true };
    let Ok((found, result)) = store.task("ada", "job_1").await else { return false };
    assert_eq!((&found.headers, &found.metadata), (&job.headers, &job.metadata));
    assert_eq!(result, SECRET.as_bytes());
    assert_eq!(store.jobs("ada", page()).await.unwrap().0.len(), 1);
    let input = store.task_input(&job).await.unwrap();
    assert_eq!((input.request, input.result), (SECRET.into(), SECRET.into()));
    assert_eq!(input.progress.as_deref(), Some(SECRET.as_bytes()));
    assert_eq!(store.task("ada", "stream_1").await.unwrap().1, SECRET.as_bytes());
    assert_eq!(store.task_events("stream_1").await.unwrap(), part().data);
    for id in ["job_1", "stream_1"] {
        let reader = live::LiveTasks::default().enter(id, true);
        store.follow(id, &reader).await.unwrap();
        assert_eq!(reader.events(), part().data, "{id}");
    }
    assert_eq!(store.batch("ada", "batch_1").await.unwrap().metadata, batch.metadata);
    let results = store.results(&batch, None, None, 10).await.unwrap();
    assert_eq!(results, [(0, SECRET.into())]);
    let lines = store.unfinished_lines(&batch).await.unwrap();
    assert_eq!(lines, [(1, SECRET.into())].into());
    let files = store.files("ada", None, page()).await.unwrap().0;
    assert_eq!(files[0].name, SECRET);
    let mut content = String::new();
    let mut open = store.open("ada", &files[0].id).await.unwrap();
    std::io::Read::read_to_string(&mut open, &mut content).unwrap();
    content == SECRET
}

/// True if a file below a folder has what clients have written.
fn shows_secret(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return shows_secret(&path);
        }
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
    })
}

#[tokio::test]
async fn with_keys_nothing_that_clients_have_written_is_on_the_disk_and_all_of_it_is_read() {
    for (keys, is_shown) in [(Keyring::default(), true), (keyring("1"), false)] {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path(), keys);
        fill(&store).await;
        assert!(is_read(&store).await);
        assert_eq!(shows_secret(folder.path()), is_shown, "while it is open, with its log");
        store.close(true).await;
        assert_eq!(shows_secret(folder.path()), is_shown);
    }
}

#[tokio::test]
async fn a_store_is_read_with_new_keys_before_the_old_ones_and_when_it_was_not_encrypted() {
    for (before, after) in [(keyring("1"), keyring("21")), (Keyring::default(), keyring("1"))] {
        let folder = tempfile::tempdir().unwrap();
        let first = store(folder.path(), before);
        fill(&first).await;
        first.close(true).await;
        let second = store(folder.path(), after);
        // It becomes the owner.
        assert_eq!(second.own_tasks().await.unwrap().len(), 1);
        assert!(is_read(&second).await);
        second.close(true).await;
    }
}

#[tokio::test]
async fn without_the_key_each_record_is_refused_listed_left_as_it_is_and_read_again_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = store(folder.path(), keyring("1"));
    fill(&first).await;
    first.close(true).await;
    for keys in [Keyring::default(), keyring("2")] {
        let second = store(folder.path(), keys);
        assert_eq!(second.own_tasks().await, Ok(Vec::new()), "others may have the key");
        assert_eq!(second.own_batches().await, Ok(Vec::new()));
        assert!(!is_read(&second).await);
        let refused = StoreError::Unavailable;
        assert_eq!(second.batch("ada", "batch_1").await.err(), Some(refused.clone()));
        assert_eq!(second.task_events("stream_1").await.err(), Some(refused.clone()));
        assert_eq!(second.results(&batch("batch_1", "ada"), None, None, 9).await, Err(refused));
        let filter = Filter { tenant: None, limit: 10 };
        let (tasks, _) = second.list_tasks(filter.clone()).await.unwrap();
        let (batches, _) = second.list_batches(filter).await.unwrap();
        assert_eq!((tasks.len(), batches.len()), (2, 1), "operators see them");
        assert!(tasks.iter().all(|task| task.owner.is_none()), "{tasks:?}");
        assert!(second.is_available(), "the database works");
        // It does its own work beside that.
        let new = task("job_2", "ada");
        second.insert_task(new.clone(), SECRET.into(), SECRET.into(), 10).await.unwrap();
        assert_eq!(second.own_tasks().await.unwrap().len(), 1);
        second.delete_task("ada", "job_2").await.unwrap();
        second.close(true).await;
    }
    let third = store(folder.path(), keyring("21"));
    assert_eq!(third.own_tasks().await.unwrap().len(), 1);
    assert_eq!(third.own_batches().await.unwrap().len(), 1);
    assert!(is_read(&third).await);
    third.close(true).await;
}

#[tokio::test]
async fn what_has_expired_or_is_canceled_or_deleted_needs_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let first = store(folder.path(), keyring("1"));
    fill(&first).await;
    first.close(true).await;
    let second = store(folder.path(), keyring("2"));
    assert_eq!(second.expire_files(10).await, Ok(1));
    assert_eq!(second.expire_tasks(100, 100).await, Ok(1), "the one that has ended");
    assert_eq!(second.cancel_task("ada", "job_1").await, Ok(true));
    assert_eq!(second.any_task("job_1").await.unwrap().status, "cancelling");
    second.delete_task("ada", "job_1").await.unwrap();
    second.close(true).await;
}

#[tokio::test]
async fn a_record_that_is_given_to_another_tenant_cannot_be_read_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), keyring("1"));
    fill(&store).await;
    let give = |transaction: &mut Transaction<'_>| {
        for table in ["tasks", "batches", "files"] {
            transaction.execute(&format!("UPDATE {table} SET tenant = ?1"), values!["eve"])?;
        }
        Ok(())
    };
    store.0.database.run(give).await.unwrap();
    let refused = StoreError::Unavailable;
    assert_eq!(store.task("eve", "job_1").await.err(), Some(refused.clone()));
    assert_eq!(store.task_events("stream_1").await.err(), Some(refused.clone()));
    assert_eq!(store.batch("eve", "batch_1").await.err(), Some(refused.clone()));
    let page = Page { after: None, limit: 10, is_ascending: true };
    assert_eq!(store.files("eve", None, page).await.err(), Some(refused));
    store.close(true).await;
}
