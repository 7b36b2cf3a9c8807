use std::collections::BTreeSet;

use xenapi::Value;
use xenapi::table::resolve::{Method, resolve};
use xenapi::table::{class, host, pool, role, subject};

use super::{HOOKS, LISTS};
use crate::db::Ref;
use crate::dispatch::text;
use crate::tests::app::TestApp;

#[test]
fn each_message_has_one_handler_and_is_in_the_table() {
    let mut seen = BTreeSet::new();
    for (name, _) in LISTS.iter().flat_map(|list| list.iter()) {
        assert!(seen.insert(*name), "{name} is there twice");
        let (method, asynchronous) = resolve(name).unwrap_or_else(|| panic!("{name} is no call"));
        assert!(!asynchronous && method.needs_session(), "{name}");
    }
}

#[test]
fn each_hook_belongs_to_a_field_that_clients_write() {
    for hook in HOOKS.iter().flat_map(|list| list.iter()) {
        let (of, field) = hook.field.split_once('.').unwrap();
        let found = class(of).and_then(|of| of.field(field));
        assert!(found.is_some(), "{} is no field", hook.field);
        let set = resolve(&format!("{of}.set_{field}"));
        assert!(set.is_some(), "{} is not written", hook.field);
    }
}

/// Generic getters must not be replaced, or they could differ from the record.
#[test]
fn getters_tell_what_records_tell() {
    for (name, _) in LISTS.iter().flat_map(|list| list.iter()) {
        let (method, _) = resolve(name).unwrap();
        assert!(!matches!(method, Method::Get(..) | Method::GetRecord(_)), "{name}");
    }
}

fn the(test_app: &TestApp, class: &'static xenapi::table::Class) -> Ref {
    test_app.app.db.read(|view| view.all(class).next().unwrap().reference().clone())
}

#[tokio::test]
async fn the_host_answers() {
    let test_app = TestApp::new().await;
    let host = the(&test_app, &host::CLASS).value();
    test_app.hands.set(60);
    let time = test_app.call("host.get_servertime", [host.clone()]).await;
    assert_eq!(time, Ok(Value::Date(xenapi::Date(60))));
    let free = test_app.call("host.compute_free_memory", [host.clone()]).await;
    let available = test_app.app.drivers.memory.read().available;
    assert_eq!(free, Ok(Value::Int(i64::try_from(available).unwrap())));
    test_app.call("host.disable", [host.clone()]).await.unwrap();
    assert_eq!(test_app.call("host.get_enabled", [host.clone()]).await, Ok(Value::Bool(false)));
    test_app.call("host.enable", [host.clone()]).await.unwrap();
    test_app.call("host.assert_can_evacuate", [host.clone()]).await.unwrap();
    let texts = ["plugin", "function"].map(Value::text);
    let [plugin, function] = texts;
    let none = Value::Map(Default::default());
    let refused =
        test_app.refused("host.call_plugin", [host.clone(), plugin, function, none]).await;
    assert_eq!(refused, ["XENAPI_MISSING_PLUGIN", "plugin"]);
    let named = [host.clone(), Value::text("other")];
    test_app.call("host.set_hostname_live", named).await.unwrap();
    assert_eq!(test_app.call("host.get_hostname", [host]).await, Ok(Value::text("other")));
}

#[tokio::test]
async fn a_machine_that_runs_cannot_go_to_another_host() {
    let test_app = TestApp::new().await;
    let host = the(&test_app, &host::CLASS).value();
    let made = test_app.app.db.change(|tx| {
        use xenapi::table::vm;
        tx.create(&vm::CLASS, vec![(vm::Field::resident_on.into(), host.clone())])
    });
    let machine = made.unwrap();
    let why = ["NO_HOSTS_AVAILABLE", machine.as_str()];
    assert_eq!(test_app.refused("host.evacuate", [host.clone()]).await, why);
    let asked = test_app.refused("host.assert_can_evacuate", [host.clone()]).await;
    assert_eq!(asked, ["CANNOT_EVACUATE_HOST", &why.join(",")]);
    let prevent = test_app.call("host.get_vms_which_prevent_evacuation", [host]).await;
    let why = Value::Set(why.map(Value::text).to_vec());
    assert_eq!(prevent, Ok(Value::Map([(machine.to_string(), why)].into())));
}

/// Clients disable a host before they reboot it. A host that stays is enabled again.
#[tokio::test]
async fn a_refused_reboot_leaves_the_host_enabled() {
    let test_app = TestApp::new().await;
    let host = the(&test_app, &host::CLASS).value();
    for method in ["host.reboot", "host.shutdown"] {
        test_app.call("host.disable", [host.clone()]).await.unwrap();
        let refused = test_app.refused(method, [host.clone()]).await;
        assert_eq!(refused, ["NOT_IMPLEMENTED", method]);
        assert_eq!(test_app.call("host.get_enabled", [host.clone()]).await, Ok(Value::Bool(true)));
    }
}

#[tokio::test]
async fn the_host_shows_its_certificate() {
    let test_app = TestApp::new().await;
    let host = the(&test_app, &host::CLASS).value();
    let shown = test_app.call("host.get_server_certificate", [host]).await.unwrap();
    assert!(text(&shown).starts_with("-----BEGIN CERTIFICATE-----"), "{shown:?}");
}

#[tokio::test]
async fn the_pool_answers() {
    let test_app = TestApp::new().await;
    let pool = the(&test_app, &pool::CLASS).value();
    let ready = test_app.call("pool.get_guest_secureboot_readiness", [pool.clone()]).await;
    assert_eq!(ready, Ok(Value::text("not_ready")));
    assert_eq!(test_app.call("pool.sync_database", []).await, Ok(Value::text("")));
    let has = test_app.call("pool.has_extension", [pool, Value::text("x")]).await;
    assert_eq!(has, Ok(Value::Bool(false)));
}

#[tokio::test]
async fn old_ways_to_wait_for_events_are_gone() {
    let test_app = TestApp::new().await;
    let refused = test_app.refused("event.register", [Value::Set(Vec::new())]).await;
    assert_eq!(refused, ["MESSAGE_REMOVED"]);
    let before = test_app.call("event.get_current_id", []).await.unwrap();
    let pool = the(&test_app, &pool::CLASS).value();
    test_app.call("pool.set_name_label", [pool, Value::text("n")]).await.unwrap();
    let after = test_app.call("event.get_current_id", []).await.unwrap();
    assert!(matches!((before, after), (Value::Int(before), Value::Int(after)) if before < after));
}

#[tokio::test]
async fn subjects_have_roles() {
    let test_app = TestApp::new().await;
    let given =
        |sid: &str| [Value::Map([("subject_identifier".to_owned(), Value::text(sid))].into())];
    let who = test_app.made("subject.create", given("u1")).await;
    let twice = test_app.refused("subject.create", given("u1")).await;
    assert_eq!(twice, ["SUBJECT_ALREADY_EXISTS"]);
    let role =
        |name: &str| test_app.app.db.read(|view| view.by_name(&role::CLASS, name).next().cloned());
    let operator = role("vm-operator").unwrap();
    let both = || [who.value(), operator.value()];
    test_app.call("subject.add_to_roles", both()).await.unwrap();
    let twice = test_app.refused("subject.add_to_roles", both()).await;
    assert_eq!(twice, ["ROLE_ALREADY_EXISTS"]);
    let may = test_app.call("subject.get_permissions_name_label", [who.value()]).await.unwrap();
    let Value::Set(may) = may else { panic!("no set") };
    assert!(may.contains(&Value::text("vm.start")) && !may.contains(&Value::text("vm.create")));
    test_app.call("subject.remove_from_roles", both()).await.unwrap();
    let gone = test_app.refused("subject.remove_from_roles", both()).await;
    assert_eq!(gone, ["ROLE_NOT_FOUND"]);
    let none = test_app.app.db.read(|view| view.get(&who, subject::Field::roles).cloned());
    assert_eq!(none, Ok(Value::Set(Vec::new())));
}

#[tokio::test]
async fn roles_tell_what_they_permit() {
    let test_app = TestApp::new().await;
    let that = async |label: &str| {
        let label = Value::text(label);
        let found = test_app.call("role.get_by_permission_name_label", [label]).await.unwrap();
        let Value::Set(found) = found else { panic!("no set") };
        let mut names = Vec::new();
        for it in found {
            let name = test_app.call("role.get_name_label", [it]).await.unwrap();
            names.push(text(&name).to_owned());
        }
        names.sort();
        names
    };
    assert_eq!(that("sr.destroy").await, ["pool-admin", "pool-operator"]);
    assert_eq!(that("vm.get_all").await.len(), 6);
    assert!(that("vm.fly").await.is_empty());
}

#[tokio::test]
async fn blobs_are_kept_by_name() {
    let test_app = TestApp::new().await;
    let network = the(&test_app, &xenapi::table::network::CLASS);
    let given = || [network.value(), Value::text("b"), Value::text("text/plain")];
    let blob = test_app.made("network.create_new_blob", given()).await;
    let kept = test_app.call("network.get_blobs", [network.value()]).await;
    assert_eq!(kept, Ok(Value::Map([("b".to_owned(), blob.value())].into())));
    assert_eq!(test_app.refused("network.create_new_blob", given()).await[0], "MAP_DUPLICATE_KEY");
    test_app.call("blob.destroy", [blob.value()]).await.unwrap();
}

#[tokio::test]
async fn a_message_may_only_store() {
    let test_app = TestApp::new().await;
    let vm = the(&test_app, &xenapi::table::vm::CLASS).value();
    test_app.call("VM.set_order", [vm.clone(), Value::Int(7)]).await.unwrap();
    assert_eq!(test_app.call("VM.get_order", [vm.clone()]).await, Ok(Value::Int(7)));
    let added = [vm.clone(), Value::text("k"), Value::text("v")];
    test_app.call("VM.add_to_NVRAM", added.clone()).await.unwrap();
    assert_eq!(test_app.refused("VM.add_to_NVRAM", added).await[0], "MAP_DUPLICATE_KEY");
    test_app.call("VM.remove_from_NVRAM", [vm.clone(), Value::text("k")]).await.unwrap();
    let kept = test_app.call("VM.get_NVRAM", [vm]).await;
    assert_eq!(kept, Ok(Value::Map(Default::default())));
}

#[tokio::test]
async fn limits_are_set_while_the_daemon_runs() {
    let test_app = TestApp::new().await;
    let host = the(&test_app, &host::CLASS).value();
    let set = |value: &str| [host.clone(), Value::text("worker-pool-size"), Value::text(value)];
    for bad in ["0", "x", "1000000"] {
        let refused = test_app.refused("host.add_to_other_config", set(bad)).await;
        assert_eq!(refused[0], "INVALID_VALUE", "{bad}");
    }
    test_app.call("host.add_to_other_config", set("7")).await.unwrap();
    let kept = test_app.call("host.get_other_config", [host.clone()]).await;
    let expected = [("worker-pool-size".to_owned(), Value::text("7"))];
    assert_eq!(kept, Ok(Value::Map(expected.into())));
}

#[tokio::test]
async fn events_tell_of_calls() {
    let test_app = TestApp::new().await;
    let pool = the(&test_app, &pool::CLASS).value();
    let token = test_app.call("event.inject", [Value::text("pool"), pool.clone()]).await.unwrap();
    test_app.call("pool.set_name_label", [pool.clone(), Value::text("n")]).await.unwrap();
    let classes = Value::Set(vec![Value::text("pool")]);
    let answer = test_app.call("event.from", [classes, token, Value::Float(10.0)]).await.unwrap();
    let Value::Map(answer) = answer.plain() else { panic!("no map") };
    let Some(Value::Set(events)) = answer.get("events") else { panic!("no events") };
    let [event] = events.as_slice() else { panic!("{events:?}") };
    let Value::Map(event) = event.plain() else { panic!("no map") };
    assert_eq!(event.get("ref"), Some(&pool));
    assert_eq!(event.get("operation"), Some(&Value::text("mod")));
    let bad = [Value::Set(vec![Value::text("*")]), Value::text("x"), Value::Float(1.0)];
    let refused = test_app.refused("event.from", bad).await;
    assert_eq!(refused, ["EVENT_FROM_TOKEN_PARSE_FAILURE", "x"]);
}

/// The wall clock is set by a day in both directions.
#[tokio::test]
async fn a_clock_that_is_set_ends_nothing_and_loses_no_event() {
    const DAY: i64 = 24 * 60 * 60;
    let test_app = TestApp::new().await;
    test_app.hands.set(1_000 * DAY);
    let from = async |token: Value| {
        let classes = Value::Set(vec![Value::text("pool"), Value::text("task")]);
        let answer =
            test_app.call("event.from", [classes, token, Value::Float(0.0)]).await.unwrap();
        let Value::Map(mut answer) = answer else { panic!("no map") };
        let Some(Value::Set(events)) = answer.remove("events") else { panic!("no events") };
        (answer.remove("token").unwrap(), events.len())
    };
    let (mut token, _) = from(Value::text("")).await;
    let its = the(&test_app, &pool::CLASS);
    let message = |body: &str| {
        let words = ["noted", "VM", "u", body].map(Value::text);
        let [name, cls, uuid, body] = words;
        [name, Value::Int(3), cls, uuid, body]
    };
    for (name, at) in [("later", 1_001 * DAY), ("earlier", 999 * DAY), ("before 1970", -DAY)] {
        test_app.hands.set(at);
        test_app.call("pool.set_name_label", [its.value(), Value::text(name)]).await.unwrap();
        let task = test_app.made("task.create", [name, ""].map(Value::text)).await;
        test_app.call("task.set_status", [task.value(), Value::text("success")]).await.unwrap();
        let finished = test_app.call("task.get_finished", [task.value()]).await;
        assert_eq!(finished, Ok(Value::Date(xenapi::Date(at))), "{name}");
        test_app.made("message.create", message(name)).await;
        let since = [Value::Date(xenapi::Date(at))];
        let Ok(Value::Map(noted)) = test_app.call("message.get_since", since).await else {
            panic!("no map")
        };
        assert!(!noted.is_empty(), "{name}");
        let (next, count) = from(token.clone()).await;
        assert_eq!(count, 2, "{name}");
        assert!(text(&next) > text(&token), "{name}: {next:?} after {token:?}");
        token = next;
    }
    let session = [Value::text("root"), Value::text("")];
    test_app.raw("session.login_with_password", session.to_vec()).await.unwrap();
}
