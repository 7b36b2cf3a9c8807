//! Tests of passes.

use std::os::fd::OwnedFd;

use super::*;
use crate::qcow2::l2::COPIED;
use crate::qcow2::{Access, CreateOptions, create};
use crate::{PlainFile, run_now};

/// Bytes of a cluster, so that a page of counters stands for 2 MiB of the file.
const CLUSTER: u64 = 512;
const DISK: u64 = 16 << 20;

/// Returns an image whose first clusters are `stride` clusters of the file apart, without refcounts.
fn scattered(count: u64, stride: u64) -> Image<PlainFile> {
    let file = PlainFile::new(OwnedFd::from(tempfile::tempfile().unwrap()));
    let options = CreateOptions {
        cluster_bits: CLUSTER.trailing_zeros(),
        extended_l2: false,
        ..CreateOptions::new(DISK)
    };
    let made = async {
        create(&file, &options).await?;
        let l2 = file.len().await.map_err(ImageError::io("measure", 0))?;
        let image = Image::open(file, Access::Write).await?;
        let data = |index: u64| l2 + (index + 1) * stride * CLUSTER;
        let entries = (0..count).map(|index| (l2 + index * 8, data(index)));
        for (offset, host) in entries.chain([(image.header.l1.offset, l2)]) {
            let bytes = (host | COPIED).to_be_bytes();
            image.file().write_at(offset, &bytes).await.map_err(ImageError::io("write", offset))?;
        }
        let end = l2 + (count + 1) * stride * CLUSTER;
        image.file().set_len(end).await.map_err(ImageError::io("grow", 0))?;
        Image::open(image.tables.file, Access::Write).await
    };
    run_now(made).unwrap()
}

fn errors(report: &CheckReport) -> Vec<u64> {
    let mut offsets: Vec<_> = report.faults.iter().map(|fault| fault.offset).collect();
    offsets.sort_unstable();
    offsets
}

#[test]
fn an_image_of_many_passes_has_the_faults_of_one_pass() {
    // One cluster in each of 20 pages of counters.
    let mut image = scattered(20, 4096);
    let whole = run_now(image.check()).unwrap();
    assert_eq!((whole.errors, whole.leaks), (42, 0), "refcount 0, and marked, each and the table");
    for pages in [1, 2, 3, 7] {
        let report = run_now(image.run_check(pages, OnLeak::Report)).unwrap();
        assert_eq!((report.errors, report.leaks), (whole.errors, whole.leaks), "{pages} pages");
        assert_eq!(errors(&report), errors(&whole), "{pages} pages");
    }
}

#[test]
fn a_check_ends_when_it_is_told_to() {
    let mut image = scattered(1, 1);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    image.stop_when(stop);
    assert!(matches!(run_now(image.check()), Err(ImageError::Stopped)));
    assert!(matches!(run_now(image.map(0, 1)), Err(ImageError::Stopped)));
}
