//! `ringway`, the operator's tool.
//!
//! # Words
//! A **command** is a subcommand; each has a file of its own in `commands/` with its options,
//! its help and a thin `execute` that calls the `toolstack`. Tables are made in [`table`], what
//! the terminal needs in [`terminal`].
//!
//! # Errors
//! A command returns an error with its chain of causes; `main` prints the chain on one line and
//! ends with 1. Wrong usage ends with 2, as clap does it: also what only a command finds to be
//! wrong, without a look at the host.
//!
//! # Invariants
//! Standard output carries results (a console, JSON, a table); everything said about them goes
//! to standard error. A closed standard output is no error.
//!
//! # How to test
//! `tests/` runs the built program. What needs QEMU and `ringway-io` is in `tests/run.rs` and
//! `tests/demo.rs`.
#![forbid(unsafe_code)]

mod commands;
mod table;
mod terminal;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tracing_subscriber::EnvFilter;

use commands::{Command, NotACall};
use model::spec::SpecError;
use toolstack::recipe_disks::RecipeDiskError;

/// Exit code of wrong usage, as clap has it.
const USAGE: u8 = 2;

/// Disks for virtual machines: run one, look at it, check the host.
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
    let filter = EnvFilter::try_from_env("RINGWAY_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match arguments.command.execute(Arguments::command) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringway: {error:#}");
            if is_usage(&error) { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// What was typed is wrong, whatever the host is like.
fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let front = cause.downcast_ref::<RecipeDiskError>();
        matches!(front, Some(RecipeDiskError::Spec(_)))
            || cause.is::<SpecError>()
            || cause.is::<NotACall>()
    })
}

/// Whoever reads our output had enough, as `head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
