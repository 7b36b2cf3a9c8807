//! `coalesce`: requests of a disk while images below it are merged, and without a merge.
//!
//! All files are on the file system of the host. The images that are merged are two layers, each with
//! all blocks of the disk, below the one that the client writes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::find_tool;

use super::served::{Disk, Served, window};
use super::streams::Stream;
use crate::blk::client::{Access, Load, Wait};
use crate::blk::image;
use crate::experiment::{CellPlan, Comparison, Experiment, Options, Plan, Prepared, Sample, Side};
use crate::host::versions;

/// Bytes of the disk, which a merge copies.
const BYTES: u64 = 512 << 20;
const QUICK_BYTES: u64 = 64 << 20;
/// Cells: direction and requests in flight.
const CELLS: [(&str, Access, u16); 3] = [
    ("read-4k-d1", Access::Read, 1),
    ("read-4k-d8", Access::Read, 8),
    ("write-4k-d1", Access::Write, 1),
];
const SYSTEMS: [&str; 3] = ["alone", "beside a merge", "beside a merge without pauses"];
/// Pause between two looks at a merge, which no event ends early.
const LOOK: Duration = Duration::from_millis(5);

/// The `coalesce` experiment.
#[derive(Debug)]
pub struct Coalesce;

impl Experiment for Coalesce {
    fn name(&self) -> &'static str {
        "coalesce"
    }

    fn summary(&self) -> &'static str {
        "p99 of a disk on the host's storage while images below it are merged"
    }

    fn prepare(&self, options: &Options) -> Result<Box<dyn Prepared>> {
        let cells: Vec<_> = CELLS.into_iter().filter(|cell| options.selects(cell.0)).collect();
        let bytes = if options.quick { QUICK_BYTES } else { BYTES };
        let plan = Plan {
            cells: cells.iter().map(cell_plan).collect(),
            rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 5 }),
            metric: "p99_ms".into(),
            comparisons: cells.iter().flat_map(|(id, ..)| comparisons(id)).collect(),
            versions: versions(&[], Some("ringway-io"))?,
            notes: vec![format!(
                "A disk of {} MiB in a qcow2 image over two that are merged, over a raw one, by direct \
                 I/O. A merge that ends begins again. Clients sleep; nothing is pinned.",
                bytes >> 20
            )],
            ..Plan::default()
        };
        let measure = Duration::from_millis(options.window_ms.unwrap_or(5000));
        let scratch = options.scratch.clone().unwrap_or_else(|| PathBuf::from("/var/tmp"));
        Ok(Box::new(PreparedCoalesce { plan, cells, bytes, measure, scratch, images: None }))
    }
}

fn cell_plan((id, access, depth): &(&str, Access, u16)) -> CellPlan {
    let what = if *access == Access::Write { "writes" } else { "reads" };
    CellPlan {
        id: (*id).to_owned(),
        title: format!("random {what} of 4 KiB, depth {depth}, client asleep"),
        systems: SYSTEMS.map(str::to_owned).into(),
    }
}

/// Returns what the disk alone is compared with. The storage of a host promises nothing.
fn comparisons(cell: &str) -> [Comparison; 2] {
    [1, 2].map(|beside| Comparison {
        cell: cell.to_owned(),
        ours: SYSTEMS[beside].to_owned(),
        peers: vec![SYSTEMS[0].to_owned()],
        side: Side::AtMost,
        ..Comparison::default()
    })
}

struct PreparedCoalesce {
    plan: Plan,
    cells: Vec<(&'static str, Access, u16)>,
    bytes: u64,
    measure: Duration,
    scratch: PathBuf,
    images: Option<Images>,
}

impl Prepared for PreparedCoalesce {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn measure(&mut self, cell: usize, system: usize) -> Result<Sample> {
        let (_, access, depth) = self.cells[cell];
        let images = match self.images.take() {
            Some(images) => images,
            None => Images::create(&self.scratch, self.bytes)?,
        };
        images.empty_top()?;
        let disk = Disk { backend: images.over("top.qcow2", images.merged()), words: Vec::new() };
        let served = Served::ringway(&[disk])?;
        let load = Load { access, depth, wait: Wait::Sleep, ..Load::default() };
        let (window, stop) = (window(self.measure), AtomicBool::new(system == 0));
        let (ran, merges) = std::thread::scope(|scope| {
            let merges = scope.spawn(|| images.merge(&served, system == 1, &stop));
            let ran = served.run(&[vec![Stream::new(0, load)]], window, Vec::new());
            stop.store(true, Ordering::Relaxed);
            (ran, merges.join())
        });
        let (records, mut sample) = ran?;
        let merged = merges.map_err(|_| anyhow::anyhow!("the merge panicked"))??;
        for (name, percent) in [("p50_ms", 50), ("p99_ms", 99)] {
            sample.insert(name.into(), records.percentile(0, percent).as_secs_f64() * 1e3);
        }
        let rate = merged as f64 / 1048576.0 / (window.warm + window.measure).as_secs_f64();
        sample.insert("merged_mib_per_s".into(), rate);
        self.images = Some(images);
        Ok(sample)
    }
}

/// Images of the disk.
struct Images {
    dir: TempDir,
    bytes: u64,
}

impl Images {
    fn create(scratch: &Path, bytes: u64) -> Result<Self> {
        let images = Self { dir: image::dir_in(scratch)?, bytes };
        image::create(&images.path("base.raw"), bytes)?;
        for (name, below, format) in
            [("lower.qcow2", "base.raw", "raw"), ("upper.qcow2", "lower.qcow2", "qcow2")]
        {
            images.qemu_img(&["convert", "-f", "raw", "-O", "qcow2", "base.raw", name])?;
            images.qemu_img(&["rebase", "-u", "-b", below, "-F", format, name])?;
        }
        Ok(images)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn qemu_img(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(find_tool("qemu-img", "qemu-utils")?);
        let ran = command.args(words).current_dir(self.dir.path()).output()?;
        ensure!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
        Ok(())
    }

    /// Makes the image that the client writes empty again.
    fn empty_top(&self) -> Result<()> {
        let size = self.bytes.to_string();
        let backing = ["-b", "upper.qcow2", "-F", "qcow2"];
        let words =
            [&["create", "-q", "-f", "qcow2"][..], &backing, &["top.qcow2", &size]].concat();
        self.qemu_img(&words)
    }

    fn over(&self, name: &str, below: Value) -> Value {
        json!({"qcow2": {"file": self.path(name), "backing": below}})
    }

    /// Returns the images that are merged.
    fn merged(&self) -> Value {
        let base = json!({"file": self.path("base.raw")});
        self.over("upper.qcow2", self.over("lower.qcow2", base))
    }

    /// Merges again and again until told to stop. Returns the bytes that were copied.
    fn merge(&self, served: &Served, background: bool, stop: &AtomicBool) -> Result<u64> {
        let path = self.path("new.qcow2");
        let words = [
            format!("source={}", self.merged()),
            format!("path={}", path.display()),
            "format=qcow2".to_owned(),
            "layers=2".to_owned(),
            format!("background={background}"),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut copied = 0;
        while !stop.load(Ordering::Relaxed) {
            let mut call = served.begin(&[&["image.convert"][..], &words].concat())?;
            let ended = loop {
                if let Some(status) = call.try_wait()? {
                    break Some(status);
                }
                if stop.load(Ordering::Relaxed) {
                    break None;
                }
                std::thread::sleep(LOOK);
            };
            let Some(status) = ended else {
                copied += served.converted().unwrap_or(0);
                // The copy ends with its connection.
                call.kill().context("cannot end a merge")?;
                call.wait()?;
                break;
            };
            ensure!(status.success(), "a merge failed: {status}");
            copied += self.bytes;
            std::fs::remove_file(&path)?;
        }
        // The last one may have ended before it was stopped.
        let _absent = std::fs::remove_file(&path);
        Ok(copied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_alone_is_the_peer() {
        let plan = cell_plan(&CELLS[2]);
        assert_eq!(plan.title, "random writes of 4 KiB, depth 1, client asleep");
        let comparisons = comparisons(&plan.id);
        assert!(comparisons.iter().all(|one| one.peers == [SYSTEMS[0]] && one.bar.is_none()));
        assert_eq!(comparisons.map(|one| one.ours), [SYSTEMS[1], SYSTEMS[2]]);
    }
}
