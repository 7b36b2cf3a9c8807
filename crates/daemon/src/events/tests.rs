use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use xenapi::table::{pool, sr, task, vdi, vm};
use xenapi::{ApiError, Encoded, Value};

use super::scan::Bounds;
use super::{bounded, from, inject};
use crate::allowed_operations::update_allowed;
use crate::db::tests::random::{numbered, of, write, writes};
use crate::db::{Db, Ref};

/// Longer than any test, in seconds. A wait that long was not woken.
const LONG_S: f64 = 600.0;

fn world() -> (Db, Ref) {
    let db = Db::new(0, numbered, update_allowed);
    let session = db.write_observed(|tx| tx.create(of("session"), Vec::new())).unwrap();
    (db, session)
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(future)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// An answer of `event.from`.
#[derive(Debug)]
struct EventBatch {
    token: String,
    events: Vec<Event>,
    counts: BTreeMap<String, Value>,
}

#[derive(Debug)]
struct Event {
    class: String,
    operation: String,
    reference: Ref,
    snapshot: Option<Arc<Encoded>>,
}

fn text(members: &BTreeMap<String, Value>, name: &str) -> String {
    match members.get(name) {
        Some(Value::Str(text)) => text.clone(),
        other => panic!("{name}: {other:?}"),
    }
}

fn read(answer: Value) -> EventBatch {
    let Value::Map(answer) = answer else { panic!("{answer:?}") };
    let (Value::Set(events), Value::Map(counts)) =
        (&answer["events"], answer["valid_ref_counts"].clone())
    else {
        panic!("{answer:?}")
    };
    let event = |event: &Value| {
        let Value::Map(event) = event else { panic!("{event:?}") };
        assert_eq!(text(event, "timestamp"), "0.0");
        assert!(text(event, "id").parse::<u64>().unwrap() > 0);
        Event {
            class: text(event, "class"),
            operation: text(event, "operation"),
            reference: Ref::from(text(event, "ref").as_str()),
            snapshot: event.get("snapshot").map(|snapshot| match snapshot {
                Value::Encoded(encoded) => encoded.clone(),
                other => panic!("{other:?}"),
            }),
        }
    };
    EventBatch { token: text(&answer, "token"), events: events.iter().map(event).collect(), counts }
}

/// Calls `event.from` without a wait.
fn ask(db: &Db, session: &Ref, classes: &[&str], token: &str) -> EventBatch {
    read(wait(from(db, session, &names(classes), token, 0.0)).unwrap())
}

impl EventBatch {
    fn short(&self) -> Vec<String> {
        let short = |event: &Event| {
            assert_eq!(event.snapshot.is_none(), event.operation == "del");
            format!("{} {}", event.operation, event.class)
        };
        self.events.iter().map(short).collect()
    }
}

#[test]
fn in_order_and_with_counts() {
    let (db, session) = world();
    let (vm, gone) = db
        .write_observed(|tx| {
            Ok((tx.create(of("VM"), Vec::new())?, tx.create(of("VDI"), Vec::new())?))
        })
        .unwrap();
    let first = ask(&db, &session, &["*"], "");
    assert_eq!(first.short(), ["add vm", "add vdi"], "sessions are told to nobody");
    assert!(ask(&db, &session, &["*"], &first.token).events.is_empty());
    for name in ["a", "b"] {
        db.write_observed(|tx| tx.set(&vm, vm::Field::name_label, Value::text(name))).unwrap();
    }
    db.write_observed(|tx| tx.destroy(of("VDI"), &gone)).unwrap();
    db.write_observed(|tx| tx.create(of("task"), Vec::new())).unwrap();
    db.write_observed(|tx| tx.create(of("message"), Vec::new())).unwrap();
    let passing = db.write_observed(|tx| tx.create(of("network"), Vec::new())).unwrap();
    db.write_observed(|tx| tx.destroy(of("network"), &passing)).unwrap();
    let batch = ask(&db, &session, &["*"], &first.token);
    assert_eq!(batch.short(), ["add message", "add task", "mod vm", "del vdi"]);
    let Value::Map(record) = batch.events[2].snapshot.as_ref().unwrap().value() else { panic!() };
    assert_eq!(record["name_label"], Value::text("b"));
    assert!(batch.token > first.token);
    let counts = ask(&db, &session, &["sr"], &batch.token).counts;
    for (class, count) in [("task", 1), ("vm", 1), ("vdi", 0), ("message", 1), ("network", 0)] {
        assert_eq!(counts.get(class), Some(&Value::Int(count)), "{class}");
    }
    assert!(!counts.contains_key("event") && !counts.contains_key("VM"));
}

/// Events of all classes are in the order of the changes.
#[test]
fn changes_and_ends_of_several_classes_are_in_order() {
    let (db, session) = world();
    let made = ["VM", "VDI", "SR", "VM", "VDI"]
        .map(|class| (class, db.write_observed(|tx| tx.create(of(class), Vec::new())).unwrap()));
    let token = ask(&db, &session, &["*"], "").token;
    let (sr, vdi, vm) = (&made[2].1, &made[1].1, &made[0].1);
    db.write_observed(|tx| tx.set(sr, sr::Field::name_label, Value::text("a"))).unwrap();
    db.write_observed(|tx| tx.destroy(of("VDI"), &made[4].1)).unwrap();
    db.write_observed(|tx| tx.set(vm, vm::Field::name_label, Value::text("a"))).unwrap();
    db.write_observed(|tx| tx.set(vdi, vdi::Field::name_label, Value::text("a"))).unwrap();
    db.write_observed(|tx| tx.destroy(of("VM"), &made[3].1)).unwrap();
    let events = ask(&db, &session, &["*"], &token).short();
    assert_eq!(events, ["mod sr", "mod vm", "mod vdi", "del vdi", "del vm"]);
}

#[test]
fn what_is_not_wanted_is_not_told() {
    let (db, session) = world();
    let (one, two) = db
        .write_observed(|tx| {
            Ok((tx.create(of("task"), Vec::new())?, tx.create(of("task"), Vec::new())?))
        })
        .unwrap();
    db.write_observed(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    let of_one = format!("TASK/{}", one.as_str().to_uppercase());
    let batch = ask(&db, &session, &[&of_one], "");
    assert_eq!(batch.events.len(), 1);
    assert_eq!(batch.events[0].reference, one);
    assert_eq!(ask(&db, &session, &["Vm", &of_one], "").short(), ["add task", "add vm"]);
    assert_eq!(ask(&db, &session, &[], "").short(), [""; 0]);
    db.write_observed(|tx| tx.destroy(of("task"), &two)).unwrap();
    assert_eq!(ask(&db, &session, &[&of_one], &batch.token).short(), [""; 0]);
    db.write_observed(|tx| tx.destroy(of("task"), &one)).unwrap();
    assert_eq!(ask(&db, &session, &[&of_one], &batch.token).short(), ["del task"]);
}

#[test]
fn one_text_for_all() {
    let (db, session) = world();
    db.write_observed(|tx| tx.create(of("VM"), Vec::new())).unwrap();
    let [one, two] = [0, 1].map(|_| ask(&db, &session, &["vm"], ""));
    let [one, two] = [one, two].map(|batch| batch.events[0].snapshot.clone().unwrap());
    assert!(Arc::ptr_eq(&one, &two));
}

/// Polls a future once.
fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_change_wakes_who_waits() {
    let (db, session) = world();
    let task = db.write_observed(|tx| tx.create(of("task"), Vec::new())).unwrap();
    let token = ask(&db, &session, &["task"], "").token;
    let classes = names(&["task"]);
    wait(async {
        let mut waits = pin!(from(&db, &session, &classes, &token, LONG_S));
        assert!(poll(waits.as_mut()).is_pending());
        // Another class changed, so the call continues to wait.
        db.write_observed(|tx| tx.create(of("VM"), Vec::new())).unwrap();
        assert!(poll(waits.as_mut()).is_pending());
        db.write_observed(|tx| tx.set(&task, task::Field::progress, Value::Float(0.5))).unwrap();
        let Poll::Ready(answer) = poll(waits.as_mut()) else { panic!("it was not woken") };
        assert_eq!(read(answer.unwrap()).short(), ["mod task"]);
    });
}

#[test]
fn the_end_of_a_session_wakes_who_waits() {
    let (db, session) = world();
    let other = db.write_observed(|tx| tx.create(of("session"), Vec::new())).unwrap();
    wait(async {
        let mut waits = pin!(from(&db, &session, &[], "", LONG_S));
        assert!(poll(waits.as_mut()).is_pending());
        db.write_observed(|tx| tx.destroy(of("session"), &other)).unwrap();
        assert!(poll(waits.as_mut()).is_pending());
        db.write_observed(|tx| tx.destroy(of("session"), &session)).unwrap();
        let Poll::Ready(answer) = poll(waits.as_mut()) else { panic!("it was not woken") };
        assert_eq!(answer.unwrap_err().details(), ["SESSION_INVALID", session.as_str()]);
    });
}

#[test]
fn whatever_is_said_is_answered() {
    let (db, session) = world();
    let code = |classes: &[&str], token: &str| {
        wait(from(&db, &session, &names(classes), token, 0.0)).unwrap_err().code
    };
    assert_eq!(code(&["vm", "a/b/c"], ""), "EVENT_SUBSCRIPTION_PARSE_FAILURE");
    assert_eq!(code(&["vm"], "x"), "EVENT_FROM_TOKEN_PARSE_FAILURE");
    for timeout in [-1.0, f64::NAN, f64::NEG_INFINITY, 0.001] {
        let batch = read(wait(from(&db, &session, &names(&["vm"]), "", timeout)).unwrap());
        assert!(batch.events.is_empty());
    }
    let future = "00000000000000009999,00000000000000009999";
    assert!(ask(&db, &session, &["*"], future).events.is_empty());
}

#[test]
fn an_injected_event_is_a_barrier() {
    let (db, session) = world();
    let pool = db.write_observed(|tx| tx.create(of("pool"), Vec::new())).unwrap();
    let token = |value: Result<Value, ApiError>| match value {
        Ok(Value::Str(text)) => text,
        other => panic!("{other:?}"),
    };
    let before = token(inject(&db, "Pool", &pool));
    let batch = ask(&db, &session, &["pool"], &before);
    assert_eq!(batch.short(), ["mod pool"]);
    assert!(batch.token > before);
    // The token of a later change is not lower than the token of the injection.
    let before = token(inject(&db, "pool", &pool));
    let key = Some(Value::text("1"));
    db.write_observed(|tx| tx.set_key(&pool, pool::Field::other_config, "barrier", key)).unwrap();
    let batch = ask(&db, &session, &["pool"], &batch.token);
    assert!(batch.token >= before);
    for (class, reference) in [("pool", &session), ("vm", &pool), ("session", &session)] {
        let error = inject(&db, class, reference).unwrap_err();
        assert_eq!(error.code, "HANDLE_INVALID", "{class}");
    }
}

/// All records of a database may have one generation, as after a start that follows a crash.
#[test]
fn a_large_answer_comes_in_parts() {
    let (db, session) = world();
    let vms: Vec<Ref> =
        db.write_observed(|tx| (0..10).map(|_| tx.create(of("VM"), Vec::new())).collect()).unwrap();
    let part = |token: &str, events, bytes| {
        let bounds = Bounds { events, bytes };
        read(wait(bounded(&db, &session, &names(&["vm"]), (token, LONG_S), bounds)).unwrap())
    };
    let told = |batch: &EventBatch| -> Vec<Ref> {
        batch.events.iter().map(|one| one.reference.clone()).collect()
    };
    let first = part("", 4, usize::MAX);
    assert_eq!(told(&first), vms[..4]);
    // What changes, comes or goes meanwhile is told after the last part.
    db.write_observed(|tx| {
        tx.set(&vms[1], vm::Field::name_label, Value::text("a"))?;
        tx.set(&vms[5], vm::Field::name_label, Value::text("b"))?;
        tx.destroy(of("VM"), &vms[0])
    })
    .unwrap();
    let second = part(&first.token, 4, usize::MAX);
    assert_eq!(told(&second), vms[4..8]);
    assert!(second.token > first.token);
    let third = part(&second.token, 100, 1);
    assert_eq!(told(&third), vms[8..9], "one event at least");
    let fourth = part(&third.token, 100, usize::MAX);
    assert_eq!((told(&fourth), fourth.token.contains(',')), (vms[9..].to_vec(), true));
    let rest = part(&fourth.token, 100, usize::MAX);
    assert_eq!(rest.short(), ["mod vm", "mod vm", "del vm"]);
    // The last part may have been all, unless its token says so. Nothing waits in vain.
    assert_eq!(part(&first.token, 6, usize::MAX).events.len(), 6);
    let mut nothing_left: Vec<_> = third.token.split('+').collect();
    nothing_left[3] = "00000000000000000003";
    assert_eq!(part(&nothing_left.join("+"), 100, usize::MAX).short(), rest.short());
}

/// A client that applies events.
#[derive(Default)]
struct Client {
    token: String,
    wanted: Vec<String>,
    knows: BTreeMap<Ref, Value>,
}

impl Client {
    /// Gets one part of an answer. Returns whether there was any.
    fn asks_part(&mut self, db: &Db, session: &Ref) -> bool {
        let bounds = Bounds { events: 2, bytes: usize::MAX };
        let call = bounded(db, session, &self.wanted, (&self.token, 0.0), bounds);
        let batch = read(wait(call).unwrap());
        let is_done = batch.events.is_empty() && self.token == batch.token;
        self.token = batch.token;
        for event in batch.events {
            match event.snapshot {
                Some(encoded) => {
                    let value = encoded.value().clone();
                    let before = self.knows.insert(event.reference.clone(), value);
                    assert_eq!(before.is_some(), event.operation == "mod");
                }
                None => drop(self.knows.remove(&event.reference)),
            }
        }
        !is_done
    }

    fn asks(&mut self, db: &Db, session: &Ref) {
        let batch = read(wait(from(db, session, &self.wanted, &self.token, 0.0)).unwrap());
        assert!(batch.token >= self.token);
        self.token = batch.token;
        for event in batch.events {
            let before = match event.snapshot {
                Some(encoded) => {
                    self.knows.insert(event.reference.clone(), encoded.value().clone())
                }
                None => self.knows.remove(&event.reference),
            };
            assert_eq!(before.is_some(), event.operation != "add");
        }
        let wants = |name: &str| self.wanted.iter().any(|one| one == "*" || one == name);
        let (there, counts) = db.read(|view| {
            let classes = xenapi::table::classes().iter().filter(|class| class.events);
            let wanted = classes.clone().filter(|class| wants(class.name));
            let objects = wanted.flat_map(|class| view.all(class));
            let row = |object: &crate::db::Object| {
                (object.reference().clone(), object.record().value().clone())
            };
            let counts = classes.map(|class| {
                let count = i64::try_from(view.count(class)).unwrap();
                (class.name.to_lowercase(), Value::Int(count))
            });
            (objects.map(row).collect::<BTreeMap<_, _>>(), counts.collect::<Vec<_>>())
        });
        assert_eq!(self.knows, there);
        assert!(counts.iter().all(|(class, count)| batch.counts.get(class) == Some(count)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn who_applies_what_is_told_has_what_there_is(
        changes in prop::collection::vec(
            (prop::collection::vec(writes(), 1..5), 0usize..6),
            1..30,
        ),
    ) {
        let (db, session) = world();
        let wanted = [&["*"][..], &["VM", "VBD"], &["VDI", "SR", "PBD"]];
        let mut clients =
            wanted.map(|wanted| Client { wanted: names(wanted), ..Client::default() });
        let mut in_parts = Client { wanted: names(&["*"]), ..Client::default() };
        for (all_of_it, asks) in changes {
            db.write_observed(|tx| {
                all_of_it.iter().for_each(|one| write(tx, one));
                Ok(())
            })
            .unwrap();
            if let Some(client) = clients.get_mut(asks) {
                client.asks(&db, &session);
            } else {
                in_parts.asks_part(&db, &session);
            }
        }
        while in_parts.asks_part(&db, &session) {}
        in_parts.asks(&db, &session);
        clients.iter_mut().for_each(|client| client.asks(&db, &session));
    }
}

/// Writers and waiting clients run at once. No client waits for a change that has already happened.
#[test]
fn no_change_is_missed_between_look_and_wait() {
    const WRITERS: usize = 8;
    const CHANGES: usize = 100;
    let (db, session) = world();
    let tasks: Vec<Ref> = (0..WRITERS)
        .map(|_| db.write_observed(|tx| tx.create(of("task"), Vec::new())).unwrap())
        .collect();
    let client = || {
        let (mut token, mut ends) = (String::new(), 0);
        while ends < WRITERS {
            let answer = wait(from(&db, &session, &names(&["task"]), &token, LONG_S));
            let batch = read(answer.unwrap());
            assert!(!batch.events.is_empty(), "it waited in vain");
            token = batch.token;
            for event in batch.events {
                let Value::Map(record) = event.snapshot.as_ref().unwrap().value() else { panic!() };
                ends += usize::from(record["status"] == Value::text("success"));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(client)));
        for task in &tasks {
            let db = &db;
            scope.spawn(move || {
                for number in 1..=CHANGES {
                    let progress = Value::Float(number as f64);
                    db.write_observed(|tx| tx.set(task, task::Field::progress, progress)).unwrap();
                }
                db.write_observed(|tx| tx.set(task, task::Field::status, Value::text("success")))
                    .unwrap();
            });
        }
    });
}
