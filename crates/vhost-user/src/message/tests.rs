use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};

use super::*;

fn fds(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect()
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn parse(code: u32, payload: &[u8], count: usize) -> Result<Request, Refusal> {
    Request::parse(code, payload, fds(count))
}

#[test]
fn a_table_with_room_for_more_regions_is_taken_as_user_mode_linux_sends_it() {
    let payload = words(&[1, 0x1000, 0x10_0000, 0x1000, 0x8000, 0, 0, 0, 0]);
    assert_eq!(payload.len(), 72);
    let Request::SetMemTable(parts) = parse(code::SET_MEM_TABLE, &payload, 1).unwrap() else {
        panic!("another request");
    };
    let spec =
        RegionSpec { guest_addr: 0x1000, user_addr: 0x1000, len: 0x10_0000, file_offset: 0x8000 };
    assert_eq!(parts.iter().map(|part| part.0).collect::<Vec<_>>(), [spec]);
}

#[test]
fn sizes_and_counts_are_held_against_the_specification() {
    let size = |result| matches!(result, Err(Refusal::PayloadSize { .. }));
    assert!(size(parse(code::SET_FEATURES, &[0; 7], 0)));
    assert!(size(parse(code::SET_FEATURES, &[0; 9], 0)));
    assert!(size(parse(code::SET_VRING_NUM, &[0; 4], 0)));
    assert!(size(parse(code::SET_VRING_ADDR, &[0; 39], 0)));
    assert!(size(parse(code::ADD_MEM_REG, &[0; 32], 1)));
    assert!(size(parse(code::SET_MEM_TABLE, &words(&[2, 0, 0, 0, 0]), 2)));
    assert!(size(parse(code::SET_CONFIG, &words(&[1 << 32, 0]), 0)));

    let count = |result| matches!(result, Err(Refusal::DescriptorCount { .. }));
    assert!(count(parse(code::SET_MEM_TABLE, &words(&[1, 0, 1, 0, 0]), 0)));
    assert!(count(parse(code::SET_MEM_TABLE, &words(&[1, 0, 1, 0, 0]), 2)));
    assert!(count(parse(code::ADD_MEM_REG, &[0; 40], 2)));
    assert!(count(parse(code::SET_VRING_KICK, &words(&[0]), 0)));
    assert!(count(parse(code::SET_VRING_KICK, &words(&[0]), 2)));
    assert!(count(parse(code::SET_VRING_KICK, &words(&[0x100]), 1)));
    assert!(count(parse(code::SET_BACKEND_REQ_FD, &[], 0)));
}

#[test]
fn fields_out_of_range_are_refused() {
    let field = |result| matches!(result, Err(Refusal::Field { .. }));
    assert!(field(parse(code::SET_MEM_TABLE, &words(&[33]), 0)));
    assert!(field(parse(code::SET_MEM_TABLE, &words(&[u64::MAX]), 0)));
    assert!(field(parse(code::SET_VRING_KICK, &words(&[0x200]), 1)));
    assert!(field(parse(code::SET_VRING_ENABLE, &words(&[2 << 32]), 0)));
    assert!(field(parse(code::SET_VRING_BASE, &words(&[0x1_0000 << 32]), 0)));
    assert!(field(parse(code::SET_VRING_ADDR, &words(&[1 << 32, 0, 0, 0, 0]), 0)));
    let config = [0u32, 4097, 0].map(u32::to_ne_bytes).concat();
    assert!(field(parse(code::GET_CONFIG, &config, 0)));
}

#[test]
fn removing_a_region_closes_the_descriptor_that_some_front_ends_send() {
    let request = parse(code::REM_MEM_REG, &[0; 40], 1);
    assert!(matches!(request, Ok(Request::RemMemReg(_))));
}

#[test]
fn headers_of_requests() {
    let header = |flags| Header { code: 1, flags, size: 0 };
    assert!(header(1).is_request() && !header(1).needs_reply());
    assert!(header(9).is_request() && header(9).needs_reply());
    for flags in [0, 2, 3, 5, 13] {
        assert!(!header(flags).is_request(), "{flags}");
    }
}

proptest! {
    /// Checks that any bytes become a request or a refusal.
    #[test]
    fn parsing_never_panics(
        code in 0u32..48,
        payload in prop::collection::vec(any::<u8>(), 0..200),
        count in 0usize..4,
    ) {
        let _ = parse(code, &payload, count);
    }
}
