//! `ringway-net` by QEMU's conventions for backend programs: one NIC on one socket, or on a socket
//! that is open already.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::frames::*;
use crate::common::nics::{DRIVERS, uml};
use crate::common::*;
use testkit::guest::{Guest as RealGuest, Kind};
use testkit::in_namespace::in_own_network;
use testkit::raw::connection::Connection;
use testkit::raw::frontend::Frontend;
use testkit::raw::wire::Request;
use testkit::raw::{Guest, Setup, SharedMemory};

/// Far more time than any boot and load takes, even when several share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);
/// TAP device of the host.
const TAP: &str = "rwc0";

/// Sets the host's device up, with an address.
fn up() {
    run(&format!("ip addr add 10.9.0.1/24 dev {TAP}"));
    run(&format!("ip link set dev {TAP} up"));
}

/// Starts a front-end with two pairs at the other end of a socket.
fn on(stream: UnixStream) -> Guest {
    let frontend = Frontend { connection: Connection::from_stream(stream).unwrap(), acks: false };
    let memory = SharedMemory::new(8 << 20).unwrap();
    let setup = Setup { queues: 4, ..Setup::default() };
    let mut guest = Guest::start_with(frontend, memory, &setup).unwrap();
    (0..2).for_each(|pair| guest.post_buffers(pair, 64, 2048).unwrap());
    guest
}

/// Checks that the front-end is served, by the host's ARP reply.
fn asks(guest: &mut Guest) {
    assert_eq!(guest.frontend.get_u64(Request::GET_QUEUE_NUM).unwrap(), 5);
    send(guest, &question());
    answer(guest);
}

#[test]
fn the_only_nic_is_served_on_its_socket() {
    in_own_network(concat!(module_path!(), "::the_only_nic_is_served_on_its_socket"), || {
        let folder = folder();
        let socket = folder.path().join("nic");
        let options = ["--socket-path", socket.to_str().unwrap(), "--tap", TAP, "--queues", "2"];
        let mut process = ready(NET, &options);
        up();
        // One front-end after the other. The last one is a real guest.
        for _ in 0..2 {
            asks(&mut on(UnixStream::connect(&socket).unwrap()));
        }
        let script = format!(
            "{DRIVERS}
            ip addr add 10.9.0.2/24 dev eth0
            until busybox ping -c 1 -W 1 10.9.0.1; do :; done
            for n in 1 2 3; do busybox ping -c 1 -W 60 10.9.0.1 || exit 2; done"
        );
        let real = RealGuest::start(Kind::Uml, &uml(&socket), &script).unwrap();
        let real = real.finish(DEADLINE).unwrap();
        assert_eq!(real.code, 0, "{}", real.output);
        assert!(process.terminate().unwrap().success());
        assert_eq!(names(&folder), [""; 0]);
    })
    .unwrap();
}

#[test]
fn an_inherited_socket_is_served_until_its_end() {
    in_own_network(
        concat!(module_path!(), "::an_inherited_socket_is_served_until_its_end"),
        || {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut command = Command::new(NET);
            // Standard input is a descriptor that a child inherits.
            command.args(["--fd", "0", "--tap", TAP, "--queues", "2"]);
            command.stdin(Stdio::from(OwnedFd::from(theirs)));
            // The program ends with this test in any case, because its socket does.
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            drop(command);
            let mut guest = on(ours);
            up();
            asks(&mut guest);
            drop(guest);
            assert!(child.wait().unwrap().success());
        },
    )
    .unwrap();
}

#[test]
fn an_inherited_descriptor_must_be_a_connected_socket() {
    for fd in ["0", "1000"] {
        let (code, stderr) = ends(NET, &["--fd", fd]);
        assert!(code == 1 && stderr.contains("--fd"), "{stderr}");
    }
}

#[test]
fn it_connects_where_the_front_end_listens_and_comes_back() {
    in_own_network(
        concat!(module_path!(), "::it_connects_where_the_front_end_listens_and_comes_back"),
        || {
            let folder = folder();
            let socket = folder.path().join("nic");
            let path = socket.to_str().unwrap();
            let options = ["--socket-path", path, "--connect", "--tap", TAP, "--queues", "2"];
            let mut process = ready(NET, &options);
            up();
            let listener = UnixListener::bind(&socket).unwrap();
            for _ in 0..2 {
                let (stream, _) = listener.accept().unwrap();
                asks(&mut on(stream));
            }
            drop(listener);
            assert!(process.terminate().unwrap().success());
            // The front-end removes the socket.
            assert_eq!(names(&folder), ["nic"]);
        },
    )
    .unwrap();
}
