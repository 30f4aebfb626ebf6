//! Chromium, as a child of a child: `tests/page/browser.mjs` steers it with playwright-core.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::root;

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    /// Absent once it is to end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// What the page complained about, and requests that left its origin.
    pub problems: Vec<String>,
}

/// Where Chromium is, and where its driver; nothing where one of them is missing.
fn installed() -> Option<(PathBuf, PathBuf)> {
    let path = std::env::var_os("PATH")?;
    let named = ["chromium", "chromium-browser", "google-chrome"];
    let all = std::env::split_paths(&path).flat_map(|folder| named.map(|name| folder.join(name)));
    let chromium = all.into_iter().find(|path| path.exists())?;
    let folder = root().join("target/sdk/page");
    folder.join("done").exists().then_some((chromium, folder))
}

impl Browser {
    /// Starts one; nothing where this machine has none, which is told.
    pub fn start() -> Option<Self> {
        let Some((chromium, folder)) = installed() else {
            eprintln!(
                "skipped: tests of pages need chromium, node and npm; 'make test' installs the first and playwright-core"
            );
            return None;
        };
        // Node looks for packages beside the script. Other tests copy it too.
        let name = format!("browser-{}-{:?}.mjs", std::process::id(), std::thread::current().id());
        let script = folder.join(name.replace(['(', ')'], ""));
        std::fs::copy(root().join("tests/page/browser.mjs"), &script).unwrap();
        let mut child = Command::new("node")
            .arg(&script)
            .env("CHROMIUM", chromium)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut browser =
            Self { child, input, output: BufReader::new(output), problems: Vec::new() };
        assert_eq!(browser.run("return 1", Value::Null), 1);
        std::fs::remove_file(script).unwrap();
        Some(browser)
    }

    /// Opens a page of its own; the headers that came with it.
    pub fn open(&mut self, url: &str, more: Value) -> Value {
        let mut arg = json!({ "url": url });
        arg.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.run("open", arg)
    }

    /// Runs code with `page` (playwright's) and `arg`; what it returns.
    pub fn run(&mut self, code: &str, arg: impl Into<Value>) -> Value {
        let line = json!({ "code": code, "arg": arg.into() }).to_string() + "\n";
        let mut answer = String::new();
        tokio::task::block_in_place(|| {
            self.input.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
            self.output.read_line(&mut answer).unwrap();
        });
        let mut answer: Value =
            serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
        let problems = answer["problems"].as_array().unwrap();
        self.problems.extend(problems.iter().map(|p| p.as_str().unwrap().to_string()));
        if let Some(error) = answer["error"].as_str() {
            panic!("{code}\n{error}\nproblems: {:?}", self.problems);
        }
        answer["value"].take()
    }

    /// Waits until the page shows a text.
    pub fn shows(&mut self, text: &str) {
        self.run("await page.getByText(arg).first().waitFor()", text);
    }

    /// Waits until code, run in the page, says true.
    pub fn becomes(&mut self, code: &str, arg: impl Into<Value>) {
        let code = format!("await page.waitForFunction((arg) => {{ {code} }}, arg)");
        self.run(&code, arg);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It closes Chromium, and ends.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
