//! Tests what is offered, to whom, and once.

use inference_core::scheduler::prefix_disk::PrefixFolder;

use super::*;

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
    let prefixes = vec![OfferedPrefix { file: 3, tokens: 700, bytes: 9 }];
    let folder = PrefixFolder::open(&folder.0).unwrap();
    let hand_over = HandOver::default();
    let offer = Arc::new(Offer { folder, key: KEY, prefixes });
    hand_over.stage.send_replace(Stage::Offered(offer));
    hand_over
}

#[test]
fn what_is_offered_is_claimed_once_and_told_with_its_heir() {
    let (folder, engine) = (Temporary::new(), EngineClient::default());
    let nothing = HandOver::default();
    assert_eq!(nothing.status(None), None, "the engine saves nothing");
    assert_eq!(nothing.status(Some(KEY)).unwrap().offered, 0);
    assert!(nothing.claim("b".into(), &engine).is_none());

    let hand_over = offering(&folder);
    let told = hand_over.status(None).unwrap();
    assert_eq!((told.offered, &told.heir), (1, &None));
    assert_eq!(told.key, "07".repeat(32));
    assert!(hand_over.claimed().is_none());
    hand_over.finish();
    assert_eq!(hand_over.status(None).unwrap().heir, None, "nothing was claimed");
    let offer = hand_over.claim("b".into(), &engine).unwrap();
    assert_eq!(offer.file(3).unwrap().1, 9);
    assert!(offer.file(4).is_none());
    assert!(hand_over.claim("c".into(), &engine).is_none());
    assert!(hand_over.claimed().is_some());
    hand_over.finish();
    assert!(hand_over.claimed().is_none());
    assert_eq!(hand_over.status(None).unwrap().heir.as_deref(), Some("b"));
}

#[tokio::test]
async fn nothing_is_offered_where_no_file_is_long_enough() {
    let (folder, engine) = (Temporary::new(), EngineClient::default());
    let hand_over = HandOver::default();
    let until = Instant::now() + Duration::from_secs(3600);
    hand_over.offer(&engine, (folder.0.clone(), KEY), until).await;
    assert_eq!(hand_over.status(None), None);
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
