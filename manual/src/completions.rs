//! Shell completions.

use clap::Command;
use clap_complete::Shell;

/// A completion script for the commands and flags of a program.
pub fn generate_completions(program: &Command, shell: Shell) -> Vec<u8> {
    let name = program.get_name().to_string();
    if shell != Shell::Bash {
        return script(program, shell, &name);
    }
    // The bash generator treats the dash in a program's name as a space in half of the places, and
    // then completes nothing below a command. So it gets a name without a dash; only the last
    // lines, which bind the function to the program, need the real one.
    let plain = name.replace('-', "_");
    let script = String::from_utf8_lossy(&script(program, shell, &plain)).into_owned();
    let lines = script.lines().map(|line| match line.trim_start().starts_with("complete -F") {
        true => line.strip_suffix(&plain).map_or(line.into(), |line| format!("{line}{name}")),
        false => line.to_string(),
    });
    lines.flat_map(|line| (line + "\n").into_bytes()).collect()
}

fn script(program: &Command, shell: Shell, name: &str) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(program), name, &mut script);
    script
}

/// A command without hidden parts, which the generators would show.
fn visible(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let below = command.get_subcommands().filter(|command| !command.is_hide_set()).map(visible);
    let mut copy = Command::new(command.get_name().to_string()).args(arguments).subcommands(below);
    if let Some(version) = command.get_version() {
        copy = copy.version(version.to_string());
    }
    match command.get_about() {
        Some(about) => copy.about(about.clone()),
        None => copy,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ValueEnum};

    use super::*;

    #[test]
    fn what_is_hidden_is_not_completed_and_the_rest_is() {
        let program = Command::new("boat")
            .subcommand(Command::new("row").arg(Arg::new("oars").long("oars")))
            .subcommand(Command::new("sink").hide(true));
        for shell in Shell::value_variants() {
            let script = String::from_utf8(generate_completions(&program, *shell)).unwrap();
            assert!(script.contains("row") && script.contains("oars"), "{shell}: {script}");
            assert!(!script.contains("sink"), "{shell}: {script}");
        }
    }

    #[test]
    fn a_program_with_a_dash_in_its_name_is_completed_below_its_commands() {
        let key = Command::new("key").subcommand(Command::new("revoke"));
        let program = Command::new("boat-yard").subcommand(key);
        let script = String::from_utf8(generate_completions(&program, Shell::Bash)).unwrap();
        // The case for the preceding words and the completions it offers have the same name.
        assert_eq!(script.matches("cmd=\"boat_yard__subcmd__key\"").count(), 1, "{script}");
        assert!(script.contains("        boat_yard__subcmd__key)\n"), "{script}");
        let bound = script.lines().filter(|line| line.contains("complete -F"));
        assert!(bound.clone().count() > 0, "{script}");
        for line in bound {
            assert!(line.contains("-F _boat_yard ") && line.ends_with(" boat-yard"), "{line}");
        }
    }
}
