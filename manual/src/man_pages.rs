//! Man pages: one for the program and one for each command.

use std::io::{Error, Write};
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

use crate::exit;

/// Date of the last major change to the pages. Some man page readers warn without one.
const DATE: &str = "2026-11-22";

/// Writes the pages of a program and each of its commands to a folder, or only the program's page
/// to `out`.
pub fn write_man_pages(
    program: Command,
    to: Option<&Path>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    match to {
        None => out.write_all(page(&program, &program)?.as_bytes()),
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            write_all(&program, &program, folder)
        }
    }
}

fn write_all(program: &Command, command: &Command, folder: &Path) -> Result<(), Error> {
    let name = Man::new(command.clone()).get_filename();
    std::fs::write(folder.join(name), page(program, command)?)?;
    let mut shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    shown.try_for_each(|command| write_all(program, command, folder))
}

fn page(program: &Command, command: &Command) -> Result<String, Error> {
    let version = program.get_version().unwrap_or_default();
    let source = format!("{} {version}", program.get_name());
    let man = Man::new(command.clone()).manual("Flotilla").source(source).date(DATE);
    let out = &mut Vec::new();
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(out)?;
    }
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for paragraph in after.split("\n\n") {
        // The exit codes are the same on every page.
        match paragraph.split_once(":\n") {
            Some(("Exit codes", _)) | None => {}
            Some((title, text)) => verbatim(&title.to_uppercase(), text, out)?,
        }
    }
    verbatim("EXIT STATUS", &exit::table(), out)?;
    // Line breaks next to an empty line have no effect, and some readers warn about them.
    Ok(String::from_utf8_lossy(out).replace("\n.br\n\n.br\n", "\n.sp\n"))
}

/// Writes a section whose lines stay as they are.
fn verbatim(title: &str, text: &str, out: &mut dyn Write) -> Result<(), Error> {
    writeln!(out, ".SH \"{title}\"\n.nf")?;
    for line in text.lines() {
        let line = line.trim_start().replace('\\', "\\(rs").replace('-', "\\-");
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(out, "{guard}{line}")?;
    }
    writeln!(out, ".fi")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_look_like_requests_are_text() {
        let mut out = Vec::new();
        verbatim("EXAMPLES", "  ./run --now\n  .x \\n", &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, ".SH \"EXAMPLES\"\n.nf\n\\&./run \\-\\-now\n\\&.x \\(rsn\n.fi\n");
    }
}
