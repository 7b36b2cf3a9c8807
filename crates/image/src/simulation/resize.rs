//! Power cuts at each call of a resize.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::format::SimFormat;
use super::qcow2::Qcow2Options;
use super::random::Random;
use super::storage::SimFile;
use crate::qcow2::{Access, Image, Mapping, Qcow2Format};
use crate::{ImageError, run_now};

/// Cuts after each call.
const CUTS: u64 = 5;

async fn grow(
    file: SimFile,
    options: Qcow2Options,
    size: u64,
    below: u64,
) -> Result<(), ImageError> {
    let mut format = <Qcow2Format<SimFile> as SimFormat>::open(file, options).await?;
    format.resize(size, below).await
}

/// Polls at most `calls` times. Returns whether the future has ended.
fn poll(future: impl Future<Output = Result<(), ImageError>>, calls: u64) -> bool {
    let mut future = pin!(future);
    (0..calls).any(|_| match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome.is_ok() || panic!("{outcome:?}"),
        Poll::Pending => false,
    })
}

/// Cuts the power after each call. `below`: bytes of the layer below.
fn cut_everywhere(options: Qcow2Options, size: u64, below: u64) {
    for calls in 1.. {
        let mut has_ended = true;
        for cut in 0..CUTS {
            let image = Qcow2Format::<SimFile>::create(options);
            has_ended &= poll(grow(image.file.clone(), options, size, below), calls);
            image.file.cut(&mut Random::new(calls * CUTS + cut));
            let found = Qcow2Format::<SimFile>::check(&image, options, cut);
            assert_eq!(found.as_ref(), Ok(&image.initial), "{options:?} after {calls} calls");
            let mut disk = run_now(Image::open(image.file.direct(), Access::Read)).unwrap();
            let old = options.create.1;
            let found = disk.header().size;
            assert!(found == size || (found == old && !has_ended), "{found} after {calls} calls");
            let mut at = old;
            while at < found {
                let run = run_now(disk.lookup(at)).unwrap();
                let is_zero = match run.mapping {
                    Mapping::Zero => true,
                    Mapping::Unallocated => at >= below.next_multiple_of(512),
                    Mapping::Data { host_offset, .. } => {
                        image.file.value(host_offset as usize / 512) == 0
                    }
                    Mapping::Compressed(_) => false,
                };
                assert!(is_zero, "{options:?} after {calls} calls: {run:?} at {at}");
                at += if matches!(run.mapping, Mapping::Data { .. }) { 512 } else { run.bytes };
            }
        }
        if has_ended {
            return;
        }
    }
}

const SMALL: Qcow2Options = Qcow2Options {
    create: ("cluster_size=512,refcount_bits=64", 512 * 70),
    commands: &["write -q -P 1 0 4k", "write -q -P 2 35328 512", "snapshot"],
    first: 0,
    granules: 70,
    room: 3000,
    ..super::tests::SMALL
};

#[test]
fn a_larger_l1_table_is_complete_before_it_is_named() {
    cut_everywhere(SMALL, 4 << 20, 0);
}

#[test]
fn what_the_layer_below_has_more_stays_hidden() {
    let over = Qcow2Options { has_below: true, ..SMALL };
    cut_everywhere(over, 512 * 300, 512 * 200 - 100);
    let extended = "extended_l2=on,cluster_size=16k";
    let over =
        Qcow2Options { create: (extended, 16384 * 3), granules: 3, cells: 4, room: 20, ..over };
    cut_everywhere(over, 16384 * 9, 16384 * 20);
}

#[test]
fn the_rest_of_the_last_cluster_is_cleared() {
    // QEMU wrote all of the cluster before the disk was cut short.
    let with_tail = |create, commands| Qcow2Options {
        create,
        commands,
        granules: 1,
        cells: 1,
        room: 20,
        ..SMALL
    };
    for commands in [
        &["write -q -P 1 0 64k", "shrink"][..],
        &["write -q -P 1 0 64k", "snapshot", "shrink"],
        &["write -q -c -P 1 0 64k", "shrink"],
    ] {
        let options = with_tail(("cluster_size=64k", 65536 - 1024), commands);
        cut_everywhere(options, 65536 * 3, 0);
    }
}
