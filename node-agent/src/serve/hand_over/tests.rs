//! Tests what is offered, to whom, and once.

use inference_core::text::output::Format;
use inference_core::types::request::{EngineStats, Tenant, TextQuery};

use super::*;
use crate::engine::client::Via;
use crate::engine::ipc::{Command, EngineFacts};

const KEY: Key = [7; 32];

/// A folder of this test, deleted with this.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        let name = format!("flotilla-hand-over-{:x}", crate::types::random::random());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A node that offers one file.
fn offering(folder: &Temporary) -> HandOver {
    let files = vec![SavedFile { id: 3, path: folder.0.join("3"), tokens: 700, bytes: 9 }];
    let hand_over = HandOver::default();
    let offer = Arc::new(Offer { key: KEY, steps: 0, files });
    hand_over.stage.send_replace(Stage::Offered(offer));
    hand_over
}

/// An engine that has written what it has after so many steps.
fn resting(steps: u64) -> EngineClient {
    let engine = EngineClient::default();
    let mut facts = EngineFacts::made_up(Format::detect(""));
    facts.prefix_key = Some(Box::new(KEY));
    engine.set_ready(facts);
    engine.set_stats(EngineStats { steps, is_written: true, ..EngineStats::default() });
    engine
}

#[test]
fn what_is_offered_is_claimed_once_and_told_with_its_heir() {
    let (folder, engine) = (Temporary::new(), EngineClient::default());
    let nothing = HandOver::default();
    assert_eq!(nothing.status(None, &engine), None, "the engine saves nothing");
    assert_eq!(nothing.status(Some(KEY), &engine).unwrap().offered, 0);
    assert!(nothing.claim("b", &engine).is_none());

    let hand_over = offering(&folder);
    let told = hand_over.status(None, &engine).unwrap();
    assert_eq!((told.offered, &told.heir), (1, &None));
    assert_eq!(told.key, "07".repeat(32));
    assert!(hand_over.claimed().is_none());
    hand_over.finish();
    assert_eq!(hand_over.status(None, &engine).unwrap().heir, None, "nothing was claimed");
    let offer = hand_over.claim("b", &engine).unwrap();
    assert_eq!(offer.file(3).unwrap().1, 9);
    assert!(offer.file(4).is_none());
    assert!(hand_over.claim("c", &engine).is_none());
    assert!(hand_over.claimed().is_some());
    hand_over.finish();
    assert!(hand_over.claimed().is_none());
    assert_eq!(hand_over.status(None, &engine).unwrap().heir.as_deref(), Some("b"));
}

#[tokio::test]
async fn nothing_is_offered_where_no_file_is_long_enough() {
    let (folder, engine) = (Temporary::new(), EngineClient::default());
    let hand_over = HandOver::default();
    let until = Instant::now() + Duration::from_secs(3600);
    hand_over.offer(&engine, (folder.0.clone(), KEY), until).await;
    assert_eq!(hand_over.status(None, &engine), None);
}

#[tokio::test]
async fn a_drained_node_offers_what_its_engine_has_written_until_it_computes_again() {
    let (folder, engine) = (Temporary::new(), resting(5));
    let hand_over = HandOver::default();
    let status = || hand_over.status(Some(KEY), &engine).unwrap();
    assert!(status().written);
    let claim = async |heir| hand_over.claim_idle(heir, &engine, &folder.0).await;
    assert!(claim("b").await.unwrap().prefixes().is_empty(), "there are no files");
    assert!(claim("c").await.is_none(), "b has it");
    hand_over.finish();
    assert_eq!((status().written, status().heir.as_deref()), (false, Some("b")));
    // A stop has nothing more to offer, and waits for nobody.
    let until = Instant::now() + Duration::from_secs(3600);
    hand_over.offer(&engine, (folder.0.clone(), KEY), until).await;
    assert_eq!(status().heir.as_deref(), Some("b"));
    engine.set_stats(EngineStats { steps: 6, ..EngineStats::default() });
    assert_eq!(status(), PrefixStatus { key: "07".repeat(32), ..PrefixStatus::default() });
}

#[tokio::test]
async fn an_engine_that_has_not_written_yet_is_asked_to_and_one_that_works_is_not() {
    let (folder, engine) = (Temporary::new(), resting(5));
    let hand_over = HandOver::default();
    engine.set_stats(EngineStats::default());
    for _ in 0..2 {
        assert!(hand_over.claim_idle("b", &engine, &folder.0).await.is_none());
    }
    assert_eq!(engine.next_commands().await, [Command::WritePrefixes]);
    engine.set_stats(EngineStats { is_written: true, ..EngineStats::default() });
    let query = TextQuery::Texts;
    let _working = engine.query(Tenant::default(), query, Via { link: 1, digest: None }).unwrap();
    assert!(hand_over.claim_idle("b", &engine, &folder.0).await.is_none());
}

#[tokio::test]
async fn what_a_gateway_has_claimed_and_does_not_read_is_offered_again() {
    let (folder, engine) = (Temporary::new(), resting(5));
    let hand_over = HandOver::default();
    hand_over.claim_idle("b", &engine, &folder.0).await.unwrap();
    let silent = || {
        hand_over.stage.send_modify(|stage| {
            if let Stage::Claimed(_, _, read) = stage {
                *read -= SILENCE_MAX;
            }
        });
    };
    silent();
    assert!(hand_over.claimed().is_some(), "it reads a file");
    assert!(hand_over.claim_idle("c", &engine, &folder.0).await.is_none());
    silent();
    assert!(hand_over.claim_idle("c", &engine, &folder.0).await.is_some());
}

#[test]
fn one_file_comes_in_at_a_time_and_leaves_nothing_unless_it_is_whole() {
    let (folder, engine) = (Temporary::new(), EngineClient::default());
    let hand_over = HandOver::default();
    let arrival = hand_over.begin_arrival(&folder.0).unwrap();
    assert!(hand_over.begin_arrival(&folder.0).is_none());
    let path = arrival.path().to_path_buf();
    std::fs::write(&path, "half").unwrap();
    drop(arrival);
    assert!(!path.exists());
    let arrival = hand_over.begin_arrival(&folder.0).unwrap();
    let next = arrival.path().to_path_buf();
    assert_ne!(next, path, "the engine may not have taken the last one");
    std::fs::write(&next, "whole").unwrap();
    arrival.finish(&engine);
    assert!(next.exists());
}
