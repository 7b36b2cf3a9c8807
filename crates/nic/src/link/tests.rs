//! Tests of a link in one thread: the output equals the input for all sizes.

use std::collections::VecDeque;

use super::*;

fn link() -> (Writer, Reader) {
    let shared = Shared::new(Arc::default()).unwrap();
    (Writer::new(shared.clone()), Reader::new(shared))
}

/// Returns a body of `bytes` bytes with the same value.
fn body(bytes: usize, value: u8) -> Buffers {
    let list = Buffers::alloc(bytes).unwrap();
    list.write(&vec![value; bytes]);
    list
}

fn news(vlan: u16, value: u8) -> StationUpdate {
    StationUpdate { port: PortId(3), term: u32::from(vlan) << 11, vlan, mac: Mac([value; 6]) }
}

fn address(queue: u16) -> LinkAddress {
    LinkAddress::new(PortId(queue + 1), queue, u32::from(queue) << 9)
}

#[test]
fn frames_come_out_as_they_went_in_and_the_ring_goes_round() {
    let (mut writer, mut reader) = link();
    let (mut sent, mut out) = (VecDeque::new(), Buffers::with_capacity(1));
    let mut lost = 0;
    for number in 0..4000u32 {
        let bytes = (number.wrapping_mul(2_654_435_761) >> 15) as usize % 70_000;
        let (value, queue) = (number as u8, number as u16);
        let head = [value ^ 0xff; 20];
        let header = [value; HEADER_BYTES];
        let since_ns = u64::from(number) << 20;
        let egress_frame = EgressFrame { header, head: &head, body: &body(bytes, value), since_ns };
        if writer.put(address(queue), &egress_frame) {
            sent.push_back((number, bytes));
        } else {
            lost += 1;
        }
        if number % 5 == 0 {
            let station_update = news(queue, value);
            assert!(
                !writer.put_station(station_update) || writer.show() || writer.shown == writer.at
            );
        }
        if number % 80 < 79 {
            continue;
        }
        writer.show();
        while let Some(record) = reader.next(&mut out) {
            if let LinkRecord::Station(got) = record {
                assert_eq!(got, news(got.vlan, got.vlan as u8));
            } else if let LinkRecord::Frame(to, header, since_ns) = record {
                let (number, bytes) = sent.pop_front().unwrap();
                assert_eq!(since_ns, u64::from(number) << 20);
                assert_eq!((to, header), (address(number as u16), [number as u8; 12]));
                assert_eq!(out.len(), bytes + 20);
                let mut ends = [0; 21];
                out.peek(&mut ends);
                assert_eq!(ends[0], number as u8 ^ 0xff);
                assert!(bytes == 0 || ends[20] == number as u8);
            }
            reader.release();
        }
        assert!(sent.is_empty());
    }
    assert!(lost > 0, "more than fits was sent at once");
}

#[test]
fn nothing_is_seen_before_it_is_shown_and_sleepers_are_told() {
    let (mut writer, mut reader) = link();
    let nothing = Buffers::default();
    let mut out = Buffers::default();
    let (header, head) = ([0; HEADER_BYTES], [1, 2, 3]);
    let egress_frame = EgressFrame { header, head: &head, body: &nothing, since_ns: 0 };
    assert!(writer.put(address(1), &egress_frame) && !reader.has_more());
    assert!(!writer.show() && reader.has_more());
    assert!(matches!(reader.next(&mut out), Some(LinkRecord::Frame(..))));
    assert!(reader.next(&mut out).is_none());
    reader.prepare_sleep();
    assert!(!writer.show(), "nothing new");
    assert!(writer.put(address(1), &egress_frame) && writer.show());
    reader.cancel_sleep();
    assert!(writer.put(address(1), &egress_frame) && !writer.show());
}
