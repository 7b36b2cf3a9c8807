//! Simulated host over several lives, and the rules of its file.

use std::fs;
use std::time::Duration;

use model::domain::{Boot, DomainSpec};
use model::id::{Domid, SrId, Uuid, VdiId, VmId};
use model::nic::NicSpec;
use model::plan::RunState;
use model::vdi::automaton::Access;
use model::vm::exits::DomainExit;
use tempfile::tempdir;
use tokio::time::{sleep, timeout};

use super::rules::RULES;
use super::*;
use crate::sr::Config;

/// More time than any event takes.
const SOON: Duration = Duration::from_secs(20);

fn uuid(n: u8) -> Uuid {
    Uuid::from_random([n; 16])
}

fn spec() -> DomainSpec {
    let boot = Boot::Firmware(Vec::new());
    DomainSpec { memory_bytes: 256 << 20, vcpus: 3, boot, cds: Vec::new() }
}

/// Describes all existing objects.
fn all(sim: &Sim) -> String {
    let state = sim.state();
    let State { domains, attached_srs, volumes, disks, taps, ports, bridges, .. } = &*state;
    format!("{domains:?} {attached_srs:?} {volumes:?} {disks:?} {taps:?} {ports:?} {bridges:?}")
}

#[tokio::test]
async fn what_is_there_outlives_the_process() {
    let dir = tempdir().unwrap();
    let (vm, sr) = (VmId(uuid(1)), SrId(uuid(2)));
    let [kept, gone] = [3, 4].map(|n| VdiId(uuid(n)));
    let expected = {
        let sim = Sim::open(dir.path()).unwrap();
        let drivers = drivers(&sim);
        let storage = drivers.sr("sim").unwrap();
        storage.attach(sr, &Config::new()).await.unwrap();
        storage.create_volume(sr, kept, 5 << 20).await.unwrap();
        storage.create_volume(sr, gone, 6 << 20).await.unwrap();
        storage.destroy_volume(sr, gone).await.unwrap();
        storage.attach_volume(sr, kept, Access::Rw).await.unwrap();
        drivers.net.create_bridge("b", 1500).await.unwrap();
        drivers.net.create_tap("t", "b", 1500).await.unwrap();
        let mac = "02:00:00:00:00:01".parse().unwrap();
        let nic = NicSpec::new(uuid(5).to_string(), "/n.sock", "b", mac);
        drivers.switch.attach(&nic, "t").await.unwrap();
        drivers.hv.create(vm, Domid(9), &spec()).await.unwrap();
        drivers.hv.run(vm).await.unwrap();
        all(&sim)
    };
    // The last line may be incomplete after a kill.
    let journal = dir.path().join("journal");
    let mut text = fs::read_to_string(&journal).unwrap();
    text.push_str("{\"Tap\":[\"cut");
    fs::write(&journal, text).unwrap();
    let sim = Sim::open(dir.path()).unwrap();
    assert_eq!(all(&sim), expected);
    let domain_info = drivers(&sim).hv.find(vm).await.unwrap().unwrap();
    assert_eq!((domain_info.domid, domain_info.run), (Domid(9), Some(RunState::Running)));
    sim.end_guest(vm, DomainExit::Panicked);
    let expected = all(&sim);
    drop(sim);
    assert_eq!(all(&Sim::open(dir.path()).unwrap()), expected);
}

#[tokio::test]
async fn a_journal_that_is_none_is_refused() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("journal"), "nonsense\n").unwrap();
    Sim::open(dir.path()).unwrap_err();
}

#[test]
fn a_long_journal_is_written_anew() {
    let dir = tempdir().unwrap();
    let mut state = State::open(dir.path()).unwrap();
    state.bridges.insert("b".into());
    for _ in 0..100_000 {
        state.keep_bridge("b");
    }
    let lines = fs::read_to_string(dir.path().join("journal")).unwrap().lines().count();
    assert_eq!(lines, 1);
}

#[tokio::test]
async fn the_first_rule_that_fits_decides() {
    let dir = tempdir().unwrap();
    let (hung, slow) = (uuid(1), uuid(2));
    let rules = format!(
        "[[rule]]\nsr = \"{hung}\"\nend = \"hangs\"\n\
         [[rule]]\nsr = \"{slow}\"\ncalls = [\"attach-volume\"]\nevery = 3\nafter-ms = 500\n\
         [[rule]]\ncalls = [\"attach-volume\", \"kill\"]\nafter-ms = 50\nend = \"fails-done\"\n"
    );
    fs::write(dir.path().join(RULES), rules).unwrap();
    let sim = Sim::open(dir.path()).unwrap();
    let rule = Arc::clone(&sim.rule.borrow());
    let fate = |call: Call| rule.fate(&call);
    let on = |sr: Uuid, call_kind, n| Call {
        device: Some(uuid(n)),
        ..Call::new(call_kind).sr(SrId(sr))
    };
    assert_eq!(fate(on(hung, CallKind::Scan, 0)), SimBehaviour::ends(SimResult::Hangs));
    let other = SimBehaviour { after: Duration::from_millis(50), sim_result: SimResult::FailsDone };
    for turn in 0..2 {
        for n in 0..7 {
            let expected =
                if n % 3 == 0 { SimBehaviour::takes(Duration::from_millis(500)) } else { other };
            assert_eq!(fate(on(slow, CallKind::AttachVolume, n)), expected, "{turn} {n}");
        }
    }
    assert_eq!(fate(on(slow, CallKind::DetachVolume, 0)), SimBehaviour::default());
    assert_eq!(fate(Call::new(CallKind::Kill).vm(VmId(uuid(5)))), other);
}

#[tokio::test]
async fn rules_change_while_calls_hang_and_wrong_ones_change_nothing() {
    let dir = tempdir().unwrap();
    let write = |text: &str| {
        let new = dir.path().join("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, dir.path().join(RULES)).unwrap();
    };
    write("[[rule]]\ncalls = [\"scan\"]\nend = \"hangs\"\n");
    let sim = Sim::open(dir.path()).unwrap();
    let storage = drivers(&sim).sr("sim").unwrap().clone();
    let hangs = tokio::spawn(async move { storage.scan(SrId(uuid(1))).await });
    let mut changed = sim.rule.subscribe();
    changed.mark_unchanged();
    write("[[rule]]\ncalls = [\"scam\"]\n");
    sleep(Duration::from_millis(50)).await;
    assert!(!hangs.is_finished() && !changed.has_changed().unwrap());
    write("");
    timeout(SOON, hangs).await.unwrap().unwrap().unwrap();
    // Without the file there are no rules.
    changed.mark_unchanged();
    fs::remove_file(dir.path().join(RULES)).unwrap();
    timeout(SOON, changed.changed()).await.unwrap().unwrap();
}

/// Host NICs stay, in a bridge or not, even if the file names them no more: a file removes no
/// hardware.
#[tokio::test]
async fn cards_are_those_that_were_ever_named() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join(RULES), "cards = [\"eth0\"]\n").unwrap();
    let sim = Sim::open(dir.path()).unwrap();
    assert_eq!(sim.cards(), [("eth0".to_owned(), None)]);
    sim.state().cards.insert("eth0".to_owned(), Some("b".to_owned()));
    let mut changed = sim.rule.subscribe();
    changed.mark_unchanged();
    fs::write(dir.path().join("new"), "cards = [\"eth0\", \"eth1\"]\n").unwrap();
    fs::rename(dir.path().join("new"), dir.path().join(RULES)).unwrap();
    timeout(SOON, changed.changed()).await.unwrap().unwrap();
    let both = [("eth0".to_owned(), Some("b".to_owned())), ("eth1".to_owned(), None)];
    assert_eq!(sim.cards(), both);
}

#[tokio::test]
async fn what_is_no_rule_is_refused_at_the_start() {
    for (text, named) in [
        ("[[rule]]\nevery = 0\n", "every"),
        ("[[rule]]\nafter-ms = 3600001\n", "after-ms"),
        ("[[rule]]\nend = \"dies\"\n", "dies"),
        ("[[rule]]\nsr = \"x\"\n", "UUID"),
        ("rules = 1\n", "rules"),
    ] {
        let dir = tempdir().unwrap();
        fs::write(dir.path().join(RULES), text).unwrap();
        let error = Sim::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains(named) && error.contains(RULES), "{text}: {error}");
    }
}
