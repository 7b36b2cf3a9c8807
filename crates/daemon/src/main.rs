//! Process of `ringwayd`. The library does the work.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use toolstack::sr::worker;
use toolstack::{detached_process, open_files};

use daemon::auth::pam::helper;
use daemon::options::Options;
use daemon::service_manager::ServiceManager;
use daemon::{config, start, transfer};

/// Most threads for calls. They do not wait for storage, and guests need the CPUs.
const THREADS_MAX: usize = 4;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if let Some(code) = words.next().and_then(|mode| as_helper(&mode, words)) {
        return code;
    }
    let options = Options::parse();
    let filter = std::env::var("RINGWAY_LOG").ok();
    let settings = logging::Settings { filter: filter.as_deref(), ..Default::default() };
    logging::start(&settings.limit_from_environment());
    exit_code(run(options))
}

/// Runs a helper mode. The daemon starts its own program for work that needs a separate process.
fn as_helper(mode: &OsString, words: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if mode == detached_process::MODE {
        return Some(exit_code(Err(detached_process::become_spawned(words).into())));
    }
    if mode == helper::MODE {
        return Some(helper::serve(words));
    }
    (mode == worker::MODE).then(worker::serve)
}

fn exit_code(ended: anyhow::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => {
            logging::flush();
            ExitCode::SUCCESS
        }
        Err(error) => {
            logging::write_last_line(&format!("ringwayd: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a result on standard output.
fn print_line(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

fn run(mut options: Options) -> anyhow::Result<()> {
    let (export, import) = (options.export.take(), options.import.take());
    let manager = ServiceManager::at(std::env::var_os("NOTIFY_SOCKET").as_deref());
    let manager = manager.context("NOTIFY_SOCKET names no socket")?;
    let settings = config::settings(options)?;
    if let Some(to) = export {
        let rows = transfer::export(&settings.state, &settings.socket, &to)?;
        return print_line(&format!("{rows} rows are in {}", to.display()));
    }
    if let Some(from) = import {
        let rows = transfer::import(&settings.state, &from)?;
        return print_line(&format!("{rows} rows are in {}", settings.state.display()));
    }
    if let Err(error) = open_files::raise_open_files() {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cpus.min(THREADS_MAX))
        .thread_name("ringwayd")
        .enable_all()
        .build()
        .context("cannot start threads")?;
    let ended = runtime.block_on(start::run(settings, &manager));
    // Threads that wait for storage must not delay the exit.
    runtime.shutdown_background();
    ended
}
