//! `formats`: disks in qcow2, VHD and raw images. First writes, which allocate, and known blocks.

mod disk;

use std::path::PathBuf;

use anyhow::Result;

use super::cell::{CellSpec, Design, Reader, chosen, prepare, window};
use super::client::{Access, Load, Pattern, Wait, Window};
use super::fleet::BackendKind;
use super::image::DISK_BYTES;
use super::medium::Medium;
use super::systems::System;
use crate::cpu::Placement;
use crate::experiment::{Comparison, Experiment, Options, Prepared};
use crate::host::{QEMU_IMG, versions};
use disk::VHD_BLOCK;
pub use disk::{Content, Disk, Format, disk_bytes, end};

/// Bytes of the disk for each first write: the largest cluster of all systems.
const STRETCH: u64 = 128 << 10;
/// Layers of a long chain.
const LAYERS: u64 = 10;
/// Requests in flight.
const DEPTHS: [u16; 2] = [32, 1];
/// Least rate over `qemu-storage-daemon` where it must not be slower.
const EVEN: f64 = 1.0;

/// Format of Ringway's own images.
const LEAF: Format = Format::Qcow2 { cluster_kib: 64, extended: true };
/// Format of `qemu-img` without options.
const PLAIN: Format = Format::Qcow2 { cluster_kib: 64, extended: false };
/// Format that QEMU's manual shows with extended L2 entries.
const LARGE: Format = Format::Qcow2 { cluster_kib: 128, extended: true };

/// The `formats` experiment.
#[derive(Debug)]
pub struct Formats;

impl Experiment for Formats {
    fn name(&self) -> &'static str {
        "formats"
    }

    fn summary(&self) -> &'static str {
        "disks in qcow2, VHD and raw images: first writes and known blocks against qemu-storage-daemon"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells = chosen(cells(), options);
        let window_ms = if options.quick { 100 } else { 200 };
        let window = |load| window(load, Reader::Client, options, window_ms);
        let room = |cell: &CellSpec| disk::room_bytes(cell, window(cell.load));
        let bytes = cells.iter().map(room).max().unwrap_or(0);
        let scratch = options.scratch.clone().unwrap_or_else(|| PathBuf::from("/var/tmp"));
        disk::check_room(&scratch, bytes)?;
        versions(&[QEMU_IMG], None)?;
        let design = Design {
            comparisons: cells.iter().flat_map(comparisons).collect(),
            rounds: if options.quick { 3 } else { 7 },
            window_ms,
            placement: Placement::choose()?,
            notes: vec![note(window)],
            plots: Vec::new(),
        };
        prepare(cells, design, options)
    }
}

fn note(window: impl Fn(Load) -> Window) -> String {
    let size = |stretch| {
        let load = Load { pattern: Pattern::EachOnce(stretch), ..small() };
        disk_bytes(load, window(load))
    };
    format!(
        "Both servers read and write files by direct I/O and poll as they do by default. The client \
         polls, writes, and never flushes: durable references are part of no figure, but both write \
         some while the client runs. After a kill, `ringway-blk` has all acknowledged first writes \
         in its journal, `qsd` has not. \
         First writes: each sample has a new image. One 4 KiB block in each {} KiB of the disk is \
         written, in random order, so each write allocates a cluster in every format. Disk and raw \
         backing image have {} MiB. In a VHD one block in each {} KiB of {} MiB is written, the size \
         of its units. Known blocks: all {} MiB were written before. With {LAYERS} \
         layers, reads find a tenth of them in each, and writes meet all of them in the top one. \
         `image MiB` is the space of the top image after the sample.",
        STRETCH >> 10,
        size(STRETCH) >> 20,
        VHD_BLOCK >> 10,
        size(VHD_BLOCK) >> 20,
        DISK_BYTES >> 20,
    )
}

/// Returns all cells. A quick run has the same ones.
fn cells() -> Vec<CellSpec> {
    use BackendKind::{Daemon, Ringway};
    let disk = |server, format, content| System::Formatted(server, Disk { format, content });
    let first = |id: &str, title: &str, content, formats: &[(BackendKind, Format)]| {
        let is_vhd = formats.iter().any(|(_, format)| *format == Format::Vhd);
        let stretch = if is_vhd { VHD_BLOCK } else { STRETCH };
        let systems: Vec<System> =
            formats.iter().map(|(server, format)| disk(*server, *format, content)).collect();
        let load = Load { access: Access::Write, pattern: Pattern::EachOnce(stretch), ..small() };
        DEPTHS.map(|depth| cell((id, title), Load { depth, ..load }, &systems))
    };
    let over = "first writes over a raw image";
    let mut all = Vec::new();
    let every = [(Ringway, LEAF), (Daemon, PLAIN), (Daemon, LEAF), (Daemon, LARGE)];
    all.extend(first("first-backed", over, Content::OverData, &every));
    let title = "first writes without a backing image";
    all.extend(first("first-alone", title, Content::Blank, &every[..2]));
    let title = format!("{over}, image of qemu-img");
    let foreign = [(Ringway, PLAIN), (Daemon, PLAIN)];
    all.extend(first("foreign-backed", &title, Content::OverData, &foreign));
    let both = [(Ringway, Format::Vhd), (Daemon, Format::Vhd)];
    all.extend(first("first-vhd", "first writes to a VHD", Content::Blank, &both));
    for (id, access) in [("known-read", Access::Read), ("known-write", Access::Write)] {
        let layers = |layers| match access {
            Access::Read => Content::Spread(layers),
            Access::Write => Content::Top(layers),
        };
        let of = |server, format| [1, LAYERS].map(|count| disk(server, format, layers(count)));
        let raw = |server| disk(server, Format::Raw, Content::Top(1));
        let ([one, ten], [theirs, long]) = (of(Ringway, LEAF), of(Daemon, PLAIN));
        let systems = [one, theirs, ten, long, raw(Ringway), raw(Daemon)];
        let title = if access == Access::Read { "random reads" } else { "random writes" };
        let title = format!("{title} of known blocks");
        let of_depth = |depth| cell((id, &title), Load { access, depth, ..small() }, &systems);
        all.extend(DEPTHS.map(of_depth));
    }
    all
}

/// Returns a 4 KiB load of a polling client.
fn small() -> Load {
    Load { wait: Wait::Poll, sample_every: 1, ..Load::default() }
}

/// Returns a cell, for example `known-read-d32`.
fn cell((id, title): (&str, &str), load: Load, systems: &[System]) -> CellSpec {
    let depth = load.depth;
    let title = format!("{title}, 4 KiB, depth {depth}, polling client");
    CellSpec::new((format!("{id}-d{depth}"), title), Medium::Direct, load, systems)
}

/// Our system by its place in the cell, its peers, and the bar.
type Pair = (usize, &'static [usize], Option<f64>);

/// Returns the pairs of a cell. Ours with one layer over ours in a raw file, and ten layers over
/// one, are only told. At depth 1, nothing but an even rate is promised.
fn pairs(spec: &CellSpec) -> Vec<Pair> {
    let bar = |bar| Some(if spec.load.depth > 1 { bar } else { EVEN });
    match spec.id.split("-d").next() {
        Some("first-backed") => vec![(0, &[1], bar(3.0)), (0, &[2, 3], bar(1.5))],
        Some("first-alone" | "first-vhd") => vec![(0, &[1], bar(3.0))],
        Some("foreign-backed") => vec![(0, &[1], bar(1.2))],
        _ => {
            let even = Some(EVEN);
            vec![
                (0, &[1], even),
                (2, &[3], even),
                (4, &[5], even),
                (0, &[4], None),
                (2, &[0], None),
            ]
        }
    }
}

/// Returns the comparisons of a cell: rates with their bars, then the CPU time of each request.
fn comparisons(spec: &CellSpec) -> Vec<Comparison> {
    let name = |at: &usize| spec.systems.get(*at).map(|(name, _)| name.clone());
    let of = |(ours, peers, bar): &Pair, metric: &str| {
        let bar = bar.filter(|_| metric == "iops" && !spec.control);
        Some(Comparison {
            cell: spec.id.clone(),
            ours: name(ours)?,
            peers: peers.iter().map(name).collect::<Option<_>>()?,
            metric: Some(metric.to_owned()),
            bar,
            // An even rate has no distance from 1 that could exceed the spread.
            spread_excuses: bar == Some(EVEN),
            ..Comparison::default()
        })
    };
    let (pairs, mut all) = (pairs(spec), Vec::new());
    for metric in ["iops", "backend_cpu_us_per_request"] {
        all.extend(pairs.iter().filter_map(|pair| of(pair, metric)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(options: &Options) -> (Vec<CellSpec>, Vec<Comparison>) {
        let cells = chosen(cells(), options);
        let compared = cells.iter().flat_map(comparisons).collect();
        (cells, compared)
    }

    #[test]
    fn ids_are_unique_and_each_cell_has_systems_of_both_servers() {
        let (cells, _) = planned(&Options::default());
        let ids: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
        let kinds = [
            "first-backed",
            "first-alone",
            "foreign-backed",
            "first-vhd",
            "known-read",
            "known-write",
        ];
        let all: Vec<String> =
            kinds.iter().flat_map(|kind| DEPTHS.map(|depth| format!("{kind}-d{depth}"))).collect();
        assert_eq!(ids, all);
        for cell in &cells {
            let mut names: Vec<&String> = cell.systems.iter().map(|(name, _)| name).collect();
            let ours = names.iter().filter(|name| name.starts_with("ringway-blk ")).count();
            assert!(ours > 0 && ours < names.len(), "{names:?}");
            names.sort();
            names.dedup();
            assert_eq!(names.len(), cell.systems.len(), "{}", cell.id);
        }
    }

    #[test]
    fn first_writes_have_their_bars_at_depth_32_and_are_never_slower() {
        let (_, compared) = planned(&Options::default());
        let bars: Vec<_> = compared
            .iter()
            .filter(|c| !c.cell.starts_with("known"))
            .filter_map(|c| Some((c.cell.as_str(), c.peers.join(" + "), c.bar?, c.spread_excuses)))
            .collect();
        let extended = "qsd qcow2 64k extended + qsd qcow2 128k extended".to_owned();
        let plain = "qsd qcow2 64k".to_owned();
        assert_eq!(
            bars,
            [
                ("first-backed-d32", plain.clone(), 3.0, false),
                ("first-backed-d32", extended.clone(), 1.5, false),
                ("first-backed-d1", plain.clone(), 1.0, true),
                ("first-backed-d1", extended, 1.0, true),
                ("first-alone-d32", plain.clone(), 3.0, false),
                ("first-alone-d1", plain.clone(), 1.0, true),
                ("foreign-backed-d32", plain.clone(), 1.2, false),
                ("foreign-backed-d1", plain, 1.0, true),
                ("first-vhd-d32", "qsd vhd".to_owned(), 3.0, false),
                ("first-vhd-d1", "qsd vhd".to_owned(), 1.0, true),
            ]
        );
    }

    #[test]
    fn known_blocks_are_compared_with_the_same_depth_of_chain() {
        let (_, compared) = planned(&Options::default());
        let bars: Vec<_> = compared.iter().filter(|c| c.cell.starts_with("known")).collect();
        let bars: Vec<_> = bars.into_iter().filter(|c| c.bar.is_some()).collect();
        assert_eq!(bars.len(), 4 * 3);
        for bar in bars {
            let long = |name: &str| name.ends_with(", 10 layers");
            let raw = |name: &str| name.ends_with(" raw");
            let [peer] = &bar.peers[..] else { panic!("{bar:?}") };
            assert!(peer.starts_with("qsd ") && bar.bar == Some(1.0), "{bar:?}");
            assert_eq!((long(peer), raw(peer)), (long(&bar.ours), raw(&bar.ours)), "{bar:?}");
        }
    }

    #[test]
    fn a_control_run_has_none_of_ours() {
        let (cells, compared) = planned(&Options { control: true, ..Options::default() });
        let mut systems = cells.iter().flat_map(|cell| &cell.systems);
        assert!(systems.all(|(_, system)| !system.is_ours()));
        assert!(compared.iter().all(|c| c.bar.is_none() && c.peers[0] != c.ours));
    }
}
