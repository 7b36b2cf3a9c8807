use std::collections::BTreeMap;
use std::sync::Arc;

use xenapi::envelope::{Call, Dialect};
use xenapi::table::resolve::resolve;
use xenapi::table::{Role, host, network, pool, secret, vm};
use xenapi::{NULL_REF, Value};

use super::generic::MAX_MEMBERS;
use super::{Args, dispatch, permitted, text};
use crate::db::{Ref, View};
use crate::peer::{Origin, Peer};
use crate::sessions::ConnectionSession;
use crate::tests::app::TestApp;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn the(view: &View<'_>, class: &'static xenapi::table::Class) -> Ref {
    view.all(class).next().unwrap().reference().clone()
}

fn map(pairs: &[(&str, Value)]) -> Value {
    Value::Map(pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
}

#[tokio::test]
async fn the_first_thing_that_is_wrong_is_the_answer() {
    let test_app = TestApp::new().await;
    let raw = async |method: &str, params: Vec<Value>| {
        test_app.raw(method, params).await.unwrap_err().details()
    };
    let (session, no) = (test_app.session.value(), Value::text("OpaqueRef:no"));
    assert_eq!(raw("VM.nonsense", vec![no.clone()]).await, ["SESSION_INVALID", "OpaqueRef:no"]);
    assert_eq!(raw("VM.get_all", vec![]).await, ["SESSION_INVALID", ""]);
    assert_eq!(raw("VM.get_all", vec![Value::Int(1)]).await, ["SESSION_INVALID", ""]);
    let unknown = raw("VM.nonsense", vec![session.clone()]).await;
    assert_eq!(unknown, ["MESSAGE_METHOD_UNKNOWN", "VM.nonsense"]);
    let unknown = raw("Async.VM.get_all", vec![session.clone()]).await;
    assert_eq!(unknown, ["MESSAGE_METHOD_UNKNOWN", "Async.VM.get_all"]);
    let few = raw("VM.get_uuid", vec![session.clone()]).await;
    assert_eq!(few, ["MESSAGE_PARAMETER_COUNT_MISMATCH", "VM.get_uuid", "1", "0"]);
    let many = raw("VM.get_all", vec![session.clone(), no.clone()]).await;
    assert_eq!(many, ["MESSAGE_PARAMETER_COUNT_MISMATCH", "VM.get_all", "0", "1"]);
    let wrong = raw("VM.start", vec![session.clone(), no.clone(), no.clone(), no.clone()]).await;
    assert_eq!(wrong, ["FIELD_TYPE_ERROR", "start_paused"]);
    let stale = raw("VM.get_uuid", vec![session.clone(), no]).await;
    assert_eq!(stale, ["HANDLE_INVALID", "VM", "OpaqueRef:no"]);
    for null in [NULL_REF, ""] {
        let null = raw("VM.get_uuid", vec![session.clone(), Value::text(null)]).await;
        assert_eq!(null, ["HANDLE_INVALID", "VM", NULL_REF]);
    }
}

#[tokio::test]
async fn only_an_empty_session_is_that_of_the_connection() {
    let test_app = TestApp::new().await;
    let connection_session = Some(Arc::new(ConnectionSession::default()));
    let peer = Peer { from: Origin::Unix, user_agent: None, connection_session };
    let ask = async |params: Vec<Value>| {
        let call = Call { method: "VM.get_all".into(), params, dialect: Dialect::Xml };
        dispatch(&test_app.app, call, &peer).await
    };
    assert!(ask(vec![Value::text("")]).await.is_ok());
    let others = [Value::Null, Value::Int(0), Value::Bool(false), map(&[]), Value::text(NULL_REF)];
    for other in others.into_iter().map(|other| vec![other]).chain([vec![]]) {
        let error = ask(other.clone()).await.unwrap_err();
        assert_eq!(error.code, "SESSION_INVALID", "{other:?}");
    }
}

#[tokio::test]
async fn login_takes_two_to_four_parameters() {
    let test_app = TestApp::new().await;
    let login = async |count: usize| {
        let params = ["root", "", "1.0", "test", "more"].map(Value::text);
        test_app.raw("session.login_with_password", params[..count].to_vec()).await
    };
    for count in 2..=4 {
        assert!(login(count).await.is_ok(), "{count}");
    }
    for count in [0, 1, 5] {
        assert_eq!(login(count).await.unwrap_err().code, "MESSAGE_PARAMETER_COUNT_MISMATCH");
    }
}

#[tokio::test]
async fn names_of_calls_are_told_without_a_session() {
    let test_app = TestApp::new().await;
    let Value::Set(names) = test_app.raw("system.listMethods", Vec::new()).await.unwrap() else {
        panic!("no set")
    };
    assert!(names.contains(&Value::text("VM.get_all_records")));
    let again = test_app.call("host.list_methods", []).await.unwrap();
    assert_eq!(again, Value::Set(names));
}

fn host_of(test_app: &TestApp) -> Value {
    test_app.app.db.read(|view| the(view, &host::CLASS)).value()
}

#[tokio::test]
async fn a_session_that_has_ended_is_none() {
    let test_app = TestApp::new().await;
    assert_eq!(test_app.call("session.logout", []).await, Ok(Value::text("")));
    let refused = test_app.refused("VM.get_all", []).await;
    assert_eq!(refused, ["SESSION_INVALID", test_app.session.as_str()]);
}

#[tokio::test]
async fn roles_are_asked() {
    let test_app = TestApp::new().await;
    for (method, least) in [
        ("VM.get_all", Role::ReadOnly),
        ("VM.start", Role::VmOperator),
        ("VM.set_name_label", Role::VmAdmin),
        ("SR.destroy", Role::PoolOperator),
        ("secret.get_value", Role::PoolOperator),
        ("host.call_plugin", Role::PoolAdmin),
    ] {
        for role in Role::ALL {
            let ctx = test_app.ctx_of("somebody", role, method);
            let may = permitted(&ctx.session, &ctx.method);
            assert_eq!(may.is_ok(), role >= least, "{method} {role}");
            if let Err(error) = may {
                assert_eq!(error.code, "RBAC_PERMISSION_DENIED");
                assert_eq!(error.params[0], method.to_ascii_lowercase());
            }
        }
    }
}

#[tokio::test]
async fn records_are_listed_and_found() {
    let test_app = TestApp::new().await;
    let all = test_app.call("VM.get_all", []).await.unwrap();
    let Value::Set(all) = all else { panic!("no set") };
    assert_eq!(all.len(), 3, "the control domain and two templates");
    let records = test_app.call("VM.get_all_records", []).await.unwrap();
    let Value::Map(records) = records else { panic!("no map") };
    assert_eq!(records.len(), 3);
    let expr = Value::text("field \"is_control_domain\" = \"true\"");
    let found = test_app.call("VM.get_all_records_where", [expr]).await.unwrap();
    let Value::Map(found) = found else { panic!("no map") };
    let (it, record) = found.first_key_value().unwrap();
    assert_eq!((found.len(), records.get(it)), (1, Some(record)));
    let it = Value::text(it.as_str());
    assert_eq!(&test_app.call("VM.get_record", [it.clone()]).await.unwrap(), record);
    let uuid = test_app.call("VM.get_uuid", [it.clone()]).await.unwrap();
    let upper = Value::text(text(&uuid).to_uppercase());
    assert_eq!(test_app.call("VM.get_by_uuid", [upper]).await, Ok(it.clone()));
    let name = test_app.call("VM.get_name_label", [it.clone()]).await.unwrap();
    assert_eq!(test_app.call("VM.get_by_name_label", [name]).await, Ok(Value::Set(vec![it])));
    let none = test_app.refused("VM.get_by_uuid", [Value::text("x")]).await;
    assert_eq!(none, ["UUID_INVALID", "VM", "x"]);
    let bad = test_app.refused("VM.get_all_records_where", [Value::text("field")]).await;
    assert_eq!(bad[..2], words(&["INVALID_VALUE", "expr"]));
}

#[tokio::test]
async fn fields_are_written() {
    let test_app = TestApp::new().await;
    let pool = test_app.app.db.read(|view| the(view, &pool::CLASS)).value();
    let set = Value::text("named");
    let done = test_app.call("pool.set_name_label", [pool.clone(), set.clone()]).await;
    assert_eq!(done, Ok(Value::text("")));
    assert_eq!(test_app.call("pool.get_name_label", [pool.clone()]).await, Ok(set));
    let key = |key: &str| [pool.clone(), Value::text(key), Value::text("v")];
    test_app.call("pool.add_to_other_config", key("k")).await.unwrap();
    let uuid = test_app.call("pool.get_uuid", [pool.clone()]).await.unwrap();
    let twice = test_app.refused("pool.add_to_other_config", key("k")).await;
    assert_eq!(twice, ["MAP_DUPLICATE_KEY", "pool", "other_config", text(&uuid), "k"]);
    let remove = || [pool.clone(), Value::text("k")];
    for _ in 0..2 {
        test_app.call("pool.remove_from_other_config", remove()).await.unwrap();
    }
    test_app.call("pool.add_to_other_config", key("k")).await.unwrap();
    for tag in ["a", "b", "a"] {
        test_app.call("pool.add_tags", [pool.clone(), Value::text(tag)]).await.unwrap();
    }
    test_app.call("pool.remove_tags", [pool.clone(), Value::text("b")]).await.unwrap();
    let tags = test_app.call("pool.get_tags", [pool.clone()]).await;
    assert_eq!(tags, Ok(Value::Set(vec![Value::text("a")])));
    let unknown = [pool.clone(), Value::text("OpaqueRef:none")];
    let stale = test_app.refused("pool.set_default_SR", unknown).await;
    assert_eq!(stale, ["HANDLE_INVALID", "SR", "OpaqueRef:none"]);
    test_app.call("pool.set_default_SR", [pool.clone(), Value::text("")]).await.unwrap();
    let null = test_app.call("pool.get_default_SR", [pool]).await;
    assert_eq!(null, Ok(Value::text(NULL_REF)));
}

#[tokio::test]
async fn what_clients_keep_has_a_bound() {
    let test_app = TestApp::new().await;
    let pool = test_app.app.db.read(|view| the(view, &pool::CLASS)).value();
    let of = |count: usize| {
        let members = (0..count).map(|key| (key.to_string(), Value::text("")));
        [pool.clone(), Value::Map(members.collect())]
    };
    test_app.call("pool.set_other_config", of(MAX_MEMBERS)).await.unwrap();
    let refused = test_app.refused("pool.set_other_config", of(MAX_MEMBERS + 1)).await;
    assert_eq!(refused[..2], words(&["VALUE_NOT_SUPPORTED", "other_config"]));
    let more = [pool.clone(), Value::text("more"), Value::text("")];
    assert_eq!(test_app.refused("pool.add_to_other_config", more).await[0], "VALUE_NOT_SUPPORTED");
    let kept = test_app.call("pool.get_other_config", [pool]).await.unwrap();
    assert!(matches!(kept, Value::Map(kept) if kept.len() == MAX_MEMBERS));
}

#[tokio::test]
async fn records_that_are_only_kept() {
    let test_app = TestApp::new().await;
    let given = map(&[
        ("value", Value::text("v")),
        ("uuid", Value::text("mine")),
        ("later", Value::Int(1)),
    ]);
    let made = test_app.made("secret.create", [given]).await;
    let record = test_app.call("secret.get_record", [made.value()]).await.unwrap();
    let Value::Map(record) = record.plain() else { panic!("no record") };
    assert_eq!(record.get("value"), Some(&Value::text("v")));
    assert_ne!(record.get("uuid"), Some(&Value::text("mine")), "only the server gives UUIDs");
    let missing = test_app.refused("secret.create", [map(&[])]).await;
    assert_eq!(missing, ["FIELD_TYPE_ERROR", "value"]);
    test_app.call("secret.destroy", [made.value()]).await.unwrap();
    let gone = test_app.refused("secret.destroy", [made.value()]).await;
    assert_eq!(gone, ["HANDLE_INVALID", "secret", made.as_str()]);
    assert_eq!(test_app.app.db.read(|view| view.count(&secret::CLASS)), 0);
}

#[tokio::test]
async fn what_nobody_carries_out_is_said() {
    let test_app = TestApp::new().await;
    let refused = test_app.refused("host.dmesg", [host_of(&test_app)]).await;
    assert_eq!(refused, ["NOT_IMPLEMENTED", "host.dmesg"]);
}

#[tokio::test]
async fn a_write_waits_for_its_turn_and_a_read_for_nobody() {
    let test_app = TestApp::new().await;
    let network = test_app.app.db.read(|view| the(view, &network::CLASS)).value();
    let mut turns = Vec::new();
    for _ in 0..super::limits::MAX_WRITES {
        turns.push(test_app.app.writes.turn().await.unwrap());
    }
    let write = test_app.call("network.set_name_label", [network.clone(), Value::text("n")]);
    let mut write = std::pin::pin!(write);
    let read = test_app.call("network.get_name_label", [network.clone()]);
    tokio::select! {
        biased;
        _ = &mut write => panic!("there was no turn"),
        name = read => assert_eq!(name, Ok(Value::text("Internal network"))),
    }
    turns.pop();
    write.await.unwrap();
    let name = test_app.call("network.get_name_label", [network]).await;
    assert_eq!(name, Ok(Value::text("n")));
}

#[test]
fn parameters_are_what_the_message_says() {
    let (method, _) = resolve("VM.start").unwrap();
    let given = vec![Value::text("OpaqueRef:1"), Value::Bool(true), Value::Bool(false)];
    let args = Args::read(&method, "VM.start", given).unwrap();
    assert_eq!(args.object(), Ref::from("OpaqueRef:1"));
    assert!(args.flag("start_paused") && !args.flag("force"));
    assert_eq!((args.text("nothing"), args.int("nothing")), ("", 0));
    assert!(args.map("nothing").is_empty() && args.set("nothing").is_empty());
    let (method, _) = resolve("VM.create").unwrap();
    let record = BTreeMap::from([
        ("affinity".to_owned(), Value::text("")),
        ("memory_static_max".to_owned(), Value::text("7")),
    ]);
    let args = Args::read(&method, "VM.create", vec![Value::Map(record)]).unwrap();
    assert_eq!(args.map("args").get("affinity"), Some(&Value::text(NULL_REF)));
    assert_eq!(args.map("args").get("memory_static_max"), Some(&Value::Int(7)));
    let field: xenapi::table::FieldIx = vm::Field::affinity.into();
    assert_eq!(field.class(), "VM");
}

#[tokio::test]
async fn what_cannot_be_stored_has_not_been_done() {
    let test_app = TestApp::new().await;
    let network = test_app.app.db.read(|view| the(view, &network::CLASS)).value();
    let name = async |name: &str| {
        test_app.call("network.set_name_label", [network.clone(), Value::text(name)]).await
    };
    test_app.store.set_room(Some(0));
    assert_eq!(name("n").await.unwrap_err().code, "OUT_OF_SPACE");
    let kept = test_app.call("network.get_name_label", [network.clone()]).await;
    assert_eq!(kept, Ok(Value::text("Internal network")));
    test_app.store.set_room(None);
    name("n").await.unwrap();
    assert_eq!(test_app.call("network.get_name_label", [network]).await, Ok(Value::text("n")));
}

/// A later change may fit where an earlier one did not.
#[tokio::test]
async fn a_call_of_several_changes_is_told_of_each_that_is_not_stored() {
    let test_app = TestApp::new().await;
    let ctx = test_app.ctx_of("root", Role::PoolAdmin, "network.create");
    let make = || ctx.change(|tx| tx.create(&network::CLASS, Vec::new()));
    test_app.store.set_room(Some(0));
    make().unwrap();
    assert_eq!(ctx.stored().await.unwrap_err().code, "OUT_OF_SPACE");
    test_app.store.set_room(None);
    make().unwrap();
    assert_eq!(ctx.stored().await.unwrap_err().code, "OUT_OF_SPACE");
}

#[tokio::test]
async fn a_key_of_a_map_is_set_whether_it_is_there_or_not() {
    let test_app = TestApp::new().await;
    let host = host_of(&test_app);
    let set = |value: &str| [host.clone(), Value::text("slice-weight-control"), Value::text(value)];
    let shown = async || test_app.call("host.get_other_config", [host.clone()]).await;
    for value in ["500", "600"] {
        test_app.call("host.set_in_other_config", set(value)).await.unwrap();
        assert_eq!(shown().await, Ok(map(&[("slice-weight-control", Value::text(value))])));
    }
    let refused = test_app.refused("host.set_in_other_config", set("0")).await;
    assert_eq!(refused[0], "INVALID_VALUE");
    assert_eq!(shown().await, Ok(map(&[("slice-weight-control", Value::text("600"))])), "it stays");
    // Every map that clients write has it.
    for class in xenapi::table::classes() {
        for field in class.fields {
            let of = |verb: &str| resolve(&format!("{}.{verb}{}", class.name, field.name));
            let (adds, sets) = (of("add_to_").is_some(), of("set_in_").is_some());
            let is_map = matches!(field.ty, xenapi::table::Type::Map(..));
            assert!(!is_map || adds == sets, "{}.{}", class.name, field.name);
        }
    }
}
