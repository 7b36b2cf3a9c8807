//! Sessions against an independent front-end: that of the `vhost` crate.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use crate::common::{Event, FEATURES, QUEUES, Recorder, SERVED, Shared, memfd, started};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vhost_user::features::{OFFERED, PROTOCOL_FEATURES};
use vhost_user::{Session, SessionEnd};
use vmm_sys_util::eventfd::EventFd;

fn region(fd: &impl AsRawFd, guest: u64, user: u64) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: guest,
        memory_size: 0x1_0000,
        userspace_addr: user,
        mmap_offset: 0,
        mmap_handle: fd.as_raw_fd(),
    }
}

fn ring() -> VringConfigData {
    VringConfigData {
        queue_max_size: 256,
        queue_size: 256,
        flags: 0,
        desc_table_addr: 0x7000_1000,
        avail_ring_addr: 0x7000_2000,
        used_ring_addr: 0x7000_3000,
        log_addr: None,
    }
}

#[test]
fn the_whole_life_of_a_front_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let shared = Arc::<Mutex<Shared>>::default();
    let mut backend = Recorder(Arc::clone(&shared));
    let session = std::thread::spawn(move || Session::new(theirs).unwrap().run(&mut backend));
    let take = || std::mem::take(&mut shared.lock().unwrap().events);

    let mut peer = Frontend::from_stream(ours, u64::from(QUEUES));
    peer.set_owner().unwrap();
    let offered = peer.get_features().unwrap();
    assert_eq!(offered & PROTOCOL_FEATURES, PROTOCOL_FEATURES);
    peer.set_features(FEATURES | PROTOCOL_FEATURES).unwrap();
    let protocol = peer.get_protocol_features().unwrap();
    assert_eq!(protocol.bits(), OFFERED);
    peer.set_protocol_features(protocol).unwrap();
    peer.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert_eq!(peer.get_queue_num().unwrap(), u64::from(QUEUES));
    assert_eq!(take(), [Event::Features(FEATURES)]);

    let (_, config) = peer.get_config(0, 256, VhostUserConfigFlags::WRITABLE, &[0; 256]).unwrap();
    assert_eq!((config[0], config[59], config[60], config.len()), (1, 60, 0, 256));
    peer.set_config(32, VhostUserConfigFlags::WRITABLE, &[1]).unwrap();
    assert!(peer.set_config(0, VhostUserConfigFlags::WRITABLE, &[1]).is_err());
    assert_eq!(take(), [Event::Config(32, vec![1])]);

    let (memory, more) = (memfd(0x1_0000), memfd(0x1_0000));
    peer.set_mem_table(&[region(&memory, 0x10_0000, 0x7000_0000)]).unwrap();
    let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    peer.set_vring_num(0, 256).unwrap();
    peer.set_vring_base(0, 5).unwrap();
    peer.set_vring_addr(0, &ring()).unwrap();
    peer.set_vring_kick(0, &kick).unwrap();
    peer.set_vring_enable(0, true).unwrap();
    assert_eq!(take(), [started(0, 5)]);
    peer.set_vring_call(0, &call).unwrap();
    assert_eq!(take(), [Event::Call(0, true)]);

    assert_eq!(peer.get_max_mem_slots().unwrap(), 509);
    let second = region(&more, 0x100_0000, 0x8000_0000);
    peer.add_mem_region(&second).unwrap();
    peer.remove_mem_region(&second).unwrap();
    assert_eq!(take(), [Event::Memory(2), Event::Memory(1)]);

    let (_ours, theirs) = UnixStream::pair().unwrap();
    peer.set_backend_request_fd(&theirs).unwrap();
    assert_eq!(peer.get_vring_base(0).unwrap(), u32::from(5 + SERVED));
    assert!(protocol.contains(VhostUserProtocolFeatures::RESET_DEVICE));
    peer.reset_device().unwrap();
    assert_eq!(take(), [Event::Channel, Event::Stop(0), Event::Reset]);

    drop(peer);
    assert!(matches!(session.join().unwrap(), Ok(SessionEnd::HungUp)));
    assert_eq!(take(), [Event::Disconnected]);
}
