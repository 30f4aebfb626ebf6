//! Confines a process that parses a model file, because llama.cpp reads untrusted files.
//!
//! Landlock ([`files`]) allows only reading the open model files, and seccomp ([`calls`]) only the
//! system calls that computing needs: no network, no other program, no writing to files. With saved
//! prefixes on disk or saved slots, files in their folders may be created, read, renamed and
//! deleted as well. Both are set once, before there is a second thread, and cannot be undone.

pub(crate) mod calls;
pub(crate) mod escape;
pub(crate) mod files;

use std::fs::File;

use serde::{Deserialize, Serialize};

/// `--sandbox`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SandboxMode {
    /// Enable what the kernel supports, and log what is missing.
    #[default]
    Auto,
    /// Enable all of it, or fail.
    On,
    Off,
}

impl SandboxMode {
    const ALL: [(&str, Self); 3] = [("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

impl std::str::FromStr for SandboxMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        let unknown = || format!("unknown choice '{name}'; one of: auto, on, off");
        found.map(|(_, choice)| *choice).ok_or_else(unknown)
    }
}

impl std::fmt::Display for SandboxMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let found = Self::ALL.iter().find(|(_, choice)| choice == self);
        write!(f, "{}", found.map_or("auto", |(name, _)| name))
    }
}

/// State of one part of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    On,
    Off,
    /// Unavailable, with the reason.
    Missing(String),
}

impl Part {
    fn of(done: Result<(), String>) -> Self {
        done.map_or_else(Self::Missing, |()| Self::On)
    }
}

/// The sandbox of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// File access: Landlock.
    pub files: Part,
    /// System calls: seccomp.
    pub system_calls: Part,
}

impl Sandbox {
    /// No sandbox.
    pub(crate) const OFF: Self = Self { files: Part::Off, system_calls: Part::Off };

    /// True if the process may write to the folders that it was confined to.
    pub(crate) fn allows_writing(&self) -> bool {
        !matches!(self.files, Part::Missing(_))
    }

    /// Each part and its name.
    pub(crate) fn parts(&self) -> [(&'static str, &Part); 2] {
        [("files", &self.files), ("system_calls", &self.system_calls)]
    }

    /// The parts that are enabled but unavailable, on one line; `None` if there are none.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = self.parts().into_iter().filter_map(|(name, part)| match part {
            Part::Missing(why) => Some(format!("{}: {why}", name.replace('_', " "))),
            Part::On | Part::Off => None,
        });
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| missing.join("; "))
    }
}

/// Which parts are in force, for logs and people.
impl std::fmt::Display for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (&self.files, &self.system_calls) {
            (Part::On, Part::On) => "files and system calls",
            (Part::On, _) => "files only",
            (_, Part::On) => "system calls only",
            _ => "none",
        })
    }
}

/// Confines this process, which can then read only `readable`, and use only the files in
/// `folders`. Without Landlock it cannot write anywhere, because nothing would confine it to them.
///
/// # Errors
/// With [`SandboxMode::On`], if a part is unavailable.
pub(crate) fn confine(
    mode: SandboxMode,
    readable: &[&File],
    folders: &[&File],
) -> Result<Sandbox, String> {
    if mode == SandboxMode::Off {
        return Ok(Sandbox::OFF);
    }
    let sandbox = match is_single_threaded() {
        Ok(()) => {
            // In this order, because the seccomp filter rejects Landlock's system calls.
            let files = Part::of(files::confine(readable, folders));
            let writes_files = !folders.is_empty() && files == Part::On;
            Sandbox { files, system_calls: Part::of(calls::confine(writes_files)) }
        }
        Err(why) => Sandbox { files: Part::Missing(why.clone()), system_calls: Part::Missing(why) },
    };
    match sandbox.missing().filter(|_| mode == SandboxMode::On) {
        Some(why) => {
            Err(format!("the sandbox is incomplete ({why}); --sandbox auto runs the engine anyway"))
        }
        None => Ok(sandbox),
    }
}

/// Existing threads would stay unconfined.
fn is_single_threaded() -> Result<(), String> {
    let tasks =
        std::fs::read_dir("/proc/self/task").map_err(|e| format!("/proc/self/task: {e}"))?;
    match tasks.count() {
        1 => Ok(()),
        count => Err(format!("the process has {count} threads already")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_survives_its_name() {
        for (name, choice) in SandboxMode::ALL {
            assert_eq!((name.parse(), choice.to_string()), (Ok(choice), name.to_string()));
        }
        assert!("yes".parse::<SandboxMode>().is_err());
    }

    #[test]
    fn a_process_with_threads_is_not_half_confined() {
        // This process has other threads: those of the test harness.
        let (other, end) = std::sync::mpsc::sync_channel::<()>(0);
        let thread = std::thread::spawn(move || assert!(end.recv().is_err()));
        let sandbox = confine(SandboxMode::Auto, &[], &[]).unwrap();
        assert!(sandbox.missing().unwrap().contains("threads"), "{sandbox:?}");
        assert_eq!(sandbox.to_string(), "none");
        assert!(confine(SandboxMode::On, &[], &[]).unwrap_err().contains("--sandbox auto"));
        assert_eq!(confine(SandboxMode::Off, &[], &[]), Ok(Sandbox::OFF));
        drop(other);
        thread.join().unwrap();
    }

    #[test]
    fn what_is_missing_is_told() {
        let sandbox =
            Sandbox { files: Part::Missing("no Landlock".into()), system_calls: Part::On };
        assert_eq!(sandbox.to_string(), "system calls only");
        assert_eq!(sandbox.missing().as_deref(), Some("files: no Landlock"));
        assert_eq!(Sandbox::OFF.missing(), None);
    }
}
