//! Tests of encrypted values.

use proptest::prelude::*;

use super::super::testing::keyring;
use super::*;

const PROMPT: &str = "{\"prompt\":\"a secret of the client\"}";

fn binding() -> Binding {
    Binding::new("tasks.request", "ada", "job_1")
}

fn sealed(keyring: &Keyring) -> Vec<u8> {
    keyring.seal(&binding(), PROMPT.into()).unwrap()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_value_is_encrypted_anew_each_time_and_read_as_it_was() {
    let keyring = keyring("1");
    let (first, second) = (sealed(&keyring), sealed(&keyring));
    assert_ne!(first, second);
    assert_eq!(first.len(), HEADER_BYTES + PROMPT.len() + TAG_BYTES);
    for value in [first, second] {
        assert!(!contains(&value, "secret"));
        assert_eq!(keyring.open(&binding(), value), Ok(PROMPT.into()));
    }
    let empty = keyring.seal(&binding(), Vec::new()).unwrap();
    assert_eq!(keyring.open(&binding(), empty), Ok(Vec::new()));
}

#[test]
fn a_value_with_any_bit_flipped_or_cut_off_anywhere_is_never_handed_out() {
    let keyring = keyring("1");
    let whole = sealed(&keyring);
    for bit in 0..whole.len() * 8 {
        let mut altered = whole.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(keyring.open(&binding(), altered), Err(StoreError::Unavailable), "bit {bit}");
    }
    for length in 1..whole.len() {
        let cut = whole[..length].to_vec();
        assert_eq!(keyring.open(&binding(), cut), Err(StoreError::Unavailable), "{length} bytes");
    }
    let mut longer = whole;
    longer.push(0);
    assert_eq!(keyring.open(&binding(), longer), Err(StoreError::Unavailable));
}

#[test]
fn a_value_of_another_column_tenant_record_or_number_is_refused() {
    let keyring = keyring("1");
    for other in [
        Binding::new("tasks.result", "ada", "job_1"),
        Binding::new("tasks.request", "bob", "job_1"),
        Binding::new("tasks.request", "ada", "job_2"),
        Binding::numbered("tasks.request", "ada", "job_1", 1),
        // Written one after the other, the parts are the same.
        Binding::new("tasks.request", "adaj", "ob_1"),
    ] {
        let opened = keyring.open(&other, sealed(&keyring));
        assert_eq!(opened, Err(StoreError::Unavailable), "{}", other.text());
    }
    assert_eq!(binding().text(), "tasks.request ada job_1");
}

#[test]
fn a_new_key_encrypts_and_old_ones_decrypt_as_long_as_they_are_there() {
    let (old, both, new) = (keyring("1"), keyring("21"), keyring("2"));
    assert_eq!(both.open(&binding(), sealed(&old)), Ok(PROMPT.into()));
    assert_eq!(new.open(&binding(), sealed(&both)), Ok(PROMPT.into()), "the first one encrypts");
    assert_eq!(new.try_open(&binding(), sealed(&old)), Err(Sealed::KeyMissing(old.0.keys[0].id)));
    let none = Keyring::default();
    assert_eq!(none.open(&binding(), sealed(&old)), Err(StoreError::Unavailable));
}

#[test]
fn without_a_key_that_encrypts_values_stay_as_they_are() {
    let none = format!("none\n{}", "1".repeat(64));
    for keyring in [Keyring::default(), Keyring::read(&none).unwrap()] {
        assert_eq!(sealed(&keyring), PROMPT.as_bytes());
        assert_eq!(keyring.seal_text(&binding(), "name").as_deref(), Ok("name"));
    }
    // They are read with keys as well, and decrypted without one that encrypts.
    let (keyring, only_decrypts) = (keyring("1"), Keyring::read(&none).unwrap());
    assert_eq!(keyring.open(&binding(), PROMPT.into()), Ok(PROMPT.into()));
    assert_eq!(keyring.open_text(&binding(), "name".into()).as_deref(), Ok("name"));
    assert_eq!(only_decrypts.open(&binding(), sealed(&keyring)), Ok(PROMPT.into()));
}

#[test]
fn a_text_is_encrypted_as_text_and_no_altered_one_is_handed_out() {
    let keyring = keyring("1");
    let stored = keyring.seal_text(&binding(), "my prompts.jsonl").unwrap();
    assert!(!stored.contains("prompts") && !stored.contains('\0'), "{stored}");
    let opened = keyring.open_text(&binding(), stored.clone());
    assert_eq!(opened.as_deref(), Ok("my prompts.jsonl"));
    for bit in 0..stored.len() * 8 {
        let mut altered = stored.clone().into_bytes();
        altered[bit / 8] ^= 1 << (bit % 8);
        let altered = String::from_utf8_lossy(&altered).into_owned();
        assert_eq!(keyring.open_text(&binding(), altered), Err(StoreError::Unavailable), "{bit}");
    }
}

#[test]
fn each_wrong_line_of_a_file_is_named_and_no_key_is_shown() {
    let (one, two) = ("1".repeat(64), "aB".repeat(32));
    let read = |text: String| Keyring::read(&text);
    let both = read(format!("# of May\n\n {two} # new\n{one}\r\n")).unwrap();
    assert_eq!((both.0.keys.len(), both.0.encrypts), (2, true));
    assert_eq!(both, read(format!("{two}\n{one}")).unwrap());
    assert_ne!(both, read(format!("{one}\n{two}")).unwrap());
    assert_ne!(read(one.clone()), read(format!("none\n{one}")));
    for (text, expected) in [
        (String::new(), "there is no key"),
        ("# only a comment\n".into(), "there is no key"),
        ("none\n".into(), "there is no key"),
        (format!("{one}1"), "line 1: expected 64 hex digits"),
        (format!("{one}\n\n{}", &two[1..]), "line 3: expected 64 hex digits"),
        (format!("{one}\n{}", "g".repeat(64)), "line 2: expected 64 hex digits"),
        (format!("{one}\n{}", "ä".repeat(64)), "line 2: expected 64 hex digits"),
        (format!("{one}\n# again\n{one}"), "line 3: this key is in an earlier line"),
        (format!("{one}\nnone"), "line 2: 'none' must be the first line"),
        (format!("none\nnone\n{one}"), "line 2: 'none' must be the first line"),
    ] {
        let why = read(text).unwrap_err();
        assert!(why.starts_with(expected), "{why}");
        assert!(!why.contains("1111") && !why.to_lowercase().contains("abab"), "{why}");
    }
    assert!(!format!("{both:?}").contains("1111"));
    let decimal = format!("{}, {}", 0x11, 0x11);
    assert!(!format!("{both:?}").contains(&decimal), "{both:?}");
}

proptest! {
    #[test]
    fn no_text_is_taken_for_an_encrypted_one(text in "\\PC{0,200}") {
        let keyring = keyring("1");
        let stored = text.clone().into_bytes();
        prop_assert_eq!(keyring.open(&binding(), stored), Ok(text.into_bytes()));
    }

    #[test]
    fn whatever_is_stored_is_read_as_it_was_or_refused(bytes: Vec<u8>) {
        let keyring = keyring("1");
        if let Ok(opened) = keyring.open(&binding(), bytes.clone()) {
            prop_assert_eq!(opened, bytes);
        }
    }
}
