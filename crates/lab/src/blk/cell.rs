//! Cells of experiments in which one client meets one backend, and their measurement.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::client::{Arrivals, Load, Pattern, Window};
use super::image::Images;
use super::medium::Medium;
use super::systems::{Place, Poll, System};
use super::{guest, image};
use crate::cpu::Placement;
use crate::experiment::{CellPlan, Comparison, Options, Plan, PlotPlan, Prepared, Sample};
use crate::host::{FIO, QSD, Tool, versions};
use crate::other_binary;
use crate::peer::Peer;

/// Client of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// The lab's client on the `virtio-driver` crate.
    Client,
    /// dd in a User-Mode Linux guest.
    GuestDd,
    /// fio in a User-Mode Linux guest, with the depth of the cell's load, which submits at most
    /// this many requests at once.
    GuestFio(u16),
}

/// Factor for the window of random arrivals. The backend needs some thousand arrivals to learn that
/// they are random.
const LEARNING: u32 = 4;

/// Factor for the window of fio in a guest, whose boot takes longer than a window.
const BOOTED: u32 = 4;

/// Space of a first write, in bytes, from which the window has one length: the storage must have
/// room for all of them, and a slow peer time for some.
const LARGE_STRETCH: u64 = 1 << 20;
/// Window of such first writes.
const LARGE_STRETCHES: Duration = Duration::from_millis(100);

/// One cell with its systems and their names.
#[derive(Debug, Clone)]
pub(super) struct CellSpec {
    pub(super) id: String,
    pub(super) title: String,
    /// Medium of the disk.
    pub(super) medium: Medium,
    /// Load of the client.
    pub(super) load: Load,
    /// Kind of client.
    pub(super) reader: Reader,
    /// Systems by name.
    pub(super) systems: Vec<(String, System)>,
    /// True for a control run, in which peers take the place of our systems. It has no bars.
    pub(super) control: bool,
}

impl CellSpec {
    pub(super) fn new(
        (id, title): (String, String),
        medium: Medium,
        load: Load,
        systems: &[System],
    ) -> Self {
        let systems = systems.iter().map(|system| (system.name(medium), *system)).collect();
        Self { id, title, medium, load, reader: Reader::Client, systems, control: false }
    }

    /// Returns the name of the first matching system, if the cell has one.
    pub(super) fn name(&self, wanted: impl Fn(&System) -> bool) -> Option<String> {
        let found = self.systems.iter().find(|(_, system)| wanted(system));
        found.map(|(name, _)| name.clone())
    }

    /// Returns the names of our systems by polling mode, off first. In a control run, returns the
    /// names of the peers in their place.
    pub(super) fn ours(&self) -> Option<[String; 3]> {
        let names = || self.systems.iter().map(|(name, _)| name);
        let of = |poll: Poll| {
            let part = format!("ringway-blk --poll {}", poll.word());
            names().find(|name| name.contains(&part) && !name.contains(", null")).cloned()
        };
        let [off, auto, always] = Poll::ALL.map(of);
        Some([off?, auto?, always?])
    }

    /// Returns the names of the `qemu-storage-daemon` systems that do not replace one of ours.
    pub(super) fn daemons(&self) -> Vec<String> {
        let names = self.systems.iter().map(|(name, _)| name);
        let own = |name: &&String| name.starts_with("qsd") && !name.contains(" in the place of ");
        names.filter(own).cloned().collect()
    }

    fn plan(&self) -> CellPlan {
        let systems = self.systems.iter().map(|(name, _)| name.clone()).collect();
        CellPlan { id: self.id.clone(), title: self.title.clone(), systems }
    }

    /// Replaces our systems with peers, whose names say so.
    fn make_control(&mut self) {
        self.control = true;
        for (name, system) in &mut self.systems {
            if system.is_ours() {
                *system = system.stand_in();
                *name = format!("{} in the place of {name}", system.name(self.medium));
            }
        }
    }
}

/// Returns the cells that the options select, adapted to the options.
pub(super) fn chosen(mut cells: Vec<CellSpec>, options: &Options) -> Vec<CellSpec> {
    cells.retain(|cell| options.selects(&cell.id));
    for cell in &mut cells {
        if options.control {
            cell.make_control();
        }
        if cell.reader == Reader::Client {
            let peers = options.peers.iter().enumerate();
            cell.systems.extend(peers.map(|(i, peer)| (peer.name.clone(), System::Peer(i))));
        }
    }
    cells
}

/// Properties of an experiment besides its cells.
pub(super) struct Design {
    pub(super) comparisons: Vec<Comparison>,
    pub(super) rounds: usize,
    pub(super) window_ms: u64,
    pub(super) placement: Placement,
    pub(super) notes: Vec<String>,
    pub(super) plots: Vec<PlotPlan>,
}

/// Creates images, finds programs and connects to peers.
pub(super) fn prepare(
    cells: Vec<CellSpec>,
    design: Design,
    options: &Options,
) -> Result<Box<dyn Prepared>> {
    let uses_fio = |cell: &CellSpec| {
        matches!(cell.reader, Reader::GuestFio(_))
            || cell.name(|system| *system == System::Fio).is_some()
    };
    let fio = cells.iter().any(uses_fio).then_some(FIO);
    let tools: Vec<Tool> = fio.into_iter().chain([QSD]).collect();
    let mut versions = versions(&tools, (!options.control).then_some("ringway-blk"))?;
    versions.insert("client".to_owned(), "virtio-driver 0.6".to_owned());
    let scratch = options.scratch.clone().unwrap_or_else(|| PathBuf::from("/var/tmp"));
    let peers: Vec<Peer> = options.peers.iter().map(Peer::join).collect::<Result<_>>()?;
    if let Some(other) = &options.other_binary {
        versions.insert(other_binary::NAME.to_owned(), other_binary::version(other)?);
    }
    let place = Place {
        images: Images::create(&scratch)?,
        placement: design.placement,
        peers,
        other_binary: options.other_binary.clone(),
    };
    let mut notes = notes(design.placement, &scratch);
    notes.extend(design.notes);
    notes.extend(place.peers.iter().map(Peer::note));
    let plan = Plan {
        cells: cells.iter().map(CellSpec::plan).collect(),
        paired: false,
        rounds: options.rounds.unwrap_or(design.rounds),
        metric: "iops".into(),
        comparisons: design.comparisons,
        versions,
        notes,
        plots: design.plots,
    };
    let window = |cell: &CellSpec| window(cell.load, cell.reader, options, design.window_ms);
    let windows = cells.iter().map(window).collect();
    Ok(Box::new(PreparedExperiment { plan, cells, place, windows }))
}

/// Returns the window of a sample: the chosen one, or the usual one as it suits the load.
pub(super) fn window(load: Load, reader: Reader, options: &Options, usual_ms: u64) -> Window {
    let usual = Duration::from_millis(usual_ms);
    Window::of(match (options.window_ms, load.arrivals, reader, load.pattern) {
        (Some(millis), ..) => Duration::from_millis(millis),
        (_, Arrivals::Poisson(_), ..) => usual * LEARNING,
        (_, _, Reader::GuestFio(_), _) => usual * BOOTED,
        (.., Pattern::EachOnce(LARGE_STRETCH..)) => LARGE_STRETCHES,
        _ => usual,
    })
}

struct PreparedExperiment {
    plan: Plan,
    cells: Vec<CellSpec>,
    place: Place,
    /// Windows by cell.
    windows: Vec<Window>,
}

impl Prepared for PreparedExperiment {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (spec, window) = (&self.cells[cell], self.windows[cell]);
        if spec.medium == Medium::Cached {
            image::warm(&self.place.images.disk)?;
        }
        let (_, system) = &spec.systems[system];
        match spec.reader {
            Reader::Client => system.measure(spec.medium, &mut self.place, spec.load, window),
            Reader::GuestDd => guest::dd::measure(*system, spec.medium, &self.place, window),
            Reader::GuestFio(batch) => {
                let load = (spec.load, batch);
                guest::fio::measure(*system, spec.medium, &self.place, load, window)
            }
        }
    }
}

fn notes(placement: Placement, scratch: &Path) -> Vec<String> {
    let mut notes = vec![
        format!(
            "Client on CPU {}, backend on CPU {}. Images of {} MiB in {}, written and in the page \
             cache; `aio=io_uring` throughout. `qsd` is `qemu-storage-daemon`, with its default \
             polling (32 us, adaptive) unless `poll-max-ns` is given.",
            placement.client,
            placement.backend,
            image::DISK_BYTES >> 20,
            scratch.display()
        ),
        "Memory: Ringway's disk is process memory; `qsd` has no memory disk, so it reads a file on \
         tmpfs (/dev/shm), buffered. Both are written once before each sample. Null moves no data: \
         do not compare its rows with others."
            .to_owned(),
    ];
    if placement.is_shared() {
        let note = "Client and backend share one CPU: while one spins, the other cannot run.";
        notes.push(note.to_owned());
    }
    notes
}
