//! `ringway-io`: many disks.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use vhost_user::{Access, Listener, Stop};

use crate::adopt::{adopt, tell_ready};
use crate::control::Server;
use crate::io_options::IoOptions;
use crate::pool::{Pool, default_count};
use crate::table::Table;
use crate::{limits, logging, signals};

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let parent = getppid();
    let options = IoOptions::parse();
    logging::start();
    let result = match (&options.control, options.probe) {
        (Some(control), false) => run(control, &options, parent),
        (_, _) => probe(),
    };
    crate::exit("ringway-io", result)
}

fn run(
    control: &Path,
    options: &IoOptions,
    parent: Option<rustix::process::Pid>,
) -> anyhow::Result<()> {
    if options.die_with_parent {
        set_parent_process_death_signal(Some(Signal::TERM)).context("--die-with-parent")?;
        // It may have died before the kernel knew what we want.
        anyhow::ensure!(getppid() == parent, "the process that started this one has ended");
    }
    let open_files = limits::raise_open_files();
    let ready = options.ready_fd.map(adopt).transpose().context("--ready-fd")?;
    let signals = signals::watch().context("cannot watch for signals")?;
    let reactors = options.reactors.map_or_else(default_count, usize::from);
    let pool = Pool::start(reactors).context("cannot start reactors")?;
    let table = Arc::new(Table::new(Arc::new(pool), open_files));

    let access = Access { mode: Some(options.control_mode), group: None };
    let listener = Listener::bind(control, &access)?;
    let end = Stop::new().context("cannot make a signal")?;
    let server = Server::new(Arc::clone(&table), end.clone()).context("cannot make a signal")?;
    let outcome = std::thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let served = server.run(&listener);
            // Without callers nobody could end this process in order.
            end.stop();
            served
        });
        tracing::info!(control = %control.display(), reactors, "taking calls");
        let told = ready.as_ref().map_or(Ok(()), tell_ready).context("--ready-fd");
        let waited = end.wait(Some(signals.as_fd()), None).context("cannot wait for signals");
        // Callers hear of it while the disks go.
        table.shut_down();
        server.stop();
        let served = calls.join().unwrap_or(Ok(()));
        told.and(waited.map(drop)).and(served.map_err(Into::into))
    });
    tracing::info!("ended");
    outcome
}

fn probe() -> anyhow::Result<()> {
    let probe = reactor::probe();
    let report = serde_json::json!({
        "usable": probe.usable,
        "problem": probe.problem,
        "defer_taskrun": probe.defer_taskrun,
        "complete": probe.complete,
    });
    println!("{report}");
    Ok(())
}
