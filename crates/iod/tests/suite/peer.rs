//! `ringway-blk` with a third-party front-end, that of the `vhost` crate: one read.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::os::fd::{AsFd, AsRawFd};

use crate::common::{BLK, ready};
use iod::inherited_fds::adopt;
use testkit::process::PROCESS_DEADLINE;
use testkit::raw::guest::wait_readable;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtq::driver::{BUFFERS, Driver};
use vmm_sys_util::eventfd::EventFd;

/// Address of the guest's memory in the front-end's address space.
const USER: u64 = 0x7f00_0000_0000;
const MEMORY: u64 = 16 << 20;
const SIZE: u64 = 1 << 20;
const PROTOCOL: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;

fn connect(socket: &std::path::Path, driver: &Driver) -> Frontend {
    let mut peer = Frontend::connect(socket, 1).unwrap();
    peer.set_owner().unwrap();
    let offered = peer.get_features().unwrap();
    assert_eq!(offered & (PROTOCOL | VERSION_1), PROTOCOL | VERSION_1);
    peer.set_features(PROTOCOL | VERSION_1).unwrap();
    let protocol = peer.get_protocol_features().unwrap();
    assert!(protocol.contains(VhostUserProtocolFeatures::CONFIG));
    peer.set_protocol_features(protocol).unwrap();
    peer.set_mem_table(&[VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: MEMORY,
        userspace_addr: USER,
        mmap_offset: 0,
        mmap_handle: driver.mapping().fd().unwrap().as_raw_fd(),
    }])
    .unwrap();
    peer
}

#[test]
fn the_frontend_of_the_vhost_crate_reads_a_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, image) = (folder.path().join("s"), folder.path().join("disk.raw"));
    let data: Vec<u8> = (0..SIZE).map(|i| (i / 512) as u8).collect();
    std::fs::write(&image, &data).unwrap();
    let options = ["--socket-path", socket.to_str().unwrap(), "--cache", "writeback", "--blk-file"];
    let _process = ready(BLK, &[&options[..], &[image.to_str().unwrap()]].concat());

    let mut driver = Driver::new(128, MEMORY, false);
    let mut peer = connect(&socket, &driver);
    let (_, config) = peer.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]).unwrap();
    assert_eq!(u64::from_le_bytes(config[..8].try_into().unwrap()), SIZE / 512);

    let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    let ring = VringConfigData {
        queue_max_size: 128,
        queue_size: 128,
        flags: 0,
        desc_table_addr: USER + driver.config.desc,
        avail_ring_addr: USER + driver.config.avail,
        used_ring_addr: USER + driver.config.used,
        log_addr: None,
    };
    peer.set_vring_num(0, 128).unwrap();
    peer.set_vring_base(0, 0).unwrap();
    peer.set_vring_addr(0, &ring).unwrap();
    peer.set_vring_call(0, &call).unwrap();
    peer.set_vring_kick(0, &kick).unwrap();
    peer.set_vring_enable(0, true).unwrap();

    let mut header = [0; 16];
    header[8] = 7;
    driver.write(BUFFERS, &header);
    driver
        .put_chain(0, &[(BUFFERS, 16, false), (BUFFERS + 512, 512, true), (BUFFERS + 64, 1, true)]);
    driver.offer(0);
    driver.publish();
    kick.write(1).unwrap();
    // The backend made the descriptor non-blocking, so wait for the call first.
    let watched = adopt(call.as_raw_fd()).unwrap();
    assert_eq!(wait_readable(&[watched.as_fd()], PROCESS_DEADLINE).unwrap(), Some(0));
    call.read().unwrap();
    assert_eq!(driver.used(), Some((0, 513)));
    assert_eq!(driver.read(BUFFERS + 64, 1), [0]);
    assert_eq!(driver.read(BUFFERS + 512, 512), data[7 * 512..8 * 512]);
    assert_eq!(peer.get_vring_base(0).unwrap(), 1);
}
