//! Tests of a reactor with pollers that record their calls.

use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use memory::Buffers;
use rustix::event::{EventfdFlags, eventfd};

use crate::{
    CompletionPort, Context, File, IoOp, OpCompletion, PollOutcome, Poller, Reactor, Stopped,
};

fn pair() -> (Arc<OwnedFd>, Arc<OwnedFd>) {
    let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
    (fd.clone(), fd)
}

fn kick(fd: &OwnedFd) {
    rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
}

/// Reports every kick and every completed operation.
struct Recorder {
    port: CompletionPort,
    kick: Option<Arc<OwnedFd>>,
    events: SyncSender<String>,
    op_completion: Vec<OpCompletion>,
    kicked: bool,
}

impl Recorder {
    fn take_kick(&mut self) -> bool {
        let mut count = [0; 8];
        let kick = self.kick.as_ref();
        self.kicked |= kick.is_some_and(|fd| rustix::io::read(fd, &mut count).is_ok());
        self.kicked
    }
}

impl Poller for Recorder {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        context.reap(&self.port, &mut self.op_completion);
        for op_completion in self.op_completion.drain(..) {
            self.events.send(format!("{}: {}", op_completion.tag, op_completion.result)).unwrap();
        }
        if !self.take_kick() {
            return PollOutcome::Idle;
        }
        self.kicked = false;
        self.events.send("kicked".into()).unwrap();
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        self.take_kick()
    }
}

fn recorder(reactor: &Reactor, kick: Option<Arc<OwnedFd>>) -> (crate::PollerId, Receiver<String>) {
    let (events, wait) = sync_channel(1000);
    let twin = kick.clone();
    let make = |context: &mut Context<'_>| {
        let port = context.open_port();
        Ok::<_, Stopped>(Recorder {
            port,
            kick: twin,
            events,
            op_completion: Vec::new(),
            kicked: false,
        })
    };
    let id = reactor.handle().call(move |context| context.add_poller(kick, make));
    (id.unwrap().unwrap(), wait)
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_kick_wakes_a_cold_poller_each_time() {
    let reactor = Reactor::spawn("test").unwrap();
    let (ours, theirs) = pair();
    let (_, events) = recorder(&reactor, Some(theirs));
    for _ in 0..100 {
        kick(&ours);
        assert_eq!(events.recv_timeout(SOON).unwrap(), "kicked");
    }
}

#[test]
fn an_idle_reactor_sleeps() {
    let reactor = Reactor::spawn("test").unwrap();
    let mut held = Vec::new();
    for _ in 0..50 {
        let (ours, theirs) = pair();
        held.push((ours, recorder(&reactor, Some(theirs))));
    }
    // Two calls, one after the other: between them the loop slept exactly once.
    reactor.handle().call(|_| ()).unwrap();
    let before = reactor.handle().counters().sleeps();
    std::thread::sleep(Duration::from_millis(50));
    let after = reactor.handle().counters().sleeps();
    assert!(after - before <= 1, "{before} {after}");
    assert_eq!(reactor.handle().counters().pollers(), 50);
}

#[test]
fn operations_come_back_to_their_port() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, [5u8; 8192]).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let fd = Arc::new(OwnedFd::from(file));
    let reactor = Reactor::spawn("test").unwrap();
    let (id, events) = recorder(&reactor, None);
    reactor
        .handle()
        .call(move |context| {
            context.with_poller(id, |recorder: &mut Recorder, context| {
                let file = File::new(fd);
                let ops = [
                    IoOp::Read {
                        file: file.clone(),
                        offset: 4096,
                        buffers: Buffers::alloc(4096).unwrap(),
                    },
                    IoOp::Read {
                        file: file.clone(),
                        offset: 8000,
                        buffers: Buffers::alloc(4096).unwrap(),
                    },
                    IoOp::Sync { file: file.clone() },
                    IoOp::Timer { after: Duration::from_millis(1) },
                    IoOp::Write {
                        file,
                        offset: 0,
                        buffers: Buffers::alloc(10).unwrap(),
                        durable: true,
                        worker: true,
                    },
                ];
                for (tag, op) in ops.into_iter().enumerate() {
                    context.submit(&recorder.port, op, tag as u64);
                }
            })
        })
        .unwrap()
        .unwrap();
    let mut seen: Vec<_> = (0..5).map(|_| events.recv_timeout(SOON).unwrap()).collect();
    seen.sort();
    assert_eq!(seen, ["0: 4096", "1: 192", "2: 0", "3: 0", "4: 10"]);
    assert_eq!(std::fs::read(&path).unwrap()[..11], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
}

#[test]
fn a_removed_poller_is_dropped_and_its_descriptor_closed() {
    let reactor = Reactor::spawn("test").unwrap();
    let (ours, theirs) = pair();
    let (id, events) = recorder(&reactor, Some(theirs));
    reactor.handle().call(move |context| context.remove_poller(id)).unwrap();
    assert!(events.recv_timeout(SOON).is_err(), "the recorder and its sender are gone");
    kick(&ours);
    let gone = reactor
        .handle()
        .call(move |context| context.with_poller(id, |_: &mut Recorder, _| ()).is_none());
    assert_eq!(gone, Ok(true));
    assert_eq!(reactor.handle().counters().pollers(), 0);
}

#[test]
fn a_stopped_reactor_says_so() {
    let reactor = Reactor::spawn("test").unwrap();
    let handle = reactor.handle().clone();
    drop(reactor);
    assert_eq!(handle.call(|_| 1), Err(Stopped));
}

#[test]
fn a_panic_on_the_reactor_ends_the_process_before_anybody_is_answered() {
    const CHILD: &str = "RINGWAY_TEST_PANIC";
    if std::env::var_os(CHILD).is_some() {
        let reactor = Reactor::spawn("test").unwrap();
        let answer = reactor.handle().call(|_| -> u32 { panic!("on purpose") });
        println!("answered {answer:?}");
        return;
    }
    let name = "tests::a_panic_on_the_reactor_ends_the_process_before_anybody_is_answered";
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{err}");
    assert!(err.contains("on purpose") && err.contains("the process ends"), "{err}");
    assert!(!out.contains("answered"), "{out}");
}

#[test]
fn timers_do_not_hold_up_the_end() {
    let reactor = Reactor::spawn("test").unwrap();
    let (id, _events) = recorder(&reactor, None);
    reactor
        .handle()
        .call(move |context| {
            context.with_poller(id, |recorder: &mut Recorder, context| {
                let after = Duration::from_secs(3600);
                context.submit(&recorder.port, IoOp::Timer { after }, 0);
            })
        })
        .unwrap()
        .unwrap();
    drop(reactor);
}

#[test]
fn the_kernel_here_can_do_what_we_need() {
    let probe = crate::probe();
    assert!(probe.usable && probe.complete, "{probe:?}");
}

/// Signals once, and reports whether the signal arrived before its turn ended.
struct Ringer {
    peer_notifier: crate::PeerNotifier,
    peer: Arc<OwnedFd>,
    arrived_tx: Option<SyncSender<bool>>,
}

impl Poller for Ringer {
    fn poll(&mut self, context: &mut Context<'_>) -> PollOutcome {
        if let Some(arrived_tx) = self.arrived_tx.take() {
            context.notify(&self.peer_notifier);
            context.flush_if_alone();
            let _ = arrived_tx.send(rustix::io::read(&*self.peer, &mut [0; 8]).is_ok());
        }
        PollOutcome::Idle
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }
}

#[test]
fn a_signal_leaves_at_once_unless_others_have_a_turn_too() {
    for others in [false, true] {
        let reactor = Reactor::spawn("test").unwrap();
        let (arrived_tx, arrived_rx) = sync_channel(1);
        let add = move |context: &mut Context<'_>| {
            let (fd, peer) = pair();
            let make = |context: &mut Context<'_>| {
                Ok::<_, Stopped>(Ringer {
                    peer_notifier: context.open_notifier(fd),
                    peer,
                    arrived_tx: Some(arrived_tx),
                })
            };
            context.add_poller(None, make).unwrap();
            if others {
                let (fd, peer) = pair();
                let idle = |context: &mut Context<'_>| {
                    Ok::<_, Stopped>(Ringer {
                        peer_notifier: context.open_notifier(fd),
                        peer,
                        arrived_tx: None,
                    })
                };
                context.add_poller(None, idle).unwrap();
            }
        };
        reactor.handle().call(add).unwrap();
        assert_eq!(arrived_rx.recv_timeout(SOON).unwrap(), !others);
    }
}

/// Creates the two ends of a stream socket.
fn sockets() -> (Shared, std::os::unix::net::UnixStream) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    (Shared(Arc::new(OwnedFd::from(ours))), theirs)
}

/// Shared descriptor from which a reactor makes a [`File`].
struct Shared(Arc<OwnedFd>);

#[test]
fn sockets_send_and_receive_whole_lists() {
    use std::io::{Read, Write};
    let (ours, mut theirs) = sockets();
    let reactor = Reactor::spawn("test").unwrap();
    let (id, events) = recorder(&reactor, None);
    let fd = ours.0.clone();
    // More than the socket buffer holds, in pieces: the kernel continues when there is room.
    let piece = 300 << 10;
    reactor
        .handle()
        .call(move |context| {
            context.with_poller(id, |recorder: &mut Recorder, context| {
                let thread_mapping = memory::ThreadMapping::private(4 * piece).unwrap();
                let mut list = Buffers::with_capacity(2);
                assert!(
                    thread_mapping.write(0, &vec![3; piece])
                        && thread_mapping.write(2 * piece, &vec![4; piece])
                );
                assert!(list.append_mapping(&thread_mapping, 0, piece));
                assert!(list.append_mapping(&thread_mapping, 2 * piece, piece));
                let socket = File::new(fd);
                let send = IoOp::Send { socket: socket.clone(), buffers: list };
                context.submit(&recorder.port, send, 1);
                let buffers = Buffers::alloc(4096).unwrap();
                context.submit(&recorder.port, IoOp::Recv { socket, buffers }, 2);
            })
        })
        .unwrap();
    let mut got = vec![0; 2 * piece];
    theirs.read_exact(&mut got).unwrap();
    assert!(got[..piece].iter().all(|b| *b == 3) && got[piece..].iter().all(|b| *b == 4));
    assert_eq!(events.recv_timeout(SOON).unwrap(), format!("1: {}", 2 * piece));
    theirs.write_all(b"hello").unwrap();
    assert_eq!(events.recv_timeout(SOON).unwrap(), "2: 5");
}

#[test]
fn a_socket_that_is_shut_down_ends_what_waits_on_it() {
    let (ours, theirs) = sockets();
    let reactor = Reactor::spawn("test").unwrap();
    let (id, events) = recorder(&reactor, None);
    let fd = ours.0.clone();
    reactor
        .handle()
        .call(move |context| {
            context.with_poller(id, |recorder: &mut Recorder, context| {
                let socket = File::new(fd);
                let buffers = Buffers::alloc(4096).unwrap();
                let receive = IoOp::Recv { socket: socket.clone(), buffers };
                context.submit(&recorder.port, receive, 1);
                // No thread reads this.
                let buffers = Buffers::alloc(8 << 20).unwrap();
                context.submit(&recorder.port, IoOp::Send { socket, buffers }, 2);
            })
        })
        .unwrap();
    rustix::net::shutdown(&*ours.0, rustix::net::Shutdown::Both).unwrap();
    let mut ended: Vec<_> = (0..2).map(|_| events.recv_timeout(SOON).unwrap()).collect();
    ended.sort();
    assert_eq!(ended[0], "1: 0");
    // Either the bytes sent so far, or an error.
    assert!(ended[1].starts_with("2: ") && ended[1] != "2: 8388608", "{}", ended[1]);
    drop(theirs);
}

#[test]
fn another_reactor_wakes_a_poller() {
    let (reactor, other) = (Reactor::spawn("test").unwrap(), Reactor::spawn("other").unwrap());
    let (ours, theirs) = pair();
    let (id, events) = recorder(&reactor, None);
    let make = move |context: &mut Context<'_>| {
        // The reactor does not watch the descriptor: only a wake-up makes the poller read it.
        context.with_poller(id, |recorder: &mut Recorder, _| recorder.kick = Some(theirs)).unwrap();
        context.handle()
    };
    let handle = reactor.handle().call(make).unwrap();
    kick(&ours);
    other.handle().call(move |_| handle.send(move |context| context.wake(id))).unwrap().unwrap();
    assert_eq!(events.recv_timeout(SOON).unwrap(), "kicked");
}

#[test]
fn what_is_kept_for_the_end_outlives_the_last_operation() {
    let reactor = Reactor::spawn("test").unwrap();
    let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let (id, _events) = recorder(&reactor, None);
    let guard = Arc::new(());
    let (kept, source) = (Arc::clone(&guard), fd.clone());
    let start = move |context: &mut Context<'_>| {
        context.end_guards().keep(kept);
        context.with_poller(id, |recorder: &mut Recorder, context| {
            let (file, buffers) = (File::new(source), Buffers::alloc(8).unwrap());
            context.submit(&recorder.port, IoOp::Read { file, offset: 0, buffers }, 0);
        })
    };
    reactor.handle().call(start).unwrap().unwrap();
    let ending = std::thread::spawn(move || drop(reactor));
    // The read ends only after this point, and the reactor after the read.
    assert_eq!(Arc::strong_count(&guard), 2);
    kick(&fd);
    ending.join().unwrap();
    assert_eq!(Arc::strong_count(&guard), 1);
}
