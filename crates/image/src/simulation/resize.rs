//! Power cuts at each call of a resize.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::format::SimFormat;
use super::qcow2::Qcow2Options;
use super::random::Random;
use super::storage::SimFile;
use super::tests::{DYNAMIC, ODD};
use super::vhd::VhdOptions;
use crate::qcow2::{Access, Image, Mapping, Qcow2Format};
use crate::vhd::{self, VhdFormat};
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

async fn grow_vhd(file: SimFile, options: VhdOptions, size: u64) -> Result<(), ImageError> {
    <VhdFormat<SimFile> as SimFormat>::open(file, options).await?.resize(size, 0).await
}

#[test]
fn a_vhd_has_its_old_or_its_new_size() {
    // The last granule has data behind the end of the disk.
    let stored = &[(4, [0xff; 16]), (23, [0xff; 16])];
    for options in [VhdOptions { stored, ..DYNAMIC }, VhdOptions { stored, ..ODD }] {
        let (old, size) = (options.size, 40 << 19);
        let (mut calls, mut has_ended) = (0, false);
        while !has_ended {
            (calls, has_ended) = (calls + 1, true);
            for cut in 0..CUTS {
                let image = VhdFormat::<SimFile>::create(options);
                has_ended &= poll(grow_vhd(image.file.clone(), options, size), calls);
                image.file.cut(&mut Random::new(calls * CUTS + cut));
                let found = VhdFormat::<SimFile>::check(&image, options, cut);
                assert_eq!(found.as_ref(), Ok(&image.initial), "{options:?} after {calls} calls");
                let file = image.file.direct();
                let mut disk = run_now(vhd::Image::open(file, Access::Read)).unwrap();
                let found = disk.footer().size;
                assert!(found == size || (found == old && !has_ended), "{found} after {calls}");
                let mut at = old;
                while at < found {
                    let run = run_now(disk.lookup(at)).unwrap();
                    let value = |place| image.file.value(place as usize / 512);
                    assert_eq!(run.host_offset.map_or(0, value), 0, "{at} after {calls} calls");
                    at += if run.host_offset.is_some() { 512 } else { run.bytes };
                }
            }
        }
    }
}

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
