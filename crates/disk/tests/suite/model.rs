//! Tests of files on a modelled device.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::conformance::{self, Client};
use disk::{Disk, FileDisk, FileOptions, ModelDevice, OnFull, RequestKind, Storage};
use share::DiskConfig;
use share::device::{Connections, DeviceConfig, Flash, Model, Pipe, Spindle, calibrate};

const SIZE: u64 = 8 << 20;

/// Fast devices, so that tests do not wait.
const MODELS: [Model; 3] = [
    Model::Pipe(Pipe { latency_ns: 50_000, queue: 4, ..Pipe::ARRAY }),
    Model::Flash(Flash { latency_ns: 20_000, ..Flash::STRIPED }),
    Model::Spindle(Spindle {
        bytes_per_second: 2_000_000_000,
        size: 1 << 30,
        seek_ns: (10_000, 200_000),
        rotation_ns: 10_000,
    }),
];

fn disk(device: &Arc<ModelDevice>, storage: Option<&Arc<Storage>>) -> Arc<dyn Disk> {
    let memory = memory::Mapping::memfd("ringway-model", SIZE).unwrap();
    let file = memory.fd().unwrap().as_fd().try_clone_to_owned().unwrap();
    let (path, on_full) = ("model".into(), OnFull::Wait);
    let options = FileOptions { path, read_only: false, direct: false, block_size: None, on_full };
    let disk = FileDisk::adopt(options, file, SIZE, false).unwrap();
    disk.delay(device);
    if let Some(storage) = storage {
        disk.share_storage(storage.add_disk("d", DiskConfig::default()).unwrap());
    }
    Arc::new(disk)
}

#[test]
fn disks_on_a_model_conform() {
    for model in MODELS {
        let device = ModelDevice::new(model.into());
        let storage = Storage::new(&calibrate(model).unwrap()).unwrap();
        std::thread::scope(|scope| {
            for storage in [None, Some(&storage), Some(&storage)] {
                let disk = disk(&device, storage);
                scope.spawn(move || conformance::run(disk));
            }
        });
    }
}

#[test]
fn a_request_takes_as_long_as_on_the_device() {
    const LATENCY: Duration = Duration::from_millis(20);
    let connections = Connections { count: 1, bytes_per_second: 1_000_000_000 };
    let latency_ns = LATENCY.as_nanos() as u64;
    let pipe = Pipe { queue: 1, latency_ns, connections, ..Pipe::ARRAY };
    // Twice as slow.
    let config = DeviceConfig { model: Model::Pipe(pipe), speeds: vec![(0, 50)] };
    let device = ModelDevice::new(config);
    let disks = [disk(&device, None), disk(&device, None)];
    let clients = disks.each_ref().map(|disk| {
        disk.activate().unwrap();
        Client::new(disk)
    });
    let begin = Instant::now();
    let write =
        clients[0].send(RequestKind::Write { durable: false }, 4096, 4096, vec![7; 4096], 0);
    assert_eq!(write.wait().0, Ok(()));
    assert!(begin.elapsed() >= LATENCY);
    // The queue has room for one, whoever sent it.
    let begin = Instant::now();
    let read = |at: usize| clients[at].send(RequestKind::Read, 4096, 4096, vec![0; 4096], 0);
    let sent = [read(0), read(1), read(0)];
    let answers = sent.map(|one| one.wait());
    assert!(begin.elapsed() >= LATENCY * 3);
    assert_eq!(answers[0], (Ok(()), vec![7; 4096]));
    assert_eq!(answers[1], (Ok(()), vec![0; 4096]));
}

#[test]
fn requests_of_an_abandoned_channel_end_without_the_device() {
    let pipe = Pipe { latency_ns: 3_600_000_000_000, ..Pipe::ARRAY };
    let device = ModelDevice::new(Model::Pipe(pipe).into());
    let disk = disk(&device, None);
    disk.activate().unwrap();
    let client = Client::new(&disk);
    let write = RequestKind::Write { durable: false };
    let first = client.send(write, 8192, 4096, vec![7; 4096], 0);
    // The kernel has mostly ended it by now.
    std::iter::repeat_n((), 8).for_each(|()| client.barrier());
    let second = client.send_abandoned(write, 0, &[7; 4096], 0);
    assert!(first.wait().0.is_err() && second.wait().0.is_err());
}
