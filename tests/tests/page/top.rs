//! `flotilla-gateway top`: printed once, and live in a pseudo-terminal with an emulator behind it.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
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
use vt100::{Color, Parser};

use super::{QUIET, joins_at};

/// Columns of the terminal.
const COLUMNS: u16 = 120;

/// A terminal of 30 rows, and a program that runs in it.
struct Terminal {
    child: Child,
    keys: File,
    slave: File,
    emulator: Arc<Mutex<Parser>>,
    before: String,
}

/// Everything that a program may have changed.
fn settings(terminal: &File) -> String {
    let t = tcgetattr(terminal).unwrap();
    format!("{:?} {:?} {:?}", t.input_modes, t.output_modes, t.local_modes)
}

/// Rows and columns of an emulator.
fn size(rows: u16) -> (NonZeroU16, NonZeroU16) {
    (rows.try_into().unwrap(), COLUMNS.try_into().unwrap())
}

fn set_rows(slave: &File, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(slave, size).unwrap();
}

/// Starts a program in a terminal of 30 rows. Returns the program, both ends of the terminal, and
/// its settings before.
fn spawn(command: &Command) -> (Child, File, File, String) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    set_rows(&slave, 30);
    let before = settings(&slave);
    let end = || Stdio::from(OwnedFd::from(slave.try_clone().unwrap()));
    // The program's controlling terminal is this one, not that of the tests.
    let child = Command::new("setsid")
        .arg("--ctty")
        .arg(command.get_program())
        .args(command.get_args())
        .env("TERM", "xterm-256color")
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .unwrap();
    (child, File::from(master), slave, before)
}

fn emulator() -> Parser {
    let (rows, columns) = size(30);
    Parser::new(rows, columns, 0)
}

impl Terminal {
    fn start(command: &Command) -> Self {
        let (child, keys, slave, before) = spawn(command);
        let mut reader = keys.try_clone().unwrap();
        let emulator = Arc::new(Mutex::new(emulator()));
        let copy = emulator.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                copy.lock().unwrap().process(&bytes[..read]);
            }
        });
        Self { child, keys, slave, emulator, before }
    }

    /// Waits until the rows of the screen satisfy a condition.
    async fn shows_rows(&self, what: &str, condition: impl Fn(&[String]) -> bool) {
        eventually(&format!("the terminal to show {what}"), async || {
            let rows: Vec<String> =
                self.emulator.lock().unwrap().screen().rows(0, COLUMNS).collect();
            condition(&rows).then_some(())
        })
        .await;
    }

    async fn shows(&self, text: &str) {
        self.shows_rows(text, |rows| rows.iter().any(|row| row.contains(text))).await;
    }

    /// The color of the first character of the row that begins with this text.
    fn color_of(&self, text: &str) -> Color {
        let emulator = self.emulator.lock().unwrap();
        let row = emulator.screen().rows(0, COLUMNS).position(|row| row.starts_with(text));
        emulator.screen().cell(row.unwrap() as u16, 0).unwrap().fgcolor()
    }

    fn resize(&self, rows: u16) {
        let (height, width) = size(rows);
        self.emulator.lock().unwrap().set_size(height, width);
        set_rows(&self.slave, rows);
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for the program's end and returns its exit code. The terminal must be as it was.
    async fn wait(&mut self) -> Option<i32> {
        let child = &mut self.child;
        let code = eventually("top to end", async || child.try_wait().unwrap()).await.code();
        eventually("the terminal to be restored", async || {
            let emulator = self.emulator.lock().unwrap();
            let screen = emulator.screen();
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        })
        .await;
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
    let mut terminal = Terminal::start(&top(&fleet));
    terminal.shows("nodes 0/0 ready").await;
    assert_ne!(settings(&terminal.slave), terminal.before, "raw");
    let node = MockNode::join(joins_at(&fleet), healthy("alpha", 3)).await;
    terminal.shows("alpha  ready   0/3").await;
    assert_eq!(terminal.color_of("alpha"), Color::Idx(2), "green");
    node.says(|status| status.slots_busy_elsewhere = 2);
    terminal.shows("alpha  ready   2/3").await;
    terminal.press("\x1b[C");
    terminal.shows("STATE*").await;
    terminal.press("r");
    terminal.shows("STATE*r").await;
    for rows in [12, 40] {
        terminal.resize(rows);
        let is_help = |row: Option<&String>| row.is_some_and(|row| row.starts_with("q quit"));
        terminal.shows_rows("its help in the last row", |rows| is_help(rows.last())).await;
    }
    terminal.press("q");
    assert_eq!(terminal.wait().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_gives_the_terminal_back_however_it_ends() {
    let fleet = Fleet::start(QUIET).await;
    let mut terminal = Terminal::start(&top(&fleet));
    terminal.shows("nodes 0/0 ready").await;
    terminal.press("\x03");
    assert_eq!(terminal.wait().await, Some(0));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = Terminal::start(&top(&fleet));
        terminal.shows("nodes 0/0 ready").await;
        kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        assert_eq!(terminal.wait().await, Some(0), "{signal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_exits_when_its_terminal_is_gone() {
    let fleet = Fleet::start(QUIET).await;
    let (mut child, mut master, _slave, _) = spawn(&top(&fleet));
    tokio::task::block_in_place(|| {
        let (mut emulator, mut bytes) = (emulator(), [0; 4096]);
        while !emulator.screen().contents().contains("nodes 0/0 ready") {
            let read = master.read(&mut bytes).unwrap();
            emulator.process(&bytes[..read]);
        }
    });
    drop(master);
    let code = eventually("top to end", async || child.try_wait().unwrap()).await.code();
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_that_the_gateway_is_gone_and_goes_on() {
    let fleet = Fleet::start(QUIET).await;
    let mut terminal = Terminal::start(&top(&fleet));
    terminal.shows("nodes 0/0 ready").await;
    fleet.server.signal(Signal::KILL);
    terminal.shows("cannot reach the gateway at").await;
    terminal.press("q");
    assert_eq!(terminal.wait().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_color_means_none() {
    let fleet = Fleet::start(QUIET).await;
    let _node = MockNode::join(joins_at(&fleet), healthy("alpha", 3)).await;
    fleet.wait_for_slots("alpha").await;
    for (variable, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let mut command = top(&fleet);
        command.env(variable, value);
        let mut terminal = Terminal::start(&command);
        terminal.shows("alpha  ready   0/3").await;
        assert_eq!(terminal.color_of("alpha"), Color::Default, "{variable}");
        terminal.press("q");
        assert_eq!(terminal.wait().await, Some(0));
    }
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
    // A backtrace would scroll the message off the screen.
    command.env("RUST_BACKTRACE", "0");
    let mut terminal = Terminal::start(&command);
    assert_eq!(terminal.wait().await, Some(101));
    // On the alternate screen, the message would have vanished.
    for text in ["panicked at", "this is what went wrong"] {
        terminal.shows(text).await;
    }
}
