//! `blk-baseline`: one disk over vhost-user, ours and `qemu-storage-daemon`'s, by a neutral client.
//!
//! The client is the `virtio-driver` crate's front-end and driver (what libblkio uses) in a loop of
//! our own ([`client`]). Client and backend have a CPU each. Every sample starts its backend fresh and
//! ends it, so nothing that polls is left over for the next.

mod cells;
pub mod client;
pub mod hung_disk;
pub mod image;
pub mod loopback;
pub mod stats_cost;
pub mod systems;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use testkit::process::{find_binary, find_tool};

use crate::cpu::Placement;
use crate::experiment::{Experiment, Options, Plan, Prepared, Sample};
use crate::host::version_of;
use cells::{CellSpec, comparisons, plan_cells, window};
use systems::{Images, Medium};

/// The experiment.
#[derive(Debug)]
pub struct BlkBaseline;

impl Experiment for BlkBaseline {
    fn name(&self) -> &'static str {
        "blk-baseline"
    }

    fn summary(&self) -> &'static str {
        "one disk: ringway-blk against qemu-storage-daemon, by a client on the virtio-driver crate"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let versions = versions(options.control)?;
        let scratch = options.scratch.clone().unwrap_or_else(|| PathBuf::from("/var/tmp"));
        let images = Images::create(&scratch)?;
        let placement = Placement::choose()?;
        let cells = plan_cells(options);
        let plan = Plan {
            cells: cells.iter().map(CellSpec::plan).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 7 } else { 9 }),
            metric: "iops".into(),
            comparisons: cells.iter().flat_map(comparisons).collect(),
            versions,
            notes: notes(placement, &scratch),
            ..Plan::default()
        };
        Ok(Box::new(Ready { plan, cells, images, placement, options: options.clone() }))
    }
}

struct Ready {
    plan: Plan,
    cells: Vec<CellSpec>,
    images: Images,
    placement: Placement,
    options: Options,
}

impl Prepared for Ready {
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

fn versions(control: bool) -> Result<BTreeMap<String, String>> {
    let daemon = find_tool("qemu-storage-daemon", "qemu-system-common")?;
    let mut versions = BTreeMap::from([
        ("qsd".to_owned(), version_of(&daemon)),
        ("client".to_owned(), "virtio-driver 0.6".to_owned()),
    ]);
    if !control {
        let ours = find_binary("ringway-blk")?;
        versions.insert("ringway-blk".to_owned(), version_of(&ours));
    }
    Ok(versions)
}

fn notes(placement: Placement, scratch: &Path) -> Vec<String> {
    let mut notes = vec![
        format!(
            "Client on CPU {}, backend on CPU {}. Images of {} MiB in {}, written and in the page \
             cache; `aio=io_uring` throughout. `qsd` is `qemu-storage-daemon`, with its default \
             polling (32 us, adaptive) unless `poll-max-ns=0` is said.",
            placement.client,
            placement.backend,
            systems::DISK_BYTES >> 20,
            scratch.display()
        ),
        "Memory: ours is memory of the process; `qsd` has none, so it reads a file on tmpfs \
         (/dev/shm), buffered; both were written once before each sample. Null moves no data: do not compare its rows with others."
            .to_owned(),
    ];
    if placement.is_shared() {
        notes.push("This host has one CPU for both: figures of polling mean nothing.".to_owned());
    }
    notes
}
