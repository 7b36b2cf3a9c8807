//! A wall clock that is set during calls.

use std::time::{Duration, Instant};

use testkit::clock::WallClock;
use testkit::ringwayd::Ringwayd;
use xenapi::Value;
use xenapi::client::Client;
use xenapi::envelope::Encoding;

use super::sessions::tcp;
use super::{World, refused};

/// Duration of a start, in which the clock is set, in milliseconds.
const START_MS: u64 = 2000;
/// Longest wait for a call on a busy host.
const PATIENCE: Duration = Duration::from_secs(120);
/// Least delay of the answer to a wrong password.
const GUESS: Duration = Duration::from_secs(1);
const YEAR_S: i64 = 365 * 86_400;
/// Longer than a test takes, in seconds.
const NEAR_S: i64 = 1800;

/// Returns how far the daemon's clock is ahead of the host's, in seconds.
fn ahead(world: &mut World) -> i64 {
    let host = world.first("host");
    let Value::Date(server_time) = world.call("host.get_servertime", &[Value::text(host)]) else {
        panic!("no time")
    };
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    server_time.0 - i64::try_from(now).unwrap()
}

fn start(vm: &str) -> [Value; 3] {
    [Value::text(vm), Value::Bool(false), Value::Bool(false)]
}

#[test]
fn a_clock_that_is_set_ends_no_wait_no_session_and_no_task() {
    let clock = WallClock::new().unwrap();
    let daemon = Ringwayd::start_at(&clock, &["--hypervisor", "simulator"]).unwrap();
    let root = daemon.client().unwrap();
    let mut world = World { daemon, root };
    let vm = world.machine("m");
    let rules = format!("[[rule]]\ncalls = [\"run\"]\nafter-ms = {START_MS}\n");
    world.daemon.set_rules(&rules).unwrap();

    for years in [30, -40, 0] {
        let pending_call = world.root.begin("VM.start", &start(&vm)).unwrap();
        let mut other = world.daemon.client().unwrap();
        let waits = std::thread::spawn(move || nothing_comes(&mut other));
        let mut guesser = tcp(&mut world, Encoding::Json);
        guess(&mut guesser);
        // The next failure is delayed as usual, although the clock is set meanwhile.
        let since = Instant::now();
        let guessing = std::thread::spawn(move || guess(&mut guesser));
        clock.set(years * YEAR_S).unwrap();
        assert!((ahead(&mut world) - years * YEAR_S).abs() < NEAR_S, "{years}");
        guessing.join().unwrap();
        assert!((GUESS..PATIENCE).contains(&since.elapsed()), "{:?}", since.elapsed());
        world.root.end(pending_call, PATIENCE).unwrap();
        waits.join().unwrap();
        world.call("VM.hard_shutdown", &[Value::text(&*vm)]);
    }
}

/// Waits for events of a class without changes until the timeout.
fn nothing_comes(client: &mut Client) {
    const WAIT: Duration = Duration::from_secs(2);
    let (begun, mut token) = (Instant::now(), String::new());
    while begun.elapsed() < WAIT {
        let batch = client.events(&["sm"], &token, WAIT).unwrap();
        assert!(token.is_empty() || begun.elapsed() >= WAIT, "{:?}", batch.events);
        token = batch.token;
    }
}

fn guess(client: &mut Client) {
    let words = ["root", "guess"].map(Value::text);
    assert_eq!(
        refused(client, "session.login_with_password", &words)[0],
        "SESSION_AUTHENTICATION_FAILED"
    );
}

/// Events continue and all records exist, with any clock at a start.
#[test]
fn a_clock_that_is_wrong_at_a_start_loses_nothing() {
    let clock = WallClock::new().unwrap();
    clock.set(10 * YEAR_S).unwrap();
    let daemon = Ringwayd::start_at(&clock, &["--hypervisor", "simulator"]).unwrap();
    let root = daemon.client().unwrap();
    let mut world = World { daemon, root };
    let vm = world.machine("m");
    world.call("VM.start", &start(&vm));
    let token = world.root.events(&["vm"], "", Duration::ZERO).unwrap().token;

    for years in [-50, 0, 20] {
        let before = world.dump();
        world.daemon.process.kill().unwrap();
        clock.set(years * YEAR_S).unwrap();
        world.daemon.start_again().unwrap();
        world.root = world.daemon.client().unwrap();
        assert!((ahead(&mut world) - years * YEAR_S).abs() < NEAR_S, "{years}");
        assert!(world.dump() == before, "{years}: records changed");
        world.call("VM.set_name_description", &[Value::text(&*vm), Value::text(years.to_string())]);
        let news = world.root.events(&["vm"], &token, PATIENCE).unwrap();
        assert!(news.events.iter().any(|event| event.reference == vm), "{years}");
        assert!(news.token > token, "{years}: {} {token}", news.token);
        let again = world.root.events(&["vm"], &news.token, Duration::ZERO).unwrap().events;
        assert_eq!(again.len(), 0, "{years}: what was told is told again");
    }
    world.call("VM.clean_shutdown", &[Value::text(&*vm)]);
}
