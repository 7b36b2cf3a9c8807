//! Storage that hangs for ever. Calls that do not use it are not affected.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use testkit::ringwayd::Ringwayd;
use testkit::ringwayd::fleet::{self, Sr};
use testkit::rounds;
use xenapi::Value;
use xenapi::client::{Client, ClientError};

/// Number of VMs on hung storage.
const HUNG: usize = 40;
/// Disks of each VM: as many as the third SR has step slots while the other two have just hung.
const DISKS: u8 = 4;
/// Deadline of an attach.
const DEADLINE: Duration = Duration::from_secs(6);
/// Age at which a step counts as stuck.
const STUCK: Duration = Duration::from_secs(2);
/// Longer than any operation that does not hang.
const LONG: Duration = Duration::from_secs(60);
/// Number of short calls next to the hung ones.
const SHORT: usize = 300;
/// Delays of a host without failures.
const USUAL: &str = "[[rule]]\ncalls = [\"attach-volume\"]\nafter-ms = 100\n\
                     [[rule]]\ncalls = [\"create\"]\nafter-ms = 200\n";

struct Host {
    daemon: Ringwayd,
    client: Client,
    _config: NamedTempFile,
    /// VMs that alternate between two SRs that hang.
    hung: Vec<String>,
    /// VM on the third SR.
    third: String,
    /// Rules that make the two SRs hang.
    hangs: String,
}

/// Creates a daemon with three working SRs.
fn host() -> Host {
    let config = NamedTempFile::new().unwrap();
    let seconds = DEADLINE.as_secs();
    std::fs::write(&config, format!("[limits]\nattach-deadline-s = {seconds}\n")).unwrap();
    let path = config.path().display().to_string();
    let daemon = Ringwayd::simulator(&["--config", &path]).unwrap();
    let mut client = daemon.client().unwrap();
    let [one, two, good] =
        ["one", "two", "good"].map(|name| Sr::make(&mut client, (name, "sim"), &[]).unwrap());
    let mut machine =
        |name: &str, on| fleet::machine(&mut client, name, (DISKS, Some(on))).unwrap();
    let third = machine("third", &good);
    let on = [&one, &two];
    let hung = (0..HUNG).map(|n| machine(&format!("hung{n}"), on[n % 2])).collect();
    let hangs = |sr: &Sr| {
        let calls = "calls = [\"attach-volume\"]\nend = \"hangs\"\n";
        format!("[[rule]]\nsr = \"{}\"\n{calls}", sr.uuid)
    };
    let hangs = [&hangs(&one), &hangs(&two), USUAL].concat();
    Host { daemon, client, _config: config, hung, third, hangs }
}

fn start(machine: &str) -> [Value; 3] {
    [Value::text(machine), Value::Bool(false), Value::Bool(false)]
}

impl Host {
    /// Starts the VM on the third SR, and shuts it down. A start that waits for hung ones takes
    /// longer than their deadline.
    fn third_starts(&mut self, when: &str) {
        let began = Instant::now();
        self.client.run("VM.start", &start(&self.third), LONG).unwrap();
        let took = began.elapsed();
        assert!(took <= DEADLINE, "{took:?} {when}");
        self.client.run("VM.hard_shutdown", &[Value::text(self.third.as_str())], LONG).unwrap();
    }

    /// Returns the 99th percentile of short calls of several kinds.
    fn short_calls(&mut self) -> Duration {
        let Value::Set(hosts) = self.client.call("host.get_all", &[]).unwrap() else { panic!() };
        let (host, machine) = (hosts[0].clone(), Value::text(self.third.as_str()));
        let vm = Value::Set(vec![Value::text("vm")]);
        let kinds = [
            ("VM.get_record", vec![machine.clone()]),
            // This call is answered when its change is on disk.
            ("VM.set_name_description", vec![machine, Value::text("written")]),
            // This call is answered when its task exists.
            ("Async.host.enable", vec![host]),
            ("event.from", vec![vm, Value::text(""), Value::Float(0.0)]),
            ("VM.get_all_records", vec![]),
        ];
        let timed = |(method, params): &(&str, Vec<Value>)| {
            let began = Instant::now();
            self.client.call(method, params).unwrap();
            began.elapsed()
        };
        let mut took: Vec<Duration> = kinds.iter().cycle().take(SHORT).map(timed).collect();
        took.sort();
        took[SHORT * 99 / 100]
    }

    /// Makes all attaches of two SRs hang. The rules are written while the daemon is stopped, so
    /// that they apply when it serves.
    fn hang(&mut self) {
        self.daemon.stop().unwrap();
        self.daemon.set_rules(&self.hangs).unwrap();
        self.daemon.start_again().unwrap();
        self.client = self.daemon.client().unwrap();
    }

    /// The storage works again. All VMs must then start and stop.
    fn works(&mut self) {
        self.daemon.set_rules(USUAL).unwrap();
        let starts: Vec<_> = self.hung.iter().map(|machine| start(machine).to_vec()).collect();
        let stops = self.hung.iter().map(|machine| vec![Value::text(machine.as_str())]).collect();
        for (method, all) in [("VM.start", starts), ("VM.hard_shutdown", stops)] {
            let begin = |params: &Vec<Value>| self.client.begin(method, params).unwrap();
            let pending_call: Vec<_> = all.iter().map(begin).collect();
            for pending_call in pending_call {
                self.client.end(pending_call, LONG).unwrap();
            }
        }
    }

    /// Starts the VMs on hung storage and checks that the others are not affected.
    fn round(&mut self) {
        self.hang();
        self.third_starts("before");
        let began = Instant::now();
        let mut caller = self.daemon.client().unwrap();
        let starts = self.hung.iter().map(|machine| start(machine));
        let pending_call: Vec<_> =
            starts.map(|params| caller.begin("VM.start", &params).unwrap()).collect();
        self.third_starts("at once");
        let short = self.short_calls();
        assert!(short < DEADLINE, "{short:?}");
        std::thread::sleep((STUCK + STUCK / 4).saturating_sub(began.elapsed()));
        self.third_starts("when all is stuck");
        for (pending_call, machine) in pending_call.into_iter().zip(&self.hung) {
            let error = caller.end(pending_call, LONG).unwrap_err();
            let ClientError::Api(error) = error else { panic!("{error}") };
            let [class, device] = &error.params[..] else { panic!("{error:?}") };
            assert_eq!((&*error.code, &**class), ("DEVICE_ATTACH_TIMEOUT", "VBD"));
            let of = caller.call("VBD.get_VM", &[Value::text(device.as_str())]).unwrap();
            assert_eq!(of, Value::text(machine.as_str()));
        }
        let took = began.elapsed();
        assert!((DEADLINE..LONG).contains(&took), "{took:?}");
        eprintln!("short calls p99 {short:?}, all ended after {took:?}");
    }
}

#[test]
fn forty_starts_that_hang_hold_up_nobody_else() {
    let mut host = host();
    for _ in 0..rounds(1, 10) {
        host.round();
        host.works();
    }
}
