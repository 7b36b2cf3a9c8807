//! fio in a guest: random small reads, several in flight. The guest sleeps while all of them are
//! with the backend.

use std::path::Path;

use anyhow::{Context, Result};

use super::{BEGIN, END, run};
use crate::blk::client::{Load, Window};
use crate::blk::image::DISK_BYTES;
use crate::blk::medium::Medium;
use crate::blk::systems::{Place, System};
use crate::experiment::Sample;
use crate::fio::{self, To};

/// Boots a guest on a fresh backend, runs fio in it, and ends both.
pub(in crate::blk) fn measure(
    system: System,
    medium: Medium,
    place: &Place,
    (load, batch): (Load, u16),
    window: Window,
) -> Result<Sample> {
    let load = fio::Load { mode: "randread", bytes: load.bytes, depth: load.depth };
    let ran = run(system, medium, place, &script(load, batch, window))?;
    let (mut sample, _) = fio::figures(&ran.output, load)?;
    let requests = sample["requests"];
    let calls = calls(&ran.output)
        .with_context(|| format!("the guest did not count its interrupts: {}", ran.output))?;
    sample.insert("calls_per_request".to_owned(), calls as f64 / requests);
    // fio's own CPU time by the guest's clock. The host's figure has all of the guest.
    sample.remove("client_cpus");
    sample.extend(ran.cpu(requests));
    Ok(sample)
}

/// Returns the guest's script. fio itself prints the lines around its requests, because it takes
/// longer to start than some runs last.
fn script(load: fio::Load, batch: u16, window: Window) -> String {
    let disk = To::Direct(Path::new("/dev/vda"));
    let words = fio::arguments(disk, DISK_BYTES, load, window.measure).join(" ");
    // By default fio submits one request and takes one completion at a time.
    let batches = match (batch, load.depth) {
        (1, _) => String::new(),
        (_, depth) => {
            format!("--iodepth_batch_submit={batch} --iodepth_batch_complete_max={depth}")
        }
    };
    let count = "grep virtio-uml /proc/interrupts";
    format!(
        "before='{count}; echo {BEGIN}' after='echo {END}; {count}'
         fio {words} {batches} --exec_prerun=\"sh -c '($before) >/dev/console'\" \
             --exec_postrun=\"sh -c '($after) >/dev/console'\""
    )
}

/// Returns the number of the disk's interrupts between the two counts.
fn calls(output: &str) -> Option<u64> {
    // fio's report repeats its arguments, which name the driver too.
    let lines = output.lines().filter(|line| line.contains(" virtio-uml,"));
    let counts = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse().ok());
    let [before, after]: [u64; 2] = counts.collect::<Vec<_>>().try_into().ok()?;
    after.checked_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_are_counted_between_the_marks() {
        let line = |count: u64| format!(" 19:  {count}  SIGIO  virtio-uml, virtio-uml.0-req.0\n");
        let report = "{\"exec_prerun\" : \"grep virtio-uml /proc/interrupts\"}";
        let text = [&line(3), BEGIN, "\n", END, "\n", &line(45), report].concat();
        assert_eq!(calls(&text), Some(42));
        for bad in [line(3), line(3) + &line(2), [line(1), line(2), line(3)].concat()] {
            assert_eq!(calls(&bad), None, "{bad}");
        }
    }

    #[test]
    fn fio_prints_the_marks_itself() {
        let load = fio::Load { mode: "randread", bytes: 4096, depth: 4 };
        let script = script(load, 2, Window::of(std::time::Duration::from_millis(50)));
        for part in ["--filename=/dev/vda ", "--iodepth=4 ", "--runtime=50ms ", "_submit=2 "] {
            assert!(script.contains(part), "{script}");
        }
    }
}
