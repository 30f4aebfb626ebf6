//! `flotilla-gateway top`: printed once, and live on the slave's side of a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use fleet_tests::eventually;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{Fleet, program, run};
use flotilla_gateway::commands::top::screen::Screen;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use super::{QUIET, joins_at};

const LEAVE: &str = "\x1b[?1049l";

/// A terminal of 30 rows and 120 columns, and a program that runs in it.
struct Terminal {
    child: Child,
    keys: File,
    slave: File,
    shown: Arc<Mutex<String>>,
    before: String,
}

/// Everything that a program may have changed.
fn settings(terminal: &File) -> String {
    let t = tcgetattr(terminal).unwrap();
    format!("{:?} {:?} {:?}", t.input_modes, t.output_modes, t.local_modes)
}

impl Terminal {
    fn start(mut command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let size = Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        let before = settings(&slave);
        let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
        let child = command
            .env("TERM", "xterm-256color")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        let keys = File::from(master);
        let (mut reader, shown) = (keys.try_clone().unwrap(), Arc::new(Mutex::new(String::new())));
        let copy = shown.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                copy.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Self { child, keys, slave, shown, before }
    }

    async fn shows(&self, text: &str) {
        eventually(&format!("the terminal to show {text}"), async || {
            self.shown.lock().unwrap().contains(text).then_some(())
        })
        .await;
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the program's end; its exit code. The terminal is as it was.
    async fn ends(mut self) -> Option<i32> {
        let child = &mut self.child;
        let code = eventually("top to end", async || child.try_wait().unwrap()).await.code();
        self.shows(LEAVE).await;
        self.shows("\x1b[?25h").await;
        assert_eq!(settings(&self.slave), self.before);
        code
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What to start it with, against this fleet.
fn arguments(fleet: &Fleet, more: &[&str]) -> Vec<String> {
    let key = fleet.folder().path().join("admin.key");
    let url = format!("http://{}", fleet.admin.address());
    let all = ["top", "--url", &url, "--key-file", key.to_str().unwrap()];
    all.iter().chain(more).map(ToString::to_string).collect()
}

fn top(fleet: &Fleet) -> Command {
    let arguments = arguments(fleet, &[]);
    program("flotilla-gateway", &arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fleet_is_printed_once() {
    let fleet = Fleet::start(QUIET).await;
    let _node = MockNode::join(joins_at(&fleet), healthy("alpha", 3)).await;
    fleet.wait_for_slots("alpha").await;
    let once = |more: &[&str]| {
        let arguments = arguments(&fleet, more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        tokio::task::block_in_place(|| run("flotilla-gateway", &arguments))
    };
    let ran = once(&["--once"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let row = ran.stdout.lines().find(|line| line.starts_with("alpha")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[..3], ["alpha", "ready", "0/3"], "{}", ran.stdout);
    assert!(ran.stdout.contains("nodes 1/1 ready"), "{}", ran.stdout);
    assert!(ran.stdout.lines().any(|line| line.starts_with("test ")), "{}", ran.stdout);
    assert!(!ran.stdout.contains('\x1b'), "nothing for terminals");
    let ran = once(&[]);
    assert_eq!(ran.code, Some(69));
    assert!(ran.stderr.contains("this needs a terminal; --once"), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_follows_the_fleet_and_obeys_keys() {
    let fleet = Fleet::start(QUIET).await;
    let mut terminal = Terminal::start(top(&fleet));
    terminal.shows("nodes 0/0 ready").await;
    assert_ne!(settings(&terminal.slave), terminal.before, "raw");
    let node = MockNode::join(joins_at(&fleet), healthy("alpha", 3)).await;
    terminal.shows("\x1b[32malpha  ready   0/3").await;
    node.says(|status| status.slots_busy_elsewhere = 2);
    terminal.shows("alpha  ready   2/3").await;
    terminal.press("\x1b[C");
    terminal.shows("STATE*").await;
    terminal.press("r");
    terminal.shows("STATE*r").await;
    terminal.press("q");
    assert_eq!(terminal.ends().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_gives_the_terminal_back_however_it_ends() {
    let fleet = Fleet::start(QUIET).await;
    let mut terminal = Terminal::start(top(&fleet));
    terminal.shows("nodes 0/0 ready").await;
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, Some(0));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let terminal = Terminal::start(top(&fleet));
        terminal.shows("nodes 0/0 ready").await;
        kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        assert_eq!(terminal.ends().await, Some(0), "{signal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_that_the_gateway_is_gone_and_goes_on() {
    let fleet = Fleet::start(QUIET).await;
    let mut terminal = Terminal::start(top(&fleet));
    terminal.shows("nodes 0/0 ready").await;
    fleet.server.signal(Signal::KILL);
    terminal.shows("cannot reach the gateway at").await;
    terminal.press("q");
    assert_eq!(terminal.ends().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_color_means_none() {
    let fleet = Fleet::start(QUIET).await;
    let _node = MockNode::join(joins_at(&fleet), healthy("alpha", 3)).await;
    fleet.wait_for_slots("alpha").await;
    let mut command = top(&fleet);
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::start(command);
    terminal.shows("alpha  ready   0/3").await;
    assert!(!terminal.shown.lock().unwrap().contains("\x1b[3"), "no colours");
    terminal.press("q");
    assert_eq!(terminal.ends().await, Some(0));
}

/// Not a test of its own: the next one starts it in a terminal.
#[test]
#[ignore = "part of a_panic_is_told_on_the_terminal_as_it_was"]
fn panics_on_a_terminal() {
    let _screen = Screen::take().unwrap();
    panic!("this is what went wrong");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_told_on_the_terminal_as_it_was() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "top::panics_on_a_terminal", "--nocapture"]);
    let terminal = Terminal::start(command);
    terminal.shows("this is what went wrong").await;
    let shown = terminal.shown.clone();
    assert_eq!(terminal.ends().await, Some(101));
    let shown = shown.lock().unwrap();
    let (left, told) = (shown.find(LEAVE).unwrap(), shown.find("this is what went wrong").unwrap());
    assert!(left < told, "the message would vanish with the page: {shown:?}");
}
