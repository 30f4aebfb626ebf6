//! Documentation that both programs generate from the definition of their command line. The
//! programs define commands and flags with clap; this crate adds what they have in common.
//!
//! - [`parse`]: parses the command line; errors become an exit code. Start reading here.
//! - [`exit`]: exit codes.
//! - [`with_help_sections`]: adds examples and exit codes to the help.
//! - [`generate_completions`], [`write_man_pages`]: shell completions and man pages.
//! - [`find_help_gaps`], [`find_invalid_examples`]: checks of the help, for tests.

#![warn(unreachable_pub)]

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches, Parser};
use clap_complete::Shell;

mod completions;
pub mod exit;
mod man_pages;

pub use completions::generate_completions;
pub use man_pages::write_man_pages;

/// The command's name with its parent commands, and an example command line.
pub type Example = (&'static str, &'static str);

/// Arguments of the command `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to complete commands in
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Arguments of the command `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder to write a page for each command into [default: the program's page goes to stdout]
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

/// Adds examples to the help of each command, and the exit codes to the program's help.
pub fn with_help_sections(program: Command, examples: &[Example]) -> Command {
    let name = program.get_name().to_string();
    let codes = exit::table();
    let program = with_examples(program, "", examples);
    let shown = program.get_after_help().map(|help| format!("{help}\n\n")).unwrap_or_default();
    let more = format!("'{name} COMMAND --help' describes a command.");
    program.max_term_width(100).after_help(format!("{shown}Exit codes:\n{codes}\n\n{more}"))
}

fn with_examples(command: Command, path: &str, examples: &[Example]) -> Command {
    let lines = examples.iter().filter(|(of, _)| *of == path).map(|(_, line)| format!("  {line}"));
    let lines = lines.collect::<Vec<_>>().join("\n");
    let shown = command.get_after_help().map(|help| format!("\n\n{help}")).unwrap_or_default();
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_string()).collect();
    let command = match lines.is_empty() {
        true => command,
        false => command.after_help(format!("Examples:\n{lines}{shown}")),
    };
    names.into_iter().fold(command, |command, name| {
        let below = format!("{path} {name}");
        command.mut_subcommand(&name, |sub| with_examples(sub, below.trim_start(), examples))
    })
}

/// Parses the command line. The error is the exit code, after printing the requested help or the
/// error.
pub fn parse<T: FromArgMatches>(
    command: Command,
    words: impl Iterator<Item = OsString>,
) -> Result<T, u8> {
    let read = |mut command: Command| {
        let matches = command.try_get_matches_from_mut(words)?;
        T::from_arg_matches(&matches).map_err(|e| e.format(&mut command))
    };
    read(command).map_err(|error| {
        // If printing fails, there is no one to tell.
        let printed = error.print().is_ok();
        match (error.use_stderr(), printed) {
            (true, _) => exit::USAGE,
            (false, true) => 0,
            (false, false) => exit::WRITE,
        }
    })
}

/// Gaps in a program's help: flags without help, values without a default, commands without an
/// example. For tests.
pub fn find_help_gaps(program: &Command) -> Vec<String> {
    let mut missing = Vec::new();
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        let shown = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        if !command.has_subcommands() && !shown.starts_with("Examples:") {
            missing.push(format!("{name} has no example"));
        }
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let id = argument.get_id();
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            if help.is_empty() && !["help", "version"].contains(&id.as_str()) {
                missing.push(format!("{name}: {id} has no help"));
            }
            let is_optional =
                !argument.is_required_set() && argument.get_default_values().is_empty();
            let takes = argument.get_action().takes_values();
            if takes && is_optional && !help.contains("[default: ") {
                missing.push(format!("{name}: {id} has no default"));
            }
        }
        missing.extend(find_help_gaps(command).into_iter().map(|what| format!("{name} {what}")));
    }
    missing
}

/// Why examples are not valid command lines of a program, ignoring shell syntax: variables before
/// it and redirections after it. For tests.
pub fn find_invalid_examples<T: Parser>(examples: &[Example]) -> Vec<String> {
    let read = |(_, example): &Example| {
        let line = example.split(['>', '|']).next().unwrap_or_default().replace("\\\n", " ");
        let words = line.split_whitespace().skip_while(|word| word.contains('='));
        T::try_parse_from(words).err().map(|error| format!("{example}: {error}"))
    };
    examples.iter().filter_map(read).collect()
}
