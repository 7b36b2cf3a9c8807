//! The `virtio-driver` front-end against backends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::{Served, Start, number, numbered_image};
use testkit::driver::{Driver, Options};

const IMAGE_BYTES: u64 = 1 << 20;
/// Longest wait for a completion, and for a backend that sleeps.
const DEADLINE: Duration = Duration::from_secs(10);

fn reads_and_writes_reach_the_image(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 1, read_only: false });
    let driver = Driver::connect(backend.socket(), &Options::default()).unwrap();
    assert_eq!(driver.disk.bytes, IMAGE_BYTES);
    assert!(!driver.disk.read_only);
    let mut queue = driver.into_queue().unwrap();

    queue.read(40 * 512, 3, 4096).unwrap();
    assert_eq!(queue.finish_one().unwrap(), (3, 0));
    let data = queue.buffer(3, 4096).unwrap();
    assert_eq!(data.chunks(512).map(number).collect::<Vec<_>>(), (40..48).collect::<Vec<_>>());

    queue.fill(5, &[0xee; 1024]).unwrap();
    queue.write(512, 5, 1024).unwrap();
    assert_eq!(queue.finish_one().unwrap(), (5, 0));
    queue.flush(9).unwrap();
    assert_eq!(queue.finish_one().unwrap(), (9, 0));
    let mut on_disk = [0; 1024];
    image.as_file().read_exact_at(&mut on_disk, 512).unwrap();
    assert_eq!(on_disk, [0xee; 1024]);

    // The client sleeps before it polls, so the call must come. A backend that is awake wants no
    // kick.
    let until = Instant::now() + DEADLINE;
    loop {
        queue.want_calls(true);
        queue.read(0, 0, 512).unwrap();
        queue.kick().unwrap();
        while queue.completions(|slot, ret| assert_eq!((slot, ret), (0, 0))) == 0 {
            assert!(queue.sleep_until(DEADLINE).unwrap());
        }
        if queue.kicks > 0 && queue.calls > 0 {
            break;
        }
        assert!(Instant::now() < until, "{} kicks, {} calls", queue.kicks, queue.calls);
    }
}

fn many_requests_on_several_queues(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 2, read_only: false });
    let options = Options { queues: 2, slots: 32, ..Options::default() };
    let driver = Driver::connect(backend.socket(), &options).unwrap();
    assert_eq!((driver.disk.queues, driver.queues.len()), (2, 2));
    let clients = driver.queues.into_iter().map(|mut queue| {
        std::thread::spawn(move || {
            for slot in 0..32 {
                queue.read(u64::from(slot) * 4096, slot, 4096).unwrap();
            }
            let mut done: Vec<u16> = (0..32)
                .map(|_| queue.finish_one().unwrap())
                .map(|(slot, ret)| {
                    assert_eq!(ret, 0);
                    slot
                })
                .collect();
            done.sort_unstable();
            assert_eq!(done, (0..32).collect::<Vec<_>>());
            for slot in 0..32 {
                assert_eq!(number(&queue.buffer(slot, 512).unwrap()), u64::from(slot) * 8);
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.join().unwrap();
    }
}

fn a_polling_client_needs_no_calls(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 1, read_only: false });
    let driver = Driver::connect(backend.socket(), &Options::default()).unwrap();
    let mut queue = driver.into_queue().unwrap();
    for round in 0..testkit::rounds(200, 100_000) as u64 {
        queue.read(round * 4096 % IMAGE_BYTES, 0, 4096).unwrap();
        queue.kick().unwrap();
        while queue.completions(|slot, ret| assert_eq!((slot, ret), (0, 0))) == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(queue.calls, 0);
}

fn front_ends_come_and_go(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let backend = start(&Served { image: image.path(), queues: 1, read_only: true });
    for _ in 0..testkit::rounds(5, 200) {
        let driver = Driver::connect(backend.socket(), &Options::default()).unwrap();
        assert!(driver.disk.read_only);
        let mut queue = driver.into_queue().unwrap();
        queue.read(512, 0, 512).unwrap();
        assert_eq!(queue.finish_one().unwrap(), (0, 0));
        // Disconnects with requests in flight.
        queue.read(0, 1, 4096).unwrap();
        queue.kick().unwrap();
    }
    assert!(backend.process.is_running().unwrap(), "a front-end took it along");
}

/// Not for `qemu-storage-daemon`: version 7.2 sometimes hangs on SIGTERM after a client that
/// disconnected with requests in flight.
fn sigterm_ends_it_cleanly_under_a_client(start: Start) {
    let image = numbered_image(IMAGE_BYTES);
    let mut backend = start(&Served { image: image.path(), queues: 1, read_only: false });
    let driver = Driver::connect(backend.socket(), &Options::default()).unwrap();
    let mut queue = driver.into_queue().unwrap();
    queue.read(0, 1, 4096).unwrap();
    queue.kick().unwrap();
    assert!(backend.process.terminate().unwrap().success(), "{}", backend.process.stderr());
}

macro_rules! for_backends {
    ($($backend:ident: $($test:ident),+;)+) => {
        $(mod $backend {
            $(#[test]
            fn $test() {
                super::$test(crate::common::$backend);
            })+
        })+
    };
}

for_backends! {
    storage_daemon: reads_and_writes_reach_the_image, many_requests_on_several_queues,
        a_polling_client_needs_no_calls, front_ends_come_and_go;
    ringway_blk: reads_and_writes_reach_the_image, many_requests_on_several_queues,
        a_polling_client_needs_no_calls, front_ends_come_and_go,
        sigterm_ends_it_cleanly_under_a_client;
}
