//! Files of the repository that are made of its code.

use fleet_tests::root;

/// Set to write them instead of comparing them; `make docs` does.
const UPDATE: &str = "FLOTILLA_UPDATE_DOCS";

/// A file's text.
pub fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Whether a file is what the code makes of it now.
pub fn check(name: &str, made: &str) {
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(root().join(name), made).unwrap();
    }
    let differs = read(name).lines().zip(made.lines()).position(|(is, should)| is != should);
    assert!(read(name) == made, "{name} is old (line {differs:?}): run 'make docs'");
}
