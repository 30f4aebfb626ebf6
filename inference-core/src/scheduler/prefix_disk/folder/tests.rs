//! Tests that only whole files of ours are read, and that nothing else stays in the folder.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const KEY: Key = [1; 32];
const T: Tenant = Tenant(5);

/// A folder that is deleted when it is dropped.
pub(crate) struct Temporary(pub(crate) PathBuf);

impl Temporary {
    pub(crate) fn new() -> Self {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("flotilla-prefixes-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// The files in the folder.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn a_state_is_read_as_it_was_written_and_only_the_owner_may_read_it() {
    let temporary = Temporary::new();
    let folder = PrefixFolder::open(&temporary.0).unwrap();
    folder.write(3, &KEY, (T, &[1, 2, 3]), b"the state").unwrap();
    assert_eq!(folder.list().unwrap(), [3]);
    let header = folder.header(3).unwrap();
    assert_eq!((header.tokens.len(), header.state_bytes), (3, 9));
    assert_eq!(&*folder.read(3, &KEY, (T, &[1, 2, 3])).unwrap(), b"the state");
    assert_eq!((mode(&temporary.0), mode(&temporary.files()[0])), (0o700, 0o600));
    for (key, tenant, tokens) in
        [([2; 32], T, &[1, 2, 3][..]), (KEY, Tenant(6), &[1, 2, 3]), (KEY, T, &[1, 2])]
    {
        assert!(folder.read(3, &key, (tenant, tokens)).is_err(), "it is another prefix");
    }
    folder.remove(3);
    assert!(folder.read(3, &KEY, (T, &[1, 2, 3])).is_err());
    assert!(temporary.files().is_empty());
}

#[test]
fn whole_files_with_a_key_are_listed_in_a_folder_in_use_and_nothing_is_changed_there() {
    let temporary = Temporary::new();
    let folder = PrefixFolder::open(&temporary.0).unwrap();
    folder.write(3, &KEY, (T, &[1, 2, 3]), b"the state").unwrap();
    folder.write(4, &[2; 32], (T, &[1, 2]), b"other weights").unwrap();
    folder.write(5, &KEY, (T, &[7]), b"cut").unwrap();
    let cut = path_of(&temporary.0, 5, PREFIX);
    File::options().write(true).open(&cut).unwrap().set_len(40).unwrap();
    std::fs::write(incoming_file(&temporary.0, 1), b"half").unwrap();
    std::fs::write(temporary.0.join("notes.txt"), b"not ours").unwrap();
    let before = temporary.files();
    let path = path_of(&temporary.0, 3, PREFIX);
    let bytes = path.metadata().unwrap().len();
    let found = files_with(&temporary.0, &KEY).unwrap();
    assert_eq!(found, [SavedFile { id: 3, path, tokens: 3, bytes }]);
    assert_eq!(temporary.files(), before);
    assert!(files_with(&temporary.0.join("missing"), &KEY).is_err());
}

#[test]
fn a_folder_has_one_user_at_a_time() {
    let temporary = Temporary::new();
    let first = PrefixFolder::open(&temporary.0).unwrap();
    let second = PrefixFolder::open(&temporary.0).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::WouldBlock);
    drop(first);
    PrefixFolder::open(&temporary.0).unwrap();
}

#[test]
fn every_damage_of_a_file_is_noticed() {
    let temporary = Temporary::new();
    let folder = PrefixFolder::open(&temporary.0).unwrap();
    folder.write(1, &KEY, (T, &[1, 2]), b"state").unwrap();
    let path = &temporary.files()[0];
    let whole = std::fs::read(path).unwrap();
    let is_read = |bytes: &[u8]| {
        std::fs::write(path, bytes).unwrap();
        folder.read(1, &KEY, (T, &[1, 2])).is_ok()
    };
    assert!(is_read(&whole));
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        assert!(!is_read(&damaged), "byte {at}");
        assert!(!is_read(&whole[..at]), "{at} bytes");
    }
    assert!(!is_read(&[&whole[..], b"!"].concat()), "longer");
}

#[test]
fn what_is_no_prefix_is_deleted_and_no_folder_or_target_of_a_link_is() {
    let temporary = Temporary::new();
    let beside = Temporary::new();
    std::fs::create_dir_all(&beside.0).unwrap();
    let target = beside.0.join("target");
    std::fs::write(&target, "keep me").unwrap();
    let folder = PrefixFolder::open(&temporary.0).unwrap();
    folder.write(2, &KEY, (T, &[1]), b"state").unwrap();
    for name in ["0000000000000001.part", "notes.txt", "1.prefix", "zzzzzzzzzzzzzzzz.prefix"] {
        std::fs::write(temporary.0.join(name), "?").unwrap();
    }
    let link = temporary.0.join("0000000000000009.prefix");
    std::os::unix::fs::symlink(&target, link).unwrap();
    std::fs::create_dir(temporary.0.join("folder")).unwrap();
    assert_eq!(folder.list().unwrap(), [2]);
    let names = temporary.files();
    let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["0000000000000002.prefix", "folder"]);
    assert_eq!(std::fs::read(&target).unwrap(), b"keep me");
    folder.clear().unwrap();
    assert_eq!(temporary.files().len(), 1, "only the folder");
}

#[test]
fn the_oldest_of_too_many_files_are_deleted() {
    let temporary = Temporary::new();
    let folder = PrefixFolder::open(&temporary.0).unwrap();
    for id in 0..FILES_MAX as u64 + 3 {
        folder.write(id, &KEY, (T, &[1]), b"s").unwrap();
    }
    let found = folder.list().unwrap();
    assert_eq!((found.len(), found[0]), (FILES_MAX, 3));
    assert_eq!(temporary.files().len(), FILES_MAX);
}
