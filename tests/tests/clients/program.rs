//! A program from npm or PyPI, with a home of its own, and what it did.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fleet_tests::process::{Folder, Ran, run_command};
use fleet_tests::root;

/// Longest run of a program in seconds; then it and its children are killed.
const SECONDS_MAX: &str = "120";
/// Nobody listens here: requests to other hosts fail at once.
const NOWHERE: &str = "http://127.0.0.1:9";

/// A program's home, and the folder that it works in.
pub struct Home(Folder);

impl Home {
    pub fn new() -> Self {
        let folder = Folder::new();
        for name in ["home", "work"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self(folder)
    }

    pub fn home(&self) -> PathBuf {
        self.0.path().join("home")
    }

    /// The folder that the program works in.
    pub fn work(&self) -> PathBuf {
        self.0.path().join("work")
    }

    /// A command that is stopped after two minutes.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = self.within(Path::new("timeout"));
        command.args(["--kill-after=5", SECONDS_MAX]).arg(existing(program));
        command
    }

    /// A command that runs until it is stopped.
    pub fn server(&self, program: &Path) -> Command {
        self.within(existing(program))
    }

    /// It inherits nothing of the environment but the path.
    fn within(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.work());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("HOME", self.home()).env("NO_PROXY", "127.0.0.1");
        for variable in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            command.env(variable, NOWHERE);
        }
        command.stdin(Stdio::null());
        command
    }
}

fn existing(program: &Path) -> &Path {
    assert!(program.exists(), "{} is missing: run 'make test-clients'", program.display());
    program
}

/// A file of the packages from npm.
pub fn installed(path: &str) -> PathBuf {
    root().join("target/clients/node_modules").join(path)
}

/// Runs a command while the model is played.
pub async fn run(command: Command) -> Ran {
    tokio::task::spawn_blocking(move || run_command(command)).await.unwrap()
}
