//! `ringway calibrate`: measures a storage and shows what it can do.

mod chart;
mod text;

use std::fs::File;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use model::calibration::{Calibrate as Call, Calibration, MachineLoad, PROFILE_FILE, ProfileReply};
use model::spec::parse_size;
use toolstack::ringway_io::{HostSockets, RpcConnection};

use super::private_io::with_ringway_io;
use super::sr::{self, Sr};

/// Interval between two reports of the progress.
const INTERVAL: Duration = Duration::from_secs(1);

/// Options of `ringway calibrate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway calibrate /srv/vm-disks
  ringway calibrate /srv/vm-disks --store
  ringway calibrate \"Local storage\" --store
  ringway calibrate /srv/vm-disks --svg /tmp/storage.svg --machine reads=50,writes=20,size=16K
  ringway calibrate /dev/nvme1n1 --short

The storage is measured with 512 bytes to 4 MiB at a time, as one request and as 2, 4, 8 and more
smaller ones: 105 cells for reads and 105 for writes. In a folder, a file of random bytes without a
name is written, measured and removed. A block device is only read, unless --write is given. Other
users of the device are measured, too: ringway leaves them three quarters of the time.
Exit codes: 0 done, 1 failed (the cause is on standard error), 2 wrong usage.")]
pub(crate) struct Calibrate {
    /// Folder of the storage, a block device, or a storage repository of ringwayd by its name or UUID
    /// (sr=NAME if a file has the same name)
    #[arg(value_name = "PATH|SR")]
    path: PathBuf,
    /// Measure only what a profile needs, in 10 s
    #[arg(long)]
    short: bool,
    /// Write to the block device, too. This destroys everything on it
    #[arg(long)]
    write: bool,
    /// Size of the file in the folder [default: 1G, at most a quarter of the free space]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// Time of the measurement in seconds, without the writing of the file [default: 100, or 10 with
    /// --short]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=600))]
    seconds: Option<u16>,
    /// Store the profile in the folder: disks with files on its storage share it by their weights,
    /// attached ones at once
    #[arg(long, conflicts_with = "write")]
    store: bool,
    /// Write the matrix as a picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Show how many machines with this load fit, for example reads=50,writes=20,size=16K (requests a
    /// second and their size)
    #[arg(long, value_name = "LOAD")]
    machine: Option<MachineLoad>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Control socket of a running ringway-io that does the work [default: that of the storage
    /// repository, or a new one]
    #[arg(long, value_name = "SOCKET", env = "RINGWAY_CONTROL")]
    control: Option<PathBuf>,
    /// Run directory of ringwayd, for one started with --state or --run [default: that of
    /// /etc/ringway/ringwayd.toml]
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
}

impl Calibrate {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let host = self.run.as_deref().map_or_else(HostSockets::of_host, HostSockets::in_run);
        let sr = match sr::name_of(&self.path) {
            Some(name) => Some(Sr::look_up(host.clone(), name).await?),
            None => None,
        };
        let path = match &sr {
            Some(sr) => sr.folder.clone(),
            None => std::path::absolute(&self.path)?,
        };
        let call = Call {
            path,
            write: self.write,
            short: self.short,
            size_bytes: self.size,
            store: self.store,
            seconds: self.seconds,
        };
        if self.store {
            // Before the measurement, which takes long.
            anyhow::ensure!(
                call.path.is_dir(),
                "--store needs a folder: {} is none",
                call.path.display()
            );
        }
        let mut picture = self.svg.as_ref().map(create).transpose()?;
        let measure = async |connection: &mut RpcConnection, control: &Path| {
            measure(&call, connection, control).await
        };
        // Without disks, no process serves the SR.
        let serves = sr.as_ref().map(|sr| &sr.control).filter(|control| is_served(control));
        let control = self.control.as_ref().or(serves);
        let found = with_ringway_io(control.map(PathBuf::as_path), measure).await?;
        if let Some(file) = &mut picture {
            file.write_all(chart::svg(&found).as_bytes())?;
        }
        if let Some(own) = &found.stored {
            let others = if self.control.is_some() { Vec::new() } else { host.controls() };
            let others = others.into_iter().filter(|other| Some(other) != control);
            tell_use(&call.path, own, others.collect()).await?;
            if let Some(sr) = &sr {
                sr.show(&found.profile).await?;
            }
        }
        let mut output = std::io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut output, &found)?;
            writeln!(output)?;
        } else {
            output.write_all(text::report(&found, self.machine.as_ref()).as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Creates the file of the picture before the measurement, which takes long.
fn create(path: &PathBuf) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// Tells which disks use the stored profile. Other processes of the host learn of it here.
async fn tell_use(folder: &Path, own: &ProfileReply, others: Vec<PathBuf>) -> anyhow::Result<()> {
    let mut replies = vec![own.clone()];
    for control in others {
        let Ok(mut connection) = RpcConnection::connect(&control).await else { continue };
        // A process of an earlier version has no such call; its disks learn at their next attach.
        replies.extend(connection.storage_profile(folder).await.ok());
    }
    let disks: Vec<_> = replies.iter().flat_map(|reply| &reply.disks).map(String::as_str).collect();
    let used = match disks.as_slice() {
        [] => "disks use it from their next attach on".to_owned(),
        disks => format!("in use by {}", disks.join(", ")),
    };
    writeln!(stderr(), "stored {}; {used}", folder.join(PROFILE_FILE).display())?;
    for note in replies.iter().flat_map(|reply| &reply.notes) {
        writeln!(stderr(), "note: {note}")?;
    }
    Ok(())
}

/// Returns whether a process accepts connections at a control socket.
fn is_served(control: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(control).is_ok()
}

/// Measures the storage, and shows on a terminal how far it is.
async fn measure(
    call: &Call,
    connection: &mut RpcConnection,
    control: &Path,
) -> anyhow::Result<Calibration> {
    if !stderr().is_terminal() {
        return Ok(connection.storage_calibrate(call).await?);
    }
    let mut reports = RpcConnection::connect(control).await?;
    let found = tokio::select! {
        found = connection.storage_calibrate(call) => found,
        never = report(&mut reports) => match never {},
    };
    let _ = writeln!(stderr());
    Ok(found?)
}

/// Shows how far the measurement is.
async fn report(connection: &mut RpcConnection) -> std::convert::Infallible {
    loop {
        tokio::time::sleep(INTERVAL).await;
        // The result tells what is wrong, if anything is.
        let Ok(reply) = connection.storage_progress().await else { continue };
        let Some(one) = reply.calibrating.first() else { continue };
        let _ = match one.total_cells {
            0 => write!(stderr(), "\rwriting a file of random bytes "),
            total => {
                write!(stderr(), "\rcell {} of {total}, {} s left   ", one.done_cells, one.left_s)
            }
        };
        let _ = stderr().flush();
    }
}
