//! The kernel's TCP and UDP through devices, and devices that change meanwhile.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Sender, channel};

use net::header::{Checksum, GsoKind};
use nix::sched::{CloneFlags, unshare};
use reactor::Reactor;
use tap::{QueueError, SendError, Tap, TapOrigin};
use testkit::in_namespace::in_own_network;

use crate::ends::{LONG, Seen, Watched, at_rest};
use crate::{address, ip};

type Work = Box<dyn FnOnce() + Send>;

/// Another network namespace than the test's, with a thread in it.
struct Far(Sender<Work>);

impl Far {
    fn new() -> Self {
        let (sender, work) = channel::<Work>();
        std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            while let Ok(work) = work.recv() {
                work();
            }
        });
        Self(sender)
    }

    /// Runs `work` in that namespace.
    fn call<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, result) = channel();
        self.0.send(Box::new(move || drop(sender.send(work())))).unwrap();
        result.recv_timeout(LONG).unwrap()
    }
}

/// Two devices, one in the test's namespace and one far, whose queues are joined one by one.
struct Cable {
    _reactor: Reactor,
    far: Far,
    near: Tap,
    near_ends: Vec<Watched>,
    far_ends: Vec<Watched>,
    _far: Tap,
}

impl Cable {
    fn new(queues: usize) -> Self {
        let (reactor, far) = (Reactor::spawn("cable").unwrap(), Far::new());
        let near = Tap::open("rwa", queues, TapOrigin::New).unwrap();
        let other = far.call(move || Tap::open("rwb", queues, TapOrigin::New).unwrap());
        let ends = |tap: &Tap| {
            let numbers = 0..tap.queues();
            numbers.map(|number| Watched::new(&reactor, tap, number)).collect::<Vec<_>>()
        };
        let (near_ends, far_ends) = (ends(&near), ends(&other));
        for (near, far) in near_ends.iter().zip(&far_ends) {
            near.join(&reactor, far);
        }
        address("rwa", 1);
        far.call(|| address("rwb", 2));
        Self { _reactor: reactor, far, near, near_ends, far_ends, _far: other }
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

const STREAM_BYTES: usize = 4 << 20;

/// Sends a stream to a listener, which sends it back. Returns the bytes that arrived.
fn there_and_back(cable: &Cable, far: IpAddr) -> Vec<u8> {
    let listener = cable.far.call(move || TcpListener::bind((far, 0)).unwrap());
    let to = listener.local_addr().unwrap();
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = vec![0; STREAM_BYTES];
        stream.read_exact(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(&pattern(STREAM_BYTES)).unwrap();
    let mut all = vec![0; STREAM_BYTES];
    stream.read_exact(&mut all).unwrap();
    echo.join().unwrap();
    all
}

/// Returns the bytes of the largest frame for which the kernel left segmentation to this process.
fn largest(ends: &[Watched], kind: GsoKind) -> u32 {
    let of = |seen: &mut Seen| {
        let all = seen.parsed().into_iter();
        let cut = all.filter(|(_, header)| header.gso().is_some_and(|gso| gso.kind == kind));
        Some(cut.map(|(frame, _)| frame.len).max().unwrap_or(0))
    };
    ends.iter().map(|end| end.until(of)).max().unwrap()
}

#[test]
fn streams_go_both_ways_in_large_pieces() {
    in_own_network(concat!(module_path!(), "::streams_go_both_ways_in_large_pieces"), || {
        let cable = Cable::new(2);
        let both: [(&str, GsoKind); 2] = [("10.7.0.2", GsoKind::Tcp4), ("fd07::2", GsoKind::Tcp6)];
        for (far, kind) in both {
            let received = there_and_back(&cable, far.parse().unwrap());
            assert!(received == pattern(STREAM_BYTES), "{far}: other bytes than were sent");
            for ends in [&cable.near_ends, &cable.far_ends] {
                let bytes = largest(ends, kind);
                assert!(bytes > 16_000, "{far}: the largest piece had {bytes} bytes");
            }
        }
    })
    .unwrap();
}

/// Sends a datagram from a port that only this flow uses.
fn datagram(flow: u16) -> UdpSocket {
    let socket = UdpSocket::bind(("10.7.0.1", 20_000 + flow)).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

/// Returns the number of UDP frames that a queue has received.
fn datagrams(end: &Watched) -> usize {
    end.until(|seen| Some(seen.parsed().iter().filter(|(frame, _)| is_udp(frame)).count()))
}

fn is_udp(frame: &net::frame::Frame) -> bool {
    use net::frame::{NetworkLayer, TransportLayer};
    matches!(frame.net(), NetworkLayer::V4(ip) if matches!(ip.transport_layer, TransportLayer::Udp(_)))
}

#[test]
fn checksums_are_left_to_the_other_side_and_flows_are_spread() {
    in_own_network(
        concat!(module_path!(), "::checksums_are_left_to_the_other_side_and_flows_are_spread"),
        || {
            let cable = Cable::new(2);
            let far = cable.far.call(|| UdpSocket::bind("10.7.0.2:7").unwrap());
            far.set_read_timeout(Some(LONG)).unwrap();
            let echo = |flows: std::ops::Range<u16>| {
                for flow in flows {
                    let near = datagram(flow);
                    near.send_to(b"question", "10.7.0.2:7").unwrap();
                    let mut bytes = [0; 20];
                    let (len, from) = far.recv_from(&mut bytes).unwrap();
                    assert_eq!(
                        (&bytes[..len], from),
                        (&b"question"[..], near.local_addr().unwrap())
                    );
                    far.send_to(b"answer", from).unwrap();
                    let received: (usize, SocketAddr) = near.recv_from(&mut bytes).unwrap();
                    assert_eq!(&bytes[..received.0], b"answer");
                }
            };
            echo(0..32);
            let counts: Vec<_> = cable.near_ends.iter().map(datagrams).collect();
            assert!(counts.iter().sum::<usize>() == 32 && !counts.contains(&0), "{counts:?}");
            for end in cable.near_ends.iter().chain(&cable.far_ends) {
                end.until(|seen| {
                    for (frame, header) in
                        seen.parsed().into_iter().filter(|(frame, _)| is_udp(frame))
                    {
                        let partial = matches!(header.checksum(), Checksum::Partial { .. });
                        assert!(partial, "{frame:?} {header:?}");
                    }
                    Some(())
                });
            }
            // A detached queue receives nothing. Attached again, it receives everything.
            cable.near.set_attached(1, false).unwrap();
            cable.near.set_attached(1, false).unwrap_err();
            echo(32..48);
            let detached: Vec<_> = cable.near_ends.iter().map(datagrams).collect();
            assert_eq!(detached, [counts[0] + 16, counts[1]]);
            cable.near.set_attached(1, true).unwrap();
            echo(48..80);
            let again: Vec<_> = cable.near_ends.iter().map(datagrams).collect();
            assert!(again[1] > counts[1] && again.iter().sum::<usize>() == 80, "{again:?}");
        },
    )
    .unwrap();
}

#[test]
fn a_device_that_is_deleted_is_told_once() {
    in_own_network(concat!(module_path!(), "::a_device_that_is_deleted_is_told_once"), || {
        let reactor = Reactor::spawn("test").unwrap();
        let tap = Tap::open("rwa", 2, TapOrigin::New).unwrap();
        let ends = [0, 1].map(|number| Watched::new(&reactor, &tap, number));
        ip("link set dev rwa up");
        ip("link del dev rwa");
        for end in &ends {
            end.until(|seen| (!seen.errors.is_empty()).then_some(()));
            end.send(&reactor, &[0; 60], 5);
            end.until(|seen| (!seen.sent.is_empty()).then_some(()));
        }
        // The reactor is idle afterwards.
        at_rest(&reactor);
        for end in &ends {
            end.until(|seen| {
                assert_eq!(seen.errors, [QueueError::Gone]);
                assert_eq!(seen.sent, [(5, Err(SendError::Gone))]);
                Some(())
            });
        }
        // Another device may take its name.
        drop(tap);
        Tap::open("rwa", 1, TapOrigin::New).unwrap();
    })
    .unwrap();
}

#[test]
fn frames_that_cannot_go_are_lost_and_the_queue_goes_on() {
    in_own_network(
        concat!(module_path!(), "::frames_that_cannot_go_are_lost_and_the_queue_goes_on"),
        || {
            let reactor = Reactor::spawn("test").unwrap();
            let tap = Tap::open("rwa", 1, TapOrigin::New).unwrap();
            let end = Watched::new(&reactor, &tap, 0);
            let mut frame = [0; 72];
            frame[12..24].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9]);
            let outcome = |tag: u64, bytes: &[u8]| {
                end.send(&reactor, bytes, tag);
                end.until(|seen| seen.sent.iter().find(|sent| sent.0 == tag).map(|sent| sent.1))
            };
            assert_eq!(outcome(1, &frame), Err(SendError::Down));
            ip("link set dev rwa up");
            assert_eq!(outcome(2, &frame), Ok(()));
            assert!(matches!(outcome(3, &frame[..5]), Err(SendError::Refused(_))));
            // The header requests segmentation without a checksum to complete, which is invalid.
            let mut bad = frame;
            bad[1] = 1;
            assert!(matches!(outcome(4, &bad), Err(SendError::Refused(_))));
            assert_eq!(outcome(5, &frame), Ok(()));
            assert_eq!(end.until(|seen| Some(seen.errors.len())), 0);
        },
    )
    .unwrap();
}
