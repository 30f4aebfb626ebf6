//! Exit codes from `sysexits.h`, the same for both programs.

/// The command line or the configuration is invalid.
pub const USAGE: u8 = 64;
/// A model file, or information about it, cannot be used.
pub const DATA: u8 = 65;
/// A requirement is unavailable: an address, a gateway, a hub, enough memory.
pub const UNAVAILABLE: u8 = 69;
/// A bug, or a machine out of resources.
pub const SOFTWARE: u8 = 70;
/// Output or a file cannot be written.
pub const WRITE: u8 = 74;
/// Another process is doing the same work.
pub const BUSY: u8 = 75;
/// A server denied access.
pub const NO_PERMISSION: u8 = 77;

/// Every code and its meaning.
pub const ALL: [(u8, &str); 8] = [
    (0, "success, or stopped on request"),
    (USAGE, "invalid command line or configuration; a restart does not help"),
    (DATA, "a model file, or information about it, is unusable; a restart does not help"),
    (UNAVAILABLE, "a requirement is unavailable: an address, a gateway, a hub, enough memory"),
    (SOFTWARE, "a bug, or the machine is out of resources"),
    (WRITE, "output or a file cannot be written"),
    (BUSY, "another process is doing the same work; try again later"),
    (NO_PERMISSION, "the gateway or the hub denied access: wrong key or certificate"),
];

/// All codes, one per line.
pub fn table() -> String {
    let lines: Vec<String> =
        ALL.iter().map(|(code, meaning)| format!("  {code:<3} {meaning}")).collect();
    lines.join("\n")
}
