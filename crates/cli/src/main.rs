//! `ringway`, the operator's tool.
//!
//! # Structure
//! Each **command** is a subcommand with a file of its own in `commands/`. The file has its
//! options, its help and a thin `execute` that calls the `toolstack`. [`table`] makes tables, and
//! [`terminal`] handles keys and signals.
//!
//! # Errors
//! A command returns an error with its chain of causes. `main` prints the chain on one line and
//! exits with 1. Wrong usage exits with 2, as in clap. That includes errors that only the command
//! can find, if they do not depend on the host.
//!
//! # Invariants
//! Standard output carries only results (a console, JSON, a table). All messages go to standard
//! error. A closed standard output is no error.
//!
//! # How to test
//! `tests/suite` runs the built program. Tests with QEMU and `ringway-io` are in `tests/guests`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod commands;
mod table;
mod terminal;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use commands::{Command, NotACall};
use model::spec::SpecError;
use terminal::Interrupt;
use toolstack::recipe_disks::RecipeDiskError;

/// Exit code of wrong usage, as in clap.
const USAGE: u8 = 2;

/// Disks for virtual machines: run a VM, watch its disks, check the host.
#[derive(Debug, Parser)]
#[command(
    name = "ringway",
    version,
    max_term_width = 100,
    after_help = "Start with `ringway doctor`, then `ringway demo`. Each command has its own \
                  --help with examples.\n\nExit codes, where a command does not say more: 0 done, \
                  1 failed (the cause is on standard error),\n2 wrong usage, 130 Ctrl-C."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = std::env::var("RINGWAY_LOG").ok();
    let (filter, default_level) = (filter.as_deref(), "warn");
    logging::start(&logging::Settings { filter, default_level, ..Default::default() });
    let code = match arguments.command.execute(Arguments::command) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            logging::write_line(&format!("ringway: {error:#}"));
            match error.downcast_ref::<Interrupt>() {
                Some(interrupt) => ExitCode::from(interrupt.exit_code()),
                None if is_usage(&error) => ExitCode::from(USAGE),
                None => ExitCode::FAILURE,
            }
        }
    };
    logging::flush();
    code
}

/// Returns whether the command line is wrong, independently of the host.
fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let front = cause.downcast_ref::<RecipeDiskError>();
        matches!(front, Some(RecipeDiskError::Spec(_)))
            || cause.is::<SpecError>()
            || cause.is::<NotACall>()
    })
}

/// Returns whether the reader of standard output has closed it, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that clap breaks no line of paragraphs that are already in lines.
    fn assert_width(command: &clap::Command) {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for paragraph in text.split("\n\n").filter(|text| text.contains('\n')) {
            let fits = paragraph.lines().all(|line| line.chars().count() <= 100);
            assert!(fits, "{}: {paragraph}", command.get_name());
        }
        command.get_subcommands().for_each(assert_width);
    }

    #[test]
    fn lines_of_help_fit() {
        assert_width(&Arguments::command());
    }
}
