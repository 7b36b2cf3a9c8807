//! The demo: a guest uses four disks, and both sides check every byte.
//!
//! The guest formats, writes, loads and verifies (`guest.sh`); afterwards, when nothing runs any
//! longer, the host looks at the files with programs that are not ours (`e2fsck`, `debugfs`,
//! `sha256sum`) and compares.

mod console;
mod images;
mod verify;

pub use verify::Check;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use model::disk_arg::DiskArg;
use model::machine::{AccelChoice, MachineSpec};
use model::report::{DiskStats, Stats};
use model::spec::SpecError;

use crate::run::{Activity, Console, Finished, Host, Note, Outcome, RunError, run};
use console::Story;
use images::Images;

/// Longest demo. It takes about half a minute with two idle cores and no KVM.
const TIME_LIMIT: Duration = Duration::from_secs(170);
/// Memory of the guest in bytes.
const MEMORY_BYTES: u64 = 384 << 20;
/// The last words keep the kernel from things that only cost time in a translated guest.
const APPEND: &str = "console=ttyS0 quiet panic=-1 ringway.script=script mitigations=off \
                      cryptomgr.notests tsc=reliable no_timer_check nokaslr";
/// What each disk is for, in order of position: its serial and a few words.
const DISKS: [(&str, &str); 5] = [
    ("data", "raw file, ext4"),
    ("multi", "raw file, 4 queues"),
    ("mem", "memory"),
    ("golden", "raw file, read-only"),
    ("script", "the guest's script"),
];

/// What the demo needs.
#[derive(Debug)]
pub struct Demo {
    /// The guest's kernel.
    pub kernel: PathBuf,
    /// The guest's initial RAM disk.
    pub initrd: PathBuf,
    /// An empty directory for the images, 300 MiB in the end.
    pub dir: PathBuf,
    /// Accelerator asked for.
    pub accel: AccelChoice,
}

/// What it tells while it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A step has begun.
    Step(String),
    /// A remark on the side.
    Remark(String),
    /// The guest writes: now is the time to kill the process that serves it.
    Strike,
    /// A line of the guest's console that means nothing to the demo.
    Console(String),
}

/// A demo that ran through. It has succeeded if every check has.
#[derive(Debug)]
pub struct Report {
    /// What the datapath counted.
    pub stats: Option<Stats>,
    /// For how long each disk was busy.
    pub activity: Activity,
    /// What the host found in the files.
    pub checks: Vec<Check>,
}

/// Why the demo did not run through.
#[derive(Debug, thiserror::Error)]
pub enum DemoError<S: std::fmt::Debug> {
    /// The machine failed.
    #[error("the guest could not be run; its last lines:{last_lines}")]
    Run {
        /// Why.
        source: RunError,
        /// The end of its console, indented.
        last_lines: String,
    },
    /// The guest found something wrong.
    #[error("the guest reports: {what}; its last lines:{last_lines}")]
    Guest {
        /// What.
        what: String,
        /// The end of its console, indented.
        last_lines: String,
    },
    /// It took too long.
    #[error("not done after {} s; its last lines:{last_lines}", TIME_LIMIT.as_secs())]
    TooLong {
        /// The end of its console, indented.
        last_lines: String,
    },
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped(S),
    /// An image could not be made or read.
    #[error("cannot {what}")]
    Files {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A disk cannot be had as the demo wants it.
    #[error("the demo's disks are wrong")]
    Spec(#[from] SpecError),
}

/// How a disk of the demo is called in its table.
pub fn disk_name(disk: &DiskStats) -> String {
    let position = disk.id.strip_prefix("disk").and_then(|text| text.parse::<usize>().ok());
    match position.and_then(|position| DISKS.get(position)) {
        Some((serial, purpose)) => format!("{serial} ({purpose})"),
        None => disk.id.clone(),
    }
}

/// Runs the demo. `stop` resolves when the caller wants it to end. In the middle the worker that
/// serves the disks is killed, if the host lets us ([`Host::kill_worker`]).
///
/// # Errors
/// When it did not run through; a check that failed is no error but in the report.
pub async fn demo<S: std::fmt::Debug>(
    demo: &Demo,
    host: &Host,
    stop: impl Future<Output = S>,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Report, DemoError<S>> {
    let step = |text: &str| progress(Progress::Step(text.into()));
    step("make the images");
    let images = Images::make(&demo.dir)
        .await
        .map_err(|source| DemoError::Files { what: "make the images", source })?;
    let spec = machine(demo, &images)?;
    let (sink, source) = tokio::io::duplex(64 << 10);
    let mut note = |note: Note| match note {
        Note::Serving(_) | Note::Started | Note::WorkerKilled(_) | Note::Ended => {
            progress(Progress::Step(note.to_string()));
        }
        _ => progress(Progress::Remark(note.to_string())),
    };
    let console = Console::new(sink, None);
    let news = |news: Progress| match (news, &host.kill_worker) {
        (Progress::Strike, Some(kill)) => kill.notify_one(),
        (news, _) => progress(news),
    };
    let (ended, story) =
        tokio::join!(run(&spec, host, console, stop, &mut note), console::follow(source, &news),);
    let finished = judge(ended, &story)?;
    step("check the files from the host");
    let mut checks = verify::verify(&images, &story)
        .await
        .map_err(|source| DemoError::Files { what: "check the files", source })?;
    checks.push(verify::restart(finished.stats.as_ref(), &story));
    Ok(Report { stats: finished.stats, activity: finished.activity, checks })
}

/// The machine of the demo.
fn machine(demo: &Demo, images: &Images) -> Result<MachineSpec, SpecError> {
    let path = |path: &std::path::Path| path.display().to_string().replace(',', ",,");
    let disks: Result<Vec<DiskArg>, SpecError> = [
        format!("{},serial=data", path(&images.data)),
        format!("{},serial=multi,queues=4", path(&images.multi)),
        format!("memory:{},serial=mem", images::MEMORY_BYTES),
        format!("{},ro,serial=golden", path(&images.golden)),
        format!("{},ro,serial=script", path(&images.script)),
    ]
    .iter()
    .map(|text| text.parse())
    .collect();
    Ok(MachineSpec {
        kernel: demo.kernel.clone(),
        initrd: Some(demo.initrd.clone()),
        append: APPEND.into(),
        disks: disks?,
        memory_bytes: MEMORY_BYTES,
        vcpus: 2,
        accel: demo.accel,
        timeout: Some(TIME_LIMIT),
    })
}

/// Only a guest that powered off after a script that succeeded has run through.
fn judge<S: std::fmt::Debug>(
    ended: Result<Finished<S>, RunError>,
    story: &Story,
) -> Result<Finished<S>, DemoError<S>> {
    let last_lines = story.last_lines();
    match ended {
        Err(source) => Err(DemoError::Run { source, last_lines }),
        Ok(Finished { outcome: Outcome::TimedOut, .. }) => Err(DemoError::TooLong { last_lines }),
        Ok(Finished { outcome: Outcome::Stopped(reason), .. }) => Err(DemoError::Stopped(reason)),
        Ok(finished) => match story.verdict() {
            Ok(()) => Ok(finished),
            Err(what) => Err(DemoError::Guest { what, last_lines }),
        },
    }
}
