//! Tests which files are written, read, replaced and refused.

use std::os::unix::fs::PermissionsExt;

use super::super::folder::tests::Temporary;
use super::*;

const ADA: Tenant = Tenant(1);
const BOB: Tenant = Tenant(2);
const KEY: Key = [1; 32];
const TOKENS: [Token; 3] = [5, 6, 70_000];
const STATE: &[u8] = b"state";

fn open(temporary: &Temporary, key: Key, files: u64) -> SlotFolder {
    SlotFolder::open(&temporary.0, key, SlotLimits { files, state: 1000 }, 1).unwrap()
}

fn save(folder: &SlotFolder, name: &str, owner: Tenant) -> Result<u64, Failure> {
    folder.save(name, (owner, &TOKENS), STATE)
}

fn unusable(name: &str) -> Failure {
    SlotFailure::Unusable(name.into()).into()
}

fn names(temporary: &Temporary) -> Vec<String> {
    let entries = std::fs::read_dir(&temporary.0).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_was_saved_is_read_after_a_restart() {
    let temporary = Temporary::new();
    let bytes = save(&open(&temporary, KEY, 10_000), "chat 1.bin", ADA).unwrap();
    let saved = open(&temporary, KEY, 10_000).load("chat 1.bin", ADA).unwrap();
    assert_eq!((&saved.tokens[..], &*saved.state, saved.bytes), (&TOKENS[..], STATE, bytes));
    let file = std::fs::metadata(temporary.0.join("chat 1.bin")).unwrap();
    assert_eq!((file.len(), file.permissions().mode() & 0o777), (bytes, 0o600));
}

#[test]
fn files_of_others_and_other_files_are_neither_read_nor_replaced() {
    let temporary = Temporary::new();
    let folder = open(&temporary, KEY, 10_000);
    save(&folder, "a", ADA).unwrap();
    assert_eq!(folder.load("a", BOB).unwrap_err(), unusable("a"));
    assert_eq!(save(&folder, "a", BOB).unwrap_err(), unusable("a"));
    let other_key = open(&temporary, [2; 32], 10_000);
    assert_eq!(other_key.load("a", ADA).unwrap_err(), unusable("a"));
    std::fs::write(temporary.0.join("letter.txt"), "Dear Ada,").unwrap();
    assert_eq!(folder.load("letter.txt", ADA).unwrap_err(), unusable("letter.txt"));
    assert_eq!(save(&folder, "letter.txt", ADA).unwrap_err(), unusable("letter.txt"));
    assert_eq!(std::fs::read(temporary.0.join("letter.txt")).unwrap(), b"Dear Ada,");
    std::os::unix::fs::symlink("letter.txt", temporary.0.join("link")).unwrap();
    std::fs::create_dir(temporary.0.join("folder")).unwrap();
    for name in ["link", "folder"] {
        assert!(matches!(folder.load(name, ADA), Err(Failure::Slot(SlotFailure::Disk(_)))));
        assert!(matches!(save(&folder, name, ADA), Err(Failure::Slot(SlotFailure::Disk(_)))));
    }
    // An agent with other weights may replace what is its owner's.
    save(&other_key, "a", ADA).unwrap();
    assert_eq!(folder.load("a", ADA).unwrap_err(), unusable("a"));
}

#[test]
fn a_file_with_any_other_byte_or_length_is_refused() {
    let temporary = Temporary::new();
    let folder = open(&temporary, KEY, 10_000);
    save(&folder, "a", ADA).unwrap();
    let (path, whole) = (temporary.0.join("a"), std::fs::read(temporary.0.join("a")).unwrap());
    for index in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[index] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert!(folder.load("a", ADA).is_err(), "byte {index}");
        std::fs::write(&path, &whole[..index]).unwrap();
        assert!(folder.load("a", ADA).is_err(), "{index} bytes");
    }
    std::fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    assert_eq!(folder.load("a", ADA).unwrap_err(), unusable("a"));
    std::fs::write(&path, &whole).unwrap();
    folder.load("a", ADA).unwrap();
}

#[test]
fn names_that_leave_the_folder_are_no_files() {
    let temporary = Temporary::new();
    let folder = open(&temporary, KEY, 10_000);
    for name in ["../a", "", ".being-written", "/etc/passwd"] {
        let missing = Failure::from(SlotFailure::NoFile(name.into()));
        assert_eq!(folder.load(name, ADA).unwrap_err(), missing);
        assert_eq!(save(&folder, name, ADA).unwrap_err(), missing);
    }
    assert_eq!(folder.load("a", ADA).unwrap_err(), SlotFailure::NoFile("a".into()).into());
    assert_eq!(names(&temporary), [] as [String; 0]);
}

#[test]
fn a_full_folder_refuses_more_but_replaces_what_is_there() {
    let temporary = Temporary::new();
    let bytes = save(&open(&temporary, KEY, 10_000), "a", ADA).unwrap();
    let folder = open(&temporary, KEY, 2 * bytes);
    save(&folder, "b", ADA).unwrap();
    let full = Failure::from(SlotFailure::FolderFull(2 * bytes));
    assert_eq!(save(&folder, "c", ADA).unwrap_err(), full);
    save(&folder, "b", ADA).unwrap();
    assert_eq!(folder.save("b", (ADA, &TOKENS), b"longer").unwrap_err(), full);
    assert_eq!(names(&temporary), ["a", "b"]);
    assert_eq!(&*folder.load("b", ADA).unwrap().state, STATE, "it is as before");
}

#[test]
fn what_a_killed_agent_left_is_removed_but_not_what_another_one_is_writing() {
    let temporary = Temporary::new();
    let folder = open(&temporary, KEY, 10_000);
    let left = |name: &str, age: Duration| {
        let file = File::create(temporary.0.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - age).unwrap();
    };
    left(".being-written-00000000000000aa", PARTIAL_AGE_MAX + Duration::from_secs(9));
    left(".being-written-00000000000000bb", Duration::ZERO);
    left(".other", 2 * PARTIAL_AGE_MAX);
    save(&folder, "a", ADA).unwrap();
    assert_eq!(names(&temporary), [".being-written-00000000000000bb", ".other", "a"]);
}

#[test]
fn a_state_that_needs_too_much_memory_is_not_read() {
    let temporary = Temporary::new();
    let folder = open(&temporary, KEY, 10_000);
    folder.save("a", (ADA, &TOKENS), &[0; 1001]).unwrap();
    assert_eq!(folder.load("a", ADA).unwrap_err(), SlotFailure::TooLarge.into());
}
