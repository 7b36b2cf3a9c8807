use memory::MAX_REGIONS;
use proptest::option;
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

fn event() -> Arc<OwnedFd> {
    Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap())
}

fn memory(len: u64) -> OwnedFd {
    let fd = memfd_create("state", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

fn ring() -> impl Strategy<Value = FrozenRing> {
    let addr = (any::<u64>(), any::<u64>(), any::<u64>());
    let addr = addr.prop_map(|(desc, used, avail)| RingAddr { desc, used, avail });
    let size = option::of((0u32..=10).prop_map(|shift| 1u16 << shift));
    let parts = (size, option::of(addr), option::of(any::<u16>()), 0..3, any::<[bool; 3]>());
    (parts, option::of(any::<bool>())).prop_map(
        |((size, addr, next_avail, kick, flags), enabled)| {
            let kick = match kick {
                0 => Kick::Unset,
                1 => Kick::Polled,
                _ => Kick::Event(event()),
            };
            let [call, err, running] = flags;
            let (call, err) = (call.then(event), err.then(event));
            let ring = Ring { size, addr, next_avail, kick, call, err, enabled, running: None };
            FrozenRing { ring, running }
        },
    )
}

fn state() -> impl Strategy<Value = SessionState> {
    let pages = proptest::collection::vec(1u64..8, 0..5);
    let rings = proptest::collection::vec(ring(), 1..9);
    let record = (0..3, 1u16..=1024);
    let words = (option::of(any::<u64>()), any::<u64>(), any::<bool>());
    (pages, rings, record, words).prop_map(|(pages, rings, (record, size), words)| {
        let (acked, protocol, channel) = words;
        let part = |(at, pages): (u64, u64)| {
            let start = at << 20;
            let (user_addr, len, file_offset) = (start + (1 << 40), pages << 12, at * 512);
            let spec = RegionSpec { guest_addr: start, user_addr, len, file_offset };
            (spec, memory(len + file_offset))
        };
        let parts: Vec<_> = (0..).zip(pages).map(part).collect();
        let record = match record {
            0 => InflightState::Absent,
            1 => InflightState::Lost,
            _ => {
                let made = virtq::InflightRegion::create(rings.len() as u16, size);
                InflightState::Kept(made.unwrap())
            }
        };
        let (socket, way) = UnixStream::pair().unwrap();
        let channel = channel.then(|| BackendChannel::new(way.into()).unwrap());
        let table = Arc::new(memory_table::replaced(&parts, None).unwrap());
        let socket = Arc::new(socket);
        SessionState { socket, acked, protocol, table, record, rings, channel }
    })
}

/// Returns the inode of each descriptor, which identifies its file.
fn files(fds: &[BorrowedFd<'_>]) -> Vec<u64> {
    fds.iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_ino).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_state_comes_back(state in state()) {
        let (data, fds) = state.encode(NEWEST_FORMAT).unwrap();
        let owned = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let text = data.to_string();
        let read = SessionState::decode(serde_json::from_str(&text).unwrap(), owned).unwrap();
        let (again, twins) = read.encode(NEWEST_FORMAT).unwrap();
        prop_assert_eq!(&again, &data);
        prop_assert_eq!(files(&twins), files(&fds));
    }

    #[test]
    fn no_data_makes_it_panic(at in 0..2000usize, byte in any::<u8>(), count in 0..9usize) {
        let mut text = include_bytes!("../../tests/fixtures/session-1.json").to_vec();
        let place = at % text.len();
        text[place] = byte;
        if let Ok(data) = serde_json::from_slice(&text) {
            let fds = (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
            let _ = SessionState::decode(data, fds);
        }
    }
}

#[test]
fn as_many_regions_as_a_session_may_have_come_back() {
    let parts = (0..MAX_REGIONS as u64).map(|at| {
        let start = at << 20;
        (
            RegionSpec { guest_addr: start, user_addr: start, len: 4096, file_offset: 0 },
            memory(4096),
        )
    });
    let parts: Vec<_> = parts.collect();
    let table = Arc::new(memory_table::replaced(&parts, None).unwrap());
    let socket = Arc::new(UnixStream::pair().unwrap().0);
    let (acked, protocol, record, channel) = (None, 0, InflightState::Absent, None);
    let rings = Vec::new();
    let state = SessionState { socket, acked, protocol, table, record, rings, channel };
    let (data, fds) = state.encode(1).unwrap();
    let owned = fds.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    assert_eq!(SessionState::decode(data, owned).unwrap().table.regions().len(), MAX_REGIONS);
}
