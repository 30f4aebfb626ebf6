//! Tuning: what it writes, and what `serve` makes of that.

use std::path::PathBuf;
use std::process::Command;

use fleet_tests::process::{Folder, Ran, Server, program, run, run_command};
use serde_json::Value;

/// A model, and a cache folder of its own.
struct Place {
    folder: Folder,
    model: String,
}

impl Place {
    fn new() -> Self {
        let folder = Folder::new();
        let model = folder.path().join("tiny.gguf").to_str().unwrap().to_string();
        let ran = run("flotilla-agent", &["synth", "--shape", "tiny", "--quant", "q8_0", &model]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        Self { folder, model }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program("flotilla-agent", arguments);
        command.env("FLOTILLA_CACHE_DIR", self.folder.path().join("cache"));
        command
    }

    fn tune(&self, more: &[&str]) -> Ran {
        let arguments = [["tune", &self.model, "--seconds", "5"].as_slice(), more].concat();
        let ran = run_command(self.command(&arguments));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    }

    fn serve(&self, more: &[&str]) -> Server {
        let listen = ["serve", "--model", &self.model, "--listen", "127.0.0.1:0"];
        Server::spawn(self.command(&[listen.as_slice(), more].concat()))
    }

    fn files(&self) -> Vec<PathBuf> {
        let folder = std::fs::read_dir(self.folder.path().join("cache/tune"));
        folder.map_or(Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect())
    }
}

#[test]
fn what_was_tuned_is_kept_and_served_and_a_flag_wins() {
    let place = Place::new();
    let line = place.serve(&[]).wait_for_line("not tuned");
    assert!(line.contains("flotilla-agent tune"), "{line}");

    let tuned: Value = serde_json::from_str(&place.tune(&["--json"]).stdout).unwrap();
    let [file] = &place.files()[..] else { panic!("{:?}", place.files()) };
    assert_eq!(tuned["file"], file.to_str().unwrap(), "one whole file, no part of one");
    assert!(tuned["found"]["trials"][0]["measured"]["decode_one"].as_f64().unwrap() > 0.0);
    let slots = tuned["tuned"]["slots"].as_u64().unwrap();
    assert!((1..=16).contains(&slots), "{tuned}");

    let again = place.tune(&[]).stdout;
    assert!(again.contains("measured before") && again.contains("chosen:"), "{again}");

    let server = place.serve(&[]);
    server.wait_for_line("using tuned settings");
    let line = server.wait_for_line("batch rows");
    assert!(line.contains(&format!("slots {slots} (tuned)")), "{line}");
    assert!(line.contains("KV f16 (default)") && !line.contains("(flag)"), "{line}");
    server.wait_for_line("engine ready");
    let line = place.serve(&["--slots", "3", "--poll", "7"]).wait_for_line("batch rows");
    assert!(line.contains("slots 3 (flag)") && line.contains("poll 7 (flag)"), "{line}");
    assert!(line.contains("threads") && line.contains("(tuned)"), "{line}");
}

#[test]
fn a_broken_file_is_ignored_and_replaced() {
    let place = Place::new();
    place.tune(&["--slots", "2"]);
    let line = place.serve(&["--slots", "2"]).wait_for_line("batch rows");
    assert!(line.contains("slots 2 (flag)") && line.contains("(tuned)"), "{line}");
    let file = place.files().remove(0);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    let server = place.serve(&["--slots", "2"]);
    server.wait_for_line("tuning results ignored");
    let line = server.wait_for_line("batch rows");
    assert!(line.contains("threads") && !line.contains("(tuned)"), "{line}");
    let server = place.serve(&["--slots", "2", "--tune"]);
    server.wait_for_line("tuning results ignored");
    assert!(server.wait_for_line("batch rows").contains("(tuned)"));
    assert!(serde_json::from_str::<Value>(&std::fs::read_to_string(&file).unwrap()).is_ok());
}

#[test]
fn a_model_that_cannot_be_tuned_is_refused_in_one_line() {
    let place = Place::new();
    let ran = run_command(place.command(&["tune", "missing.gguf"]));
    assert!(ran.code == Some(65) && ran.stderr.contains("missing.gguf"), "{ran:?}");
    let ran = run_command(place.command(&["tune", &place.model, "--poll", "101"]));
    assert_eq!(ran.code, Some(64), "{ran:?}");
}
