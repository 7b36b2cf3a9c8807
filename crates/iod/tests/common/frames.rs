//! Front-ends of NICs that do exactly what a test says.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::process::PROCESS_DEADLINE;
use testkit::raw::frontend::Frontend;
use testkit::raw::nic::PLAIN;
use testkit::raw::{Guest, Setup};

use super::Io;

/// Long enough for any frame.
pub const SOON: Duration = PROCESS_DEADLINE;
/// Longest that guests may wait for an upgrade on a quiet machine, as is promised.
pub const PAUSE_PROMISED: Duration = Duration::from_millis(200);
/// The same with every CPU taken by other tests.
const PAUSE_BUSY: Duration = Duration::from_millis(4000);

/// Soak has the machine for itself.
pub fn is_soak() -> bool {
    testkit::rounds(0, 1) == 1
}

/// Longest that guests may wait for an upgrade, in milliseconds.
pub fn pause_max_ms() -> f64 {
    let longest = if is_soak() { PAUSE_PROMISED } else { PAUSE_BUSY };
    longest.as_secs_f64() * 1e3
}

/// Parameters of `nic.attach` for a NIC `id` on a socket of the same name.
pub fn spec(io: &Io, id: &str, network: &str, number: u8) -> Value {
    let mac = format!("02:00:00:00:00:{number:02x}");
    json!({"id": id, "socket": io.socket(id), "network": network, "mac": mac})
}

pub fn attach(io: &Io, id: &str, network: &str, number: u8) {
    io.caller().call("nic.attach", spec(io, id, network, number)).unwrap();
}

/// A front-end with so many pairs of queues, and buffers in each.
pub fn guest(socket: &Path, pairs: u16) -> Guest {
    let setup = Setup { queues: 2 * pairs, ..Setup::default() };
    let mut guest = Guest::start(socket, &setup).unwrap();
    for pair in 0..pairs.into() {
        guest.post_buffers(pair, 64, 2048).unwrap();
    }
    guest
}

/// A frame from one station to another, 0xff being everybody.
pub fn frame(dst: u8, src: u8, text: &str) -> Vec<u8> {
    let station = |number: u8| if number == 0xff { [0xff; 6] } else { [2, 0, 0, 0, 0, number] };
    [&station(dst)[..], &station(src), &[0x12, 0x34], text.as_bytes()].concat()
}

/// A frame of UDP from station 1 to everybody, from this port to port 9 of another address.
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

/// Asks who has the host's address.
pub fn question() -> Vec<u8> {
    let arp =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 10, 9, 0, 2, 0, 0, 0, 0, 0, 0, 10, 9, 0, 1];
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 8, 6], &arp].concat()
}

/// The host's answer to [`question`]; whatever else it says is passed over.
pub fn answer(guest: &mut Guest) {
    let is_answer = |frame: &[u8]| frame[12..14] == [8, 6] && frame[21] == 2;
    while !is_answer(&received(guest)) {}
}

/// Connects again with the same memory and rings, as a front-end does whose backend has died.
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

/// Runs a program in the namespace of the test.
pub fn run(words: &str) {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().unwrap());
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}
