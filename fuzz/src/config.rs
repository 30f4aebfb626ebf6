//! The gateway's configuration.

use flotilla_gateway::config::document::check;
use flotilla_gateway::config::effective::to_yaml;
use flotilla_gateway::config::files::Files;
use flotilla_gateway::config::yaml::Node;
use flotilla_gateway::config::yaml::parse;

use crate::input::text;

/// A configuration is refused with problems that name their places, or it is taken; then what holds
/// with it, printed, is a configuration with which the same holds.
pub fn config(data: &[u8]) {
    let root = match parse(text(data)) {
        Ok(root) => root,
        Err(error) => return assert!(!error.is_empty()),
    };
    if let Err(problems) = check(root.clone(), Files::default()) {
        assert!(!problems.is_empty());
        assert!(problems.iter().all(|problem| !problem.message.is_empty()), "{problems:?}");
        assert!(to_yaml(root, Files::default()).is_err(), "what is refused is not in force");
        return;
    }
    let printed = printed(root);
    let again = parse(&unmasked(&printed)).expect("we write YAML");
    assert_eq!(self::printed(again), printed);
}

fn printed(root: Node) -> String {
    to_yaml(root, Files::default()).expect("a configuration that was taken")
}

/// Digests in the places of masked ones, each another.
fn unmasked(printed: &str) -> String {
    let mut number = 0;
    let digest = |line: &str| match line.split_once("sha256: ") {
        // Other texts may contain more than a mask.
        Some((before, "'********'")) => {
            number += 1;
            format!("{before}sha256: '{number:064x}'\n")
        }
        _ => format!("{line}\n"),
    };
    printed.lines().map(digest).collect()
}
