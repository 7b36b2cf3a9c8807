//! `ringway-blk`: one disk.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use rustix::net::{getpeername, sockopt};
use vhost_user::{Stop, Woken};

use crate::adopt::{adopt, tell_ready};
use crate::blk_options::{BlkOptions, CAPABILITIES};
use crate::export::{Export, Source};
use crate::pool::{Pool, default_count};
use crate::{limits, logging, signals};

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    // QEMU's conventions: with this option all others are ignored, even wrong ones.
    if std::env::args_os().any(|arg| arg == OsStr::new("--print-capabilities")) {
        println!("{CAPABILITIES}");
        return ExitCode::SUCCESS;
    }
    let options = BlkOptions::parse();
    logging::start();
    crate::exit("ringway-blk", run(&options).map(|()| ExitCode::SUCCESS))
}

fn run(options: &BlkOptions) -> anyhow::Result<()> {
    let spec = options.spec()?;
    let limit = limits::raise_open_files();
    limits::check_open_files(limit, [], spec.queues)?;
    let ready = options.ready_fd.map(adopt).transpose().context("--ready-fd")?;
    let signals = signals::watch().context("cannot watch for signals")?;
    let reactors =
        options.reactors.map_or_else(|| default_count().min(spec.queues.into()), usize::from);
    let pool = Pool::start(reactors).context("cannot start reactors")?;
    let export = Export::open(spec, Arc::new(pool))?;
    export.activate()?;
    let served = serve(options, &export, ready, &signals);
    // Whatever happened, what the guest wrote is made durable.
    let detached = export.detach();
    served?;
    Ok(detached?)
}

fn serve(
    options: &BlkOptions,
    export: &Arc<Export>,
    ready: Option<OwnedFd>,
    signals: &OwnedFd,
) -> anyhow::Result<()> {
    let ended = Stop::new().context("cannot make a signal")?;
    let source = match (options.fd, options.connect) {
        (Some(fd), _) => Source::Connected(connected(fd).with_context(|| format!("--fd {fd}"))?),
        (None, true) => Source::Connect(export.spec().socket.clone()),
        (None, false) => {
            export.listen()?;
            export.source()
        }
    };
    export.serve(source, Some(ended.clone()))?;
    let size = export.geometry().size;
    tracing::info!(socket = %export.spec().socket.display(), bytes = size, "serving");
    if let Some(ready) = ready {
        tell_ready(&ready).context("--ready-fd")?;
    }
    match ended.wait(Some(signals.as_fd()), None).context("cannot wait for signals")? {
        Woken::Stopped => Ok(export.served()?),
        Woken::Readable | Woken::TimedOut => Ok(()),
    }
}

/// The connected socket that we were started with.
fn connected(fd: i32) -> anyhow::Result<UnixStream> {
    let socket = adopt(fd).context("no descriptor is open under this number")?;
    let kind = sockopt::socket_type(&socket).context("not a socket")?;
    anyhow::ensure!(
        kind == rustix::net::SocketType::STREAM && getpeername(&socket)?.is_some(),
        "not a stream socket that is connected to a front-end"
    );
    // A session sleeps in its reads.
    rustix::io::ioctl_fionbio(&socket, false).context("cannot make it blocking")?;
    Ok(socket.into())
}
