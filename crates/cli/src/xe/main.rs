//! `xe`, the administrator's tool, as in XenServer.
//!
//! # Terms
//! - **Command**: the first word, for example `vm-start` ([`commands`]).
//! - **Parameters**: the words after it, `name=value` or `--name` ([`params`]).
//! - **Object type**: type of object that commands apply to, for example `vm` ([`object_types`]).
//!   Its **columns** are the fields in lists ([`columns`]). Both follow from the API's class table.
//! - **Selector**: parameters that select machines, hosts or storage.
//!
//! # Model
//! All arguments are read before the first call. A command prints nothing. It returns the
//! [output](printer), so that half a result is never shown.
//!
//! # Errors
//! [`XeError`] determines the text on standard error and the exit code: 0 for success and help, 1
//! for everything else.
//!
//! # Invariants
//! No runtime, no configuration library, no colour: a call takes milliseconds. A closed standard
//! output is no error.
//!
//! # How to test
//! Unit tests in each module compare exact texts. `tests/suite/xe` runs the program against a
//! server in the test.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod arguments;
mod cache;
mod columns;
mod commands;
mod complete;
mod connect;
mod error;
mod filter;
mod help;
mod keyboard;
mod manual;
mod object_types;
mod params;
mod parse;
mod printer;
mod selector;
mod shell;
mod together_progress;
mod unknown;
mod values;
mod xe;

use std::io::Write;
use std::process::ExitCode;

use arguments::Arguments;
use commands::ResolvedCommand;
use connect::ClientEnv;
use error::XeError;
use printer::Printed;
use xe::XeSession;

fn main() -> ExitCode {
    let read = ClientEnv::of_user().and_then(|around| Arguments::read(&typed()?, &around));
    let (done, minimal) = match read {
        Ok(arguments) => {
            connect::join_control(&arguments);
            (execute(&arguments), arguments.minimal)
        }
        Err(xe_error) => (Err(xe_error), false),
    };
    match done {
        Ok(printed) => print(&printed.text(minimal)),
        Err(xe_error) => {
            // The exit code tells the failure to a caller that reads no text.
            let _ = write!(std::io::stderr(), "{}", xe_error.errors());
            xe_error.code()
        }
    }
}

/// Returns the arguments of the program.
///
/// # Errors
/// An argument is not UTF-8, the encoding of all texts in the API.
fn typed() -> Result<Vec<String>, XeError> {
    let not_utf8 = |word: std::ffi::OsString| {
        let word = word.to_string_lossy().into_owned();
        XeError::error(format!("the argument '{word}' is not UTF-8: type it again"))
    };
    std::env::args_os().skip(1).map(|word| word.into_string().map_err(not_utf8)).collect()
}

fn execute(arguments: &Arguments) -> Result<Printed, XeError> {
    let params = &arguments.params;
    let command = match arguments.command.as_str() {
        "help" => return help::help(params, arguments.minimal),
        "completion" => return complete::script(params),
        "complete" => return complete::complete(arguments),
        "man" => return Ok(manual::page()),
        name => commands::find(name).ok_or_else(|| XeError::unknown(name))?,
    };
    if let Some(word) = &arguments.stray {
        // The rest of a value with blanks, for example a size or a name, must not get lost.
        let why = "a parameter is name=value; put quotes around a value with blanks";
        return Err(XeError::syntax(&format!("what is '{word}'? {why}")));
    }
    command.check(params)?;
    let mut xe = XeSession::new(connect::login(arguments)?);
    let done = match command {
        ResolvedCommand::Written(command) => command.run.run(&mut xe, params),
        ResolvedCommand::Generic(kind, verb) => verb.run(&mut xe, kind, params),
    };
    let done = done.map_err(|xe_error| xe_error.explained(&mut xe));
    xe.leave();
    done
}

/// Prints a text. A reader that closes standard output early, as `head` does, is no error.
fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            let _ = writeln!(std::io::stderr(), "Error: cannot print: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
