//! Tests which files are kept, found and deleted.

use std::sync::Mutex;

use super::folder::tests::Temporary;
use super::*;

const A: Tenant = Tenant(1);
const B: Tenant = Tenant(2);
const KEY: Key = [1; 32];
const LIMIT: Duration = Duration::from_secs(30);

fn open(temporary: &Temporary, key: Key, bytes_max: u64, can_cut: bool) -> PrefixDisk {
    let folder = PrefixFolder::open(&temporary.0).unwrap();
    let mut disk = PrefixDisk::start(folder, key, bytes_max, Box::new(|_| {})).unwrap();
    disk.adapt(can_cut, 1_000_000);
    disk.wait_until_listed(LIMIT);
    assert!(disk.is_listed);
    disk
}

/// Tokens of a prefix of this length.
fn tokens(first: u32, length: u32) -> Arc<[Token]> {
    (first..first + length).collect()
}

/// Waits until everything is written and deleted.
fn settle(disk: &mut PrefixDisk) {
    while !disk.is_settled() {
        disk.wait(LIMIT);
        assert!(disk.next_loaded().is_none());
    }
}

/// Writes a prefix with a state of `bytes` bytes.
fn write(disk: &mut PrefixDisk, tenant: Tenant, tokens: &Arc<[Token]>, bytes: usize) -> Queued {
    let state: Box<[u8]> = vec![tokens.len() as u8; bytes].into();
    let queued = disk.write(tenant, tokens, &Arc::new(state));
    settle(disk);
    queued
}

/// Reads the file that covers most of these tokens, and returns its state.
fn read(disk: &mut PrefixDisk, tenant: Tenant, tokens: &[Token]) -> Option<Box<[u8]>> {
    let found = disk.find(tenant, tokens)?;
    let file = disk.read(tenant, found)?;
    loop {
        if let Some(loaded) = disk.next_loaded() {
            assert_eq!((loaded.file, loaded.tenant), (file, tenant));
            return loaded.state;
        }
        disk.wait(LIMIT);
    }
}

fn covered(disk: &mut PrefixDisk, tenant: Tenant, tokens: &[Token]) -> u32 {
    disk.find(tenant, tokens).map_or(0, |found| found.covered)
}

#[test]
fn what_was_written_is_read_after_a_restart_and_only_for_its_tenant() {
    let temporary = Temporary::new();
    for can_cut in [false, true] {
        let first = 1000 * u32::from(can_cut);
        let (all, longer) = (tokens(first, 300), tokens(first, 400));
        let mut disk = open(&temporary, KEY, 1_000_000, can_cut);
        assert_eq!(write(&mut disk, A, &all, 700), Queued::Yes);
        assert_eq!(write(&mut disk, A, &all, 700), Queued::Needless);
        drop(disk);
        let mut disk = open(&temporary, KEY, 1_000_000, can_cut);
        assert_eq!(read(&mut disk, A, &longer).unwrap().len(), 700);
        assert_eq!(covered(&mut disk, B, &longer), 0);
        let part = if can_cut { 200 } else { 0 };
        assert_eq!(covered(&mut disk, A, &all[..200]), part, "only some states can be cut");
    }
}

#[test]
fn files_with_another_key_are_never_read_and_give_way_first() {
    let temporary = Temporary::new();
    let mut disk = open(&temporary, [2; 32], 100_000, true);
    write(&mut disk, A, &tokens(0, 100), 30_000);
    write(&mut disk, A, &tokens(1000, 100), 30_000);
    drop(disk);
    let mut disk = open(&temporary, KEY, 100_000, true);
    assert_eq!(covered(&mut disk, A, &tokens(0, 100)), 0);
    assert_eq!(disk.foreign.len(), 2);
    write(&mut disk, A, &tokens(2000, 100), 30_000);
    assert_eq!((disk.foreign.len(), temporary.files().len()), (2, 3));
    write(&mut disk, A, &tokens(3000, 100), 30_000);
    write(&mut disk, A, &tokens(4000, 100), 30_000);
    drop(disk);
    assert_eq!(temporary.files().len(), 3, "the foreign ones are gone");
    let mut disk = open(&temporary, KEY, 100_000, true);
    for first in [2000, 3000, 4000] {
        assert_eq!(covered(&mut disk, A, &tokens(first, 100)), 100);
    }
}

#[test]
fn the_tenant_with_most_files_gives_way_first_and_the_size_is_bounded() {
    let temporary = Temporary::new();
    let mut disk = open(&temporary, KEY, 100_000, true);
    write(&mut disk, A, &tokens(0, 100), 20_000);
    for first in 1..20 {
        write(&mut disk, B, &tokens(1000 * first, 100), 20_000);
        assert!(disk.bytes() <= 100_000);
    }
    assert_eq!(covered(&mut disk, A, &tokens(0, 100)), 100);
    assert_eq!(covered(&mut disk, B, &tokens(19_000, 100)), 100);
    assert_eq!(covered(&mut disk, B, &tokens(1000, 100)), 0);
    assert_eq!(write(&mut disk, A, &tokens(50_000, 100), 100_001), Queued::Needless, "too large");
    drop(disk);
    let sizes = temporary.files().into_iter().map(|file| file.metadata().unwrap().len());
    assert!(sizes.sum::<u64>() <= 100_000);
    // A smaller limit holds from the start.
    let disk = open(&temporary, KEY, 50_000, true);
    assert!(disk.bytes() <= 50_000);
    drop(disk);
    assert_eq!(temporary.files().len(), 2);
}

#[test]
fn a_longer_state_replaces_the_files_that_it_continues() {
    let temporary = Temporary::new();
    for (can_cut, files) in [(true, 1), (false, 2)] {
        let mut disk = open(&temporary, KEY, 1_000_000, can_cut);
        write(&mut disk, A, &tokens(0, 100), 100);
        write(&mut disk, A, &tokens(0, 200), 200);
        // A few tokens more are not worth a file, if a prompt can begin in the middle.
        write(&mut disk, A, &tokens(0, 210), 210);
        drop(disk);
        assert_eq!(temporary.files().len(), files + usize::from(!can_cut));
        PrefixFolder::open(&temporary.0).unwrap().clear().unwrap();
    }
}

#[test]
fn a_damaged_file_is_not_read_and_is_deleted() {
    let temporary = Temporary::new();
    let mut disk = open(&temporary, KEY, 1_000_000, true);
    write(&mut disk, A, &tokens(0, 100), 1000);
    write(&mut disk, A, &tokens(1000, 100), 1000);
    let path = &temporary.files()[0];
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
    assert!(read(&mut disk, A, &tokens(0, 100)).is_none());
    assert_eq!((covered(&mut disk, A, &tokens(0, 100)), temporary.files().len()), (0, 1));
    assert!(read(&mut disk, A, &tokens(1000, 100)).is_some());
    drop(disk);
    // A truncated one is found at the next start.
    let path = &temporary.files()[0];
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    let disk = open(&temporary, KEY, 1_000_000, true);
    assert_eq!((disk.bytes(), temporary.files().len()), (0, 0));
}

#[test]
fn an_unwritable_folder_is_told_once_and_writes_are_given_up() {
    let temporary = Temporary::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let folder = PrefixFolder::open(&temporary.0).unwrap();
    std::fs::remove_dir(&temporary.0).unwrap();
    let teller = told.clone();
    let tell: Tell = Box::new(move |text| teller.lock().unwrap().push(text));
    let mut disk = PrefixDisk::start(folder, KEY, 1_000_000, tell).unwrap();
    disk.adapt(true, 1_000_000);
    disk.wait_until_listed(LIMIT);
    for first in [0, 1000, 2000] {
        assert_eq!(write(&mut disk, A, &tokens(first, 100), 100), Queued::Yes);
        assert!(disk.is_failing());
    }
    assert_eq!(disk.bytes(), 0);
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].contains("prefix"), "{told:?}");
}

#[test]
fn what_is_being_written_is_bounded() {
    let temporary = Temporary::new();
    let mut disk = open(&temporary, KEY, 1_000_000, true);
    disk.adapt(true, 1000);
    let state: Arc<Box<[u8]>> = Arc::new(vec![0; 600].into());
    // The first one may take more than there is, so that large states are written at all.
    let large: Arc<Box<[u8]>> = Arc::new(vec![0; 5000].into());
    assert_eq!(disk.write(A, &tokens(0, 100), &large), Queued::Yes);
    assert_eq!(disk.write(A, &tokens(1000, 100), &state), Queued::Full);
    assert!(!disk.has_room());
    settle(&mut disk);
    assert!(disk.has_room());
    assert_eq!(disk.write(A, &tokens(1000, 100), &state), Queued::Yes);
    settle(&mut disk);
    assert_eq!(disk.index.bytes(), 2 * (400 + FIXED_BYTES as u64) + 5600);
}

/// A whole file with a prefix of this length, as another node writes it.
fn file_of(key: Key, tokens: &Arc<[Token]>) -> Vec<u8> {
    let other = Temporary::new();
    let mut disk = open(&other, key, 1_000_000, true);
    write(&mut disk, A, tokens, 500);
    drop(disk);
    std::fs::read(&other.files()[0]).unwrap()
}

#[test]
fn an_incoming_file_is_taken_only_if_it_is_whole_and_has_the_key() {
    let temporary = Temporary::new();
    let mut disk = open(&temporary, KEY, 1_000_000, true);
    write(&mut disk, B, &tokens(0, 100), 100);
    let (whole, other) = (file_of(KEY, &tokens(0, 300)), file_of([2; 32], &tokens(0, 300)));
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let bad = [&whole[..whole.len() - 1], &damaged, &other, &[&whole[..], b"x"].concat(), b""];
    for (number, bytes) in bad.iter().enumerate() {
        std::fs::write(incoming_file(&temporary.0, number as u64), bytes).unwrap();
        disk.take_incoming(number as u64);
    }
    // One that is not there, and then the right one, twice.
    disk.take_incoming(99);
    for number in [100, 101] {
        std::fs::write(incoming_file(&temporary.0, number), &whole).unwrap();
        disk.take_incoming(number);
        while disk.received() == 0 || incoming_file(&temporary.0, number).exists() {
            disk.wait(LIMIT / 3000);
            assert!(disk.next_loaded().is_none());
        }
    }
    assert!(!disk.is_failing(), "nothing is wrong with the disk");
    assert_eq!(read(&mut disk, A, &tokens(0, 300)).unwrap().len(), 500);
    assert_eq!(covered(&mut disk, B, &tokens(0, 300)), 100, "tenants stay apart");
    // Files that are deleted are not in the way of the next ones.
    assert_eq!(write(&mut disk, A, &tokens(7000, 100), 100), Queued::Yes);
    drop(disk);
    assert_eq!(temporary.files().len(), 3);
    let mut disk = open(&temporary, KEY, 1_000_000, true);
    assert_eq!(read(&mut disk, A, &tokens(0, 300)).unwrap().len(), 500);
}

#[test]
fn incoming_files_make_room_for_each_other() {
    let temporary = Temporary::new();
    let mut disk = open(&temporary, KEY, 5000, true);
    for number in 0..20 {
        let file = file_of(KEY, &tokens(1000 * number, 300));
        std::fs::write(incoming_file(&temporary.0, 0), file).unwrap();
        disk.take_incoming(0);
        while disk.received() == u64::from(number) {
            disk.wait(LIMIT);
            assert!(disk.next_loaded().is_none());
        }
        assert!(disk.bytes() <= 5000);
    }
    drop(disk);
    assert_eq!(temporary.files().len(), 2);
}
