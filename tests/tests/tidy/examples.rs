//! The table of examples/README.md.

use std::collections::BTreeSet;

use fleet_tests::root;

use super::read;

#[test]
fn every_folder_of_examples_is_in_the_table_with_tests_that_use_it() {
    let readme = read("examples/README.md");
    let mut listed = BTreeSet::new();
    for row in readme.lines().filter(|line| line.starts_with("| [")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [folder, content, tests] = cells[..] else { panic!("{row}") };
        let (name, link) = folder.trim_matches(['[', ')']).split_once("](").unwrap();
        assert_eq!(name, link, "{row}");
        assert!(!content.is_empty(), "{row}");
        let tests: Vec<&str> = tests.split(", ").map(|test| test.trim_matches('`')).collect();
        for test in &tests {
            assert!(read(test).contains(name), "{test} does not use {name}");
        }
        listed.insert(name.to_string());
    }
    let entries = std::fs::read_dir(root().join("examples")).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().is_dir());
    let folders: BTreeSet<String> =
        folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(listed, folders);
}
