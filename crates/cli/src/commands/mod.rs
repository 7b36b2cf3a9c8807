//! Commands, one file each.

mod calibrate;
mod confined;
mod demo;
mod die_with_parent;
mod doctor;
mod golden;
mod image;
mod io;
mod lab;
mod libvirt_xml;
mod man;
mod net;
mod private_io;
mod ringwayd;
mod run;
mod sockets;
mod sr;
mod top;
mod why;

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;

pub(crate) use io::NotACall;

/// Subcommands of `ringway`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a virtual machine on disks that Ringway serves, and show its console
    Run(run::Run),
    /// Call a running ringway-io
    Io(io::Io),
    /// Show, check, map and create image files
    Image(image::Image),
    /// Show golden images and their caches, fetch them whole, move boot sets
    Golden(golden::Golden),
    /// Measure a storage: throughput by request size and depth, and how many machines fit
    Calibrate(calibrate::Calibrate),
    /// Print the definitions that libvirt, QEMU or Cloud Hypervisor need to use a disk
    LibvirtXml(libvirt_xml::LibvirtXml),
    /// Show the activity of every disk and NIC, live
    Top(top::Top),
    /// Explain in one sentence why a disk or NIC is slow, and show the evidence
    Why(why::Why),
    /// Create, list and remove internal networks of this host
    Net(net::Net),
    /// Boot a guest on five disks and check every byte from guest and host
    Demo(demo::Demo),
    /// Examine this host and suggest a remedy for each finding
    Doctor(doctor::Doctor),
    /// Run experiments (ringway-lab)
    Lab(lab::Lab),
    /// Write the manual pages
    #[command(hide = true)]
    Man(man::Man),
    /// Execute a program that dies with its parent
    #[command(hide = true)]
    Bound(die_with_parent::DieWithParent),
    /// Execute a program without privileges that reads an untrusted file
    #[command(hide = true)]
    Confined(confined::Confined),
}

impl Command {
    /// Runs the command. `whole` returns the definition of the whole program, for the manual.
    pub(crate) fn execute(self, whole: fn() -> clap::Command) -> anyhow::Result<ExitCode> {
        match self {
            Self::Run(run) => block_on(run.execute()),
            Self::Io(io) => block_on(io.execute()),
            Self::Image(image) => block_on(image.execute()),
            Self::Golden(golden) => block_on(golden.execute()),
            Self::Calibrate(calibrate) => block_on(calibrate.execute()),
            Self::LibvirtXml(xml) => block_on(xml.execute()),
            Self::Top(top) => block_on(top.execute()),
            Self::Why(why) => block_on(why.execute()),
            Self::Net(net) => block_on(net.execute()),
            Self::Demo(demo) => block_on(demo.execute()),
            Self::Doctor(doctor) => block_on(doctor.execute()),
            Self::Lab(lab) => lab.execute(),
            Self::Man(man) => man.execute(whole()),
            Self::Bound(die_with_parent) => die_with_parent.execute(),
            Self::Confined(confined) => confined.execute(),
        }
    }
}

/// Runs `future` on a single-threaded runtime. Does not wait for background tasks, such as a write
/// to a stopped terminal.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let result = runtime.block_on(future);
    runtime.shutdown_background();
    result
}

/// Returns the output directory of `make guest`.
fn guest_dir() -> PathBuf {
    std::env::var_os("RINGWAY_GUEST_DIR").map_or_else(|| ".cache/guest".into(), PathBuf::from)
}
