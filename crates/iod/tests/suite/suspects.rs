//! A request that ends each process that executes it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use serde_json::json;
use testkit::process::{PROCESS_DEADLINE, eventually};
use testkit::raw::frontend::InflightArea;
use testkit::raw::request::{Request, status};
use testkit::raw::{Frontend, Guest, Setup, WaitEvent};
use testkit::reconnecting::{End, ReconnectingGuest, Shape};

/// Byte at which a read ends the process: 3 MiB.
const DEADLY: u64 = 3 << 20;

/// Program that kills a process at `preadv2(2)` from byte [`DEADLY`], by a seccomp filter that the
/// process and its children inherit. It executes its arguments.
const KILLS: &str = r#"
import ctypes, os, struct, sys
def step(code, jt, jf, k): return struct.pack("HBBI", code, jt, jf, k)
LOAD, EQUAL, RETURN, ALLOW, KILL_PROCESS = 0x20, 0x15, 0x06, 0x7fff0000, 0x80000000
PREADV2, POSITION = 327, 16 + 3 * 8
steps = [step(LOAD, 0, 0, 0), step(EQUAL, 0, 3, PREADV2), step(LOAD, 0, 0, POSITION),
         step(EQUAL, 0, 1, int(sys.argv[1])), step(RETURN, 0, 0, KILL_PROCESS),
         step(RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, program) == 0
os.execv(sys.argv[2], sys.argv[2:])
"#;

/// A guest of one queue that connects again.
struct Suspect<'a> {
    guest: Guest,
    socket: &'a Path,
    area: InflightArea,
}

impl<'a> Suspect<'a> {
    fn connect(socket: &'a Path) -> Self {
        let mut guest = Guest::start(socket, &Setup::default()).unwrap();
        let base = guest.stop_queue(0).unwrap();
        let area = guest.frontend.get_inflight(1, Setup::default().queue_size).unwrap();
        guest.frontend.set_inflight(&area).unwrap();
        guest.start_queue(0, base).unwrap();
        Self { guest, socket, area }
    }

    /// Connects again. Fails if the next process dies meanwhile.
    fn reconnect(&mut self) -> testkit::Result<()> {
        let (setup, guest) = (Setup::default(), &mut self.guest);
        guest.frontend = Frontend::connect(self.socket)?;
        guest.frontend.negotiate(setup.features, setup.protocol)?;
        guest.frontend.set_inflight(&self.area)?;
        guest.frontend.set_mem_table(&guest.memory)?;
        let used = guest.queues[0].ring.used_idx(&guest.memory)?;
        guest.start_queue(0, used)
    }

    /// Runs requests side by side to their ends. Returns the status of each.
    fn run(&mut self, requests: &[Request]) -> Vec<u8> {
        let pending = self.guest.submit_all(0, requests).unwrap();
        self.guest.kick(0).unwrap();
        let mut ended = 0;
        while ended < pending.len() {
            match self.guest.wait(0, PROCESS_DEADLINE).unwrap() {
                WaitEvent::Used(_) => ended += 1,
                WaitEvent::Closed => drop(self.reconnect()),
                other => panic!("{other:?}"),
            }
        }
        pending.iter().map(|one| self.guest.status(one).unwrap()).collect()
    }
}

#[test]
fn a_request_that_ends_its_process_fails_and_every_other_one_succeeds() {
    let deadly = DEADLY.to_string();
    let mut io = Io::through(&["python3", "-c", KILLS, &deadly], &["--restart-pause-max", "0"]);
    let mut caller = io.caller();
    // The neighbour has no byte at which a read is deadly.
    for (id, bytes) in [("suspect", DEADLY + (1 << 20)), ("neighbour", DEADLY)] {
        let mut spec = io.spec(id, json!({"file": image(&io.folder, id, bytes)}));
        spec["cache"] = json!("writeback");
        spec["socket"] = json!(io.socket(&format!("{id}.sock")));
        caller.disk("disk.attach", spec);
    }
    let socket = io.socket("suspect.sock");
    let mut suspect = Suspect::connect(&socket);
    let shape = Shape { depth: 8, ..Shape::default() };
    let mut neighbour = ReconnectingGuest::connect(&io.socket("neighbour.sock"), shape).unwrap();
    let stop = AtomicBool::new(false);
    let mut requests: Vec<_> =
        (0..16).map(|number| Request::write(8 * number, &[7; 512])).collect();
    requests.insert(9, Request::read(DEADLY / 512, 512));
    let statuses = std::thread::scope(|scope| {
        let ended = Ended(&stop);
        let loaded = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if neighbour.run(Instant::now() + Duration::from_millis(20)).unwrap() == End::Closed
                {
                    while neighbour.reconnect().is_err() {}
                }
            }
            neighbour.finish().unwrap();
        });
        let statuses = suspect.run(&requests);
        drop(ended);
        loaded.join().unwrap();
        statuses
    });
    let expected = |at| if at == 9 { status::IOERR } else { status::OK };
    assert_eq!(statuses, (0..17).map(expected).collect::<Vec<_>>());
    let stats = io.caller().stats();
    assert_eq!(stats.keeper.unwrap().restarts, 3);
    assert_eq!((stats.disks[0].failed_suspects, stats.disks[1].failed_suspects), (0, 1));
    assert_eq!(suspect.run(&[Request::read(0, 512)]), [status::OK]);
    let told = format!("so it fails: Read of 512 bytes at {DEADLY}");
    eventually("it is told", || io.process.stderr().contains(&told));
    assert!(io.process.terminate().unwrap().success());
}
