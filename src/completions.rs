//! `brigade completions`: what a shell reads to complete the command's words, made of its flags.

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::{Shell, generate};

/// Print what completes this command's words and flags in a shell.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  brigade completions bash  > ~/.local/share/bash-completion/completions/brigade
  brigade completions zsh   > ~/.zfunc/_brigade     (a folder that is in fpath, before compinit)
  brigade completions fish  > ~/.config/fish/completions/brigade.fish")]
pub(crate) struct Args {
    /// Which shell
    #[arg(value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"])
        .map(|name| name.parse::<Shell>().expect("a shell that is known")))]
    shell: Shell,
}

/// Print the script for the shell, of a command with these flags.
pub(crate) fn completions(args: &Args, command: clap::Command) -> ExitCode {
    print!("{}", script(args.shell, command));
    ExitCode::SUCCESS
}

fn script(shell: Shell, mut command: clap::Command) -> String {
    let mut script = Vec::new();
    generate(shell, &mut command, "brigade", &mut script);
    String::from_utf8(script).expect("names and helps are text")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What bash says to this, once it has read the script.
    fn bash(flag: &str, after: &str) -> String {
        let script = script(Shell::Bash, crate::command()) + after;
        let output = Command::new("bash").args(["--norc", flag, &script]).output();
        let output = output.expect("bash is there");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
        String::from_utf8(output.stdout).expect("words")
    }

    #[test]
    fn bash_completes_commands_and_flags() {
        assert_eq!(bash("-nc", ""), "", "it parses");
        for (words, last, wanted) in [
            ("brigade ben", "ben", "bench"),
            ("brigade schedule sh", "sh", "show"),
            ("brigade train --check", "--check", "--checkpoint --checkpoint-every"),
            ("brigade completions f", "f", "fish"),
        ] {
            let before = words.split(' ').rev().nth(1).unwrap_or_default();
            let ask = format!(
                "COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
                 _brigade brigade {last} {before}; echo ${{COMPREPLY[@]}}"
            );
            assert_eq!(bash("-c", &ask).trim(), wanted, "{words}");
        }
    }

    #[test]
    fn every_shell_has_a_script_that_knows_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell, crate::command());
            for name in crate::command().get_subcommands().map(clap::Command::get_name) {
                assert!(script.contains(name), "{name} in {shell}");
            }
        }
    }
}
