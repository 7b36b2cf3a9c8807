//! Runs the machine with a blocking API client.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tokio::sync::mpsc::Sender;
use xenapi::client::Tunnel;

use super::Progress;
use super::disks::Disk;
use super::machine::{Api, Machine};
use super::transcript::{GuestEvent, GuestTranscript};

/// Bytes of the console read at once.
const CHUNK_BYTES: usize = 4096;

/// A halted machine whose guest has finished. No process serves its disks.
#[derive(Debug)]
pub(super) struct DemoResult {
    pub(super) machine: Machine,
    pub(super) guest_transcript: GuestTranscript,
    /// Its disks by their ids in the datapath.
    pub(super) ids: BTreeMap<String, Disk>,
}

/// Creates the machine and runs it to its end, at the daemon of this socket.
///
/// # Errors
/// A call fails, the guest reports an error, or the receiver of `news` is gone.
pub(super) fn play(socket: &Path, news: &Sender<Progress>) -> anyhow::Result<DemoResult> {
    let notify = |progress| {
        news.blocking_send(progress).map_err(|_| anyhow!("the demo was ended by its caller"))
    };
    let step = |text: &str| notify(Progress::Step(text.into()));
    let mut api = Api::open(socket)?;
    step("make the disks and the machine")?;
    let machine = api.make()?;
    let began = Instant::now();
    let console = api.start(&machine)?;
    notify(Progress::Serving)?;
    api.unpause(&machine)?;
    let took = began.elapsed().as_secs_f64();
    step(&format!("the guest runs: its start took {took:.1} s with 4 disks"))?;
    let mut guest_transcript = GuestTranscript::default();
    let played = listen(console, &mut guest_transcript, |guest_event| match guest_event {
        GuestEvent::News(progress) => notify(progress),
        GuestEvent::Plug => {
            let began = Instant::now();
            api.plug(&machine)?;
            step(&format!("plugged another disk in {:.1} s", began.elapsed().as_secs_f64()))
        }
    });
    played.with_context(|| format!("the guest's last lines:{}", guest_transcript.last_lines()))?;
    if let Err(what) = guest_transcript.verdict() {
        return Err(anyhow!(
            "the guest reports: {what}; its last lines:{}",
            guest_transcript.last_lines()
        ));
    }
    step("the guest has switched itself off")?;
    api.halted(&machine)?;
    let ids = api.ids(&machine)?;
    api.disconnect()?;
    Ok(DemoResult { machine, guest_transcript, ids })
}

/// Reads a console to its end.
fn listen(
    mut console: Tunnel,
    guest_transcript: &mut GuestTranscript,
    mut heed: impl FnMut(GuestEvent) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut bytes = [0; CHUNK_BYTES];
    loop {
        match console.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                let guest_event = guest_transcript.take(bytes.get(..count).unwrap_or_default());
                guest_event.into_iter().try_for_each(&mut heed)?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => readable(&console)?,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error).context("the console is lost"),
        }
    }
}

/// Waits without a limit until the console is readable: the caller's time limit ends the daemon,
/// and with it the console.
fn readable(console: &Tunnel) -> io::Result<()> {
    match poll(&mut [PollFd::new(console, PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
