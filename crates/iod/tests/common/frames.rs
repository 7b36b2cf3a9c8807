//! NIC front-ends that do exactly what a test says.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::process::PROCESS_DEADLINE;
use testkit::raw::frontend::Frontend;
use testkit::raw::nic::PLAIN;
use testkit::raw::{Guest, Setup};

use super::Io;

/// Deadline for any frame.
pub const SOON: Duration = PROCESS_DEADLINE;

/// Returns the parameters of `nic.attach` for a NIC `id` on a socket of the same name.
pub fn spec(io: &Io, id: &str, network: &str, number: u8) -> Value {
    let mac = format!("02:00:00:00:00:{number:02x}");
    json!({"id": id, "socket": io.socket(id), "network": network, "mac": mac})
}

pub fn attach(io: &Io, id: &str, network: &str, number: u8) {
    io.caller().call("nic.attach", spec(io, id, network, number)).unwrap();
}

/// Starts a front-end with this many queue pairs, and buffers in each.
pub fn guest(socket: &Path, pairs: u16) -> Guest {
    let setup = Setup { queues: 2 * pairs, ..Setup::default() };
    let mut guest = Guest::start(socket, &setup).unwrap();
    for pair in 0..pairs.into() {
        guest.post_buffers(pair, 64, 2048).unwrap();
    }
    guest
}

/// Builds a frame from one station to another. 0xff is the broadcast address.
pub fn frame(dst: u8, src: u8, text: &str) -> Vec<u8> {
    let station = |number: u8| if number == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, number] };
    [&station(dst)[..], &station(src), &[0x12, 0x34], text.as_bytes()].concat()
}

/// Builds a UDP broadcast frame from station 1, from this port to port 9 of another IP address.
pub fn datagram(port: u16) -> Vec<u8> {
    let ip = [0x45, 0, 0, 28, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let udp = [port.to_be_bytes(), [0, 9], [0, 8], [0, 0]].concat();
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[8, 0], &ip, &udp].concat()
}

pub fn received(guest: &mut Guest) -> Vec<u8> {
    guest.receive_frame(0, SOON).unwrap().expect("no frame came").bytes
}

pub fn send(guest: &mut Guest, frame: &[u8]) {
    guest.send_frame(0, &PLAIN, frame).unwrap();
}

/// Lets station 1 ask all and station 2 answer, twenty times. Runs `after` after each time.
pub fn talk(one: &mut Guest, two: &mut Guest, mut after: impl FnMut(&Guest)) {
    for round in 0..20 {
        let (ask, answer) = (frame(0xff, 1, &format!("{round}")), frame(1, 2, "here"));
        send(one, &ask);
        assert_eq!(received(two), ask);
        send(two, &answer);
        assert_eq!(received(one), answer);
        after(one);
    }
}

/// Builds an ARP request for the host's address.
pub fn question() -> Vec<u8> {
    let arp =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1];
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 6], &arp].concat()
}

/// Waits for the host's reply to [`question`], and ignores other frames.
pub fn answer(guest: &mut Guest) {
    let is_answer = |frame: &[u8]| frame[12..14] == [8, 6] && frame[21] == 2;
    while !is_answer(&received(guest)) {}
}

/// Reconnects with the same memory and rings, as a front-end does after its backend has died.
pub fn reconnect(guest: &mut Guest, socket: &Path) {
    let setup = Setup::default();
    let mut frontend = Frontend::connect(socket).unwrap();
    guest.negotiated = frontend.negotiate(setup.features, setup.protocol).unwrap();
    frontend.set_mem_table(&guest.memory).unwrap();
    guest.frontend = frontend;
    for queue in 0..guest.queues.len() {
        let used = guest.queues[queue].ring.used;
        let index = u16::from_le_bytes(guest.memory.read_array(used + 2).unwrap());
        guest.start_queue(queue, index).unwrap();
    }
}

/// Runs a program in the network namespace of the test.
pub fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}
