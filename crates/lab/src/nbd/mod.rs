//! `nbd-export`: one disk over NBD, from our server and other servers, with fio's nbd engine.
//!
//! Client and server have a CPU each. fio's engine is one thread on libnbd, with some six system
//! calls per request, and is often slower than the server. So every cell also has a reply-only
//! server of ours, which replies at once without work ([`reply_only`]). Its rate is the limit of
//! fio.

mod cells;
pub mod reply_only;
mod systems;

use std::path::{Path, PathBuf};

use anyhow::Result;
use testkit::process::find_binary;

use crate::blk::image::{self, DISK_BYTES, Images};
use crate::blk::medium::Medium;
use crate::cpu::Placement;
use crate::experiment::{Experiment, Options, Plan, Prepared, Sample};
use crate::host::{FIO, QSD, Tool, versions};
use cells::{CellSpec, comparison, plan_cells, window};

/// The last tool fills memory disks before they are read.
const TOOLS: [Tool; 4] =
    [FIO, QSD, ("nbdkit", "nbdkit", "nbdkit"), ("nbdcopy", "nbdcopy", "libnbd-bin")];

/// The `nbd-export` experiment.
#[derive(Debug)]
pub struct NbdExport;

impl Experiment for NbdExport {
    fn name(&self) -> &'static str {
        "nbd-export"
    }

    fn summary(&self) -> &'static str {
        "one disk over NBD: ringway-io against qemu-storage-daemon and nbdkit, by fio's nbd engine"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let ours = (!options.control).then_some("ringway-io");
        let versions = versions(&TOOLS, ours)?;
        if ours.is_some() {
            find_binary("ringway")?;
        }
        let scratch = options.scratch.clone().unwrap_or_else(|| PathBuf::from("/var/tmp"));
        let images = Images::create(&scratch)?;
        let placement = Placement::choose()?;
        let cells = plan_cells(options);
        let plan = Plan {
            cells: cells.iter().map(CellSpec::plan).collect(),
            rounds: options.rounds.unwrap_or(5),
            metric: "iops".into(),
            comparisons: cells.iter().map(comparison).collect(),
            versions,
            notes: notes(placement, &scratch),
            ..Plan::default()
        };
        Ok(Box::new(PreparedExperiment {
            plan,
            cells,
            images,
            placement,
            options: options.clone(),
        }))
    }
}

struct PreparedExperiment {
    plan: Plan,
    cells: Vec<CellSpec>,
    images: Images,
    placement: Placement,
    options: Options,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let spec = &self.cells[cell];
        if spec.medium == Medium::Cached {
            image::warm(&self.images.disk)?;
        }
        let (_, system) = &spec.systems[system];
        let window = window(&self.options);
        system.measure(spec.medium, &self.images, spec.load, window, self.placement)
    }
}

fn notes(placement: Placement, scratch: &Path) -> Vec<String> {
    let mut notes = vec![
        format!(
            "fio on CPU {}, server on CPU {}, one connection. Disks of {} MiB; images in {}, in \
             the page cache. `(reply only)` is the lab's own server, which answers each request at \
             once from a prepared buffer: no server can give such a client more.",
            placement.client,
            placement.backend,
            DISK_BYTES >> 20,
            scratch.display()
        ),
        "Null stores nothing: Ringway, `qsd` with `read-zeroes=on` and `(reply only)` answer reads \
         with holes; `qsd` with `off` and `nbdkit` send the bytes. Memory: Ringway and `nbdkit` \
         use process memory; `qsd` has no memory disk, so it serves a file on tmpfs (/dev/shm), \
         with threads and with io_uring. All disks are written once before each sample. `qsd` \
         serves from its main loop: in an iothread, version 7.2 aborts when a client disconnects. \
         If several kinds of `qsd` are compared, the better one of each round counts."
            .to_owned(),
        "`CPU us/request` is the server's. A client at 1.00 CPUs is itself the limit; a server \
         then helps only if its wake-up is cheap and its answers come early."
            .to_owned(),
    ];
    if placement.is_shared() {
        notes.push("This host has one CPU, which both share.".to_owned());
    }
    notes
}
