//! Tests of contents, encrypted and not.

use std::io::Read;
use std::path::Path;

use super::super::FileRecord;
use super::super::testing::{keyring, store};
use super::chunks::CHUNK_BYTES;
use super::*;

const HEADER_BYTES: usize = super::super::keyring::HEADER_BYTES;
const SEALED_BYTES: usize = CHUNK_BYTES + super::super::keyring::TAG_BYTES;

/// Bytes that repeat late.
fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| b'a' + ((i * 7 + i / 251) % 26) as u8).collect()
}

/// Stores a file of ada's, in parts of this size.
async fn stored(store: &Store, content: &[u8], part: usize) -> String {
    let mut upload = store.upload("ada").await.unwrap();
    for part in content.chunks(part) {
        upload.write(part).await.unwrap();
    }
    assert_eq!(upload.bytes(), content.len() as u64);
    let record = FileRecord {
        id: upload.id().into(),
        name: "prompts.jsonl".into(),
        purpose: "batch".into(),
        bytes: upload.bytes(),
        created_at: 1,
        expires_at: 2,
    };
    store.finish_upload(upload, "ada", record).await.unwrap().id
}

async fn read(store: &Store, id: &str) -> std::io::Result<Vec<u8>> {
    let mut content = store.open("ada", id).await.map_err(|_| std::io::Error::other("not open"))?;
    let mut read = Vec::new();
    content.read_to_end(&mut read).map(|_| read)
}

fn path(folder: &Path, id: &str) -> PathBuf {
    folder.join(FOLDER).join(id)
}

#[tokio::test]
async fn a_content_of_any_length_is_read_as_it_was_written_from_any_place() {
    let folder = tempfile::tempdir().unwrap();
    for keyring in [Keyring::default(), keyring("1")] {
        let store = store(folder.path(), keyring);
        for bytes in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 300_000]
        {
            let content = text(bytes);
            let id = stored(&store, &content, 10_007).await;
            assert_eq!(read(&store, &id).await.unwrap(), content, "{bytes}");
            let open = store.open("ada", &id).await.unwrap();
            for place in [0, 1, bytes / 2, bytes.saturating_sub(1), bytes] {
                let place = place.min(bytes);
                let mut rest = vec![0; (bytes - place).min(100_000)];
                open.read_exact_at(&mut rest, place as u64).unwrap();
                assert_eq!(rest, content[place..place + rest.len()], "{bytes} from {place}");
            }
            let after = open.read_exact_at(&mut [0], bytes as u64).unwrap_err();
            assert_eq!(after.kind(), std::io::ErrorKind::UnexpectedEof);
            store.delete_file("ada", &id).await.unwrap();
        }
        store.close(true).await;
    }
}

#[tokio::test]
async fn what_is_being_written_is_read_before_it_has_a_record() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), keyring("1"));
    let content = text(CHUNK_BYTES + 5);
    let mut upload = store.upload("ada").await.unwrap();
    upload.write(&content).await.unwrap();
    let mut read = Vec::new();
    upload.reopen().await.unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(read, content);
    assert_eq!(upload.write(b"more").await, Err(StoreError::Unavailable), "it has its end");
    store.close(true).await;
}

#[tokio::test]
async fn chunks_that_are_altered_moved_repeated_left_out_or_added_are_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), keyring("1"));
    let content = text(3 * CHUNK_BYTES + 10);
    let id = stored(&store, &content, 1 << 20).await;
    let other = stored(&store, &content, 1 << 20).await;
    let path = path(folder.path(), &id);
    let whole = std::fs::read(&path).unwrap();
    let parts: Vec<&[u8]> = whole[HEADER_BYTES..].chunks(SEALED_BYTES).collect();
    let [a, b, c, d] = parts[..] else { panic!("{} chunks", parts.len()) };
    let foreign = std::fs::read(path.with_file_name(&other)).unwrap();
    let e = &foreign[HEADER_BYTES..][..SEALED_BYTES];
    let head = &whole[..HEADER_BYTES];
    for (what, parts) in [
        ("the last is left out", vec![head, a, b, c]),
        ("all are", vec![head]),
        ("one is left out", vec![head, a, c, d]),
        ("one is repeated", vec![head, a, b, b, c, d]),
        ("two are swapped", vec![head, b, a, c, d]),
        ("one is of another content", vec![head, e, b, c, d]),
        ("one is added", vec![head, a, b, c, d, d]),
        ("bytes are added", vec![head, a, b, c, d, b"more"]),
        ("it is cut off", vec![head, a, b, c, &d[..12]]),
        ("its head is another's", vec![&foreign[..HEADER_BYTES], a, b, c, d]),
        ("it is another's", vec![&foreign]),
    ] {
        std::fs::write(&path, parts.concat()).unwrap();
        assert!(read(&store, &id).await.is_err(), "{what}");
    }
    for at in (0..whole.len()).step_by(997).chain(0..HEADER_BYTES).chain([whole.len() - 1]) {
        let mut altered = whole.clone();
        altered[at] ^= 1;
        std::fs::write(&path, altered).unwrap();
        assert!(read(&store, &id).await.is_err(), "byte {at}");
    }
    std::fs::write(&path, &whole).unwrap();
    assert_eq!(read(&store, &id).await.unwrap(), content);
    store.close(true).await;
}

#[tokio::test]
async fn a_content_is_for_its_tenant_and_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let first = store(folder.path(), keyring("1"));
    let id = stored(&first, b"a secret", 100).await;
    let refused = Some(StoreError::Unavailable);
    assert_eq!(first.open("bob", &id).await.err(), refused, "of another tenant");
    first.close(true).await;
    let second = store(folder.path(), keyring("21"));
    assert_eq!(read(&second, &id).await.unwrap(), b"a secret");
    second.close(true).await;
    let third = store(folder.path(), keyring("2"));
    assert_eq!(third.open("ada", &id).await.err(), refused);
    third.close(true).await;
}
