//! Client of `ringway-io` against a server in the test.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::PathBuf;
use std::time::Duration;

use model::nic::{NicSpec, UplinkSpec};
use model::rpc::MAX_LINE_BYTES;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use toolstack::ringway_io::{CALL_DEADLINE, DatapathError, RpcConnection};

/// Server that answers the n-th line with the result of `answer`. An empty answer closes the
/// connection.
struct Fake {
    _dir: TempDir,
    socket: PathBuf,
}

impl Fake {
    fn start(mut answer: impl FnMut(&Value) -> Vec<u8> + Send + 'static) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("io.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (reader, mut writer) = stream.split();
            let mut lines = BufReader::new(reader).lines();
            while let Some(line) = lines.next_line().await.unwrap() {
                let reply = answer(&serde_json::from_str(&line).unwrap());
                if reply.is_empty() || writer.write_all(&reply).await.is_err() {
                    return;
                }
            }
        });
        Self { _dir: dir, socket }
    }

    async fn client(&self) -> RpcConnection {
        RpcConnection::connect(&self.socket).await.unwrap()
    }
}

fn line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

fn result(call: &Value, result: Value) -> Vec<u8> {
    line(&json!({"jsonrpc": "2.0", "id": call["id"], "result": result}))
}

#[tokio::test]
async fn a_call_reaches_the_server_as_json_rpc_and_its_result_comes_back() {
    let fake = Fake::start(|call| {
        assert_eq!(call["jsonrpc"], "2.0");
        result(call, json!([call["method"], call["params"]]))
    });
    let mut client = fake.client().await;
    let reply = client.call("disk.detach", json!({"id": "d1"}), CALL_DEADLINE).await.unwrap();
    assert_eq!(reply, json!(["disk.detach", {"id": "d1"}]));
    let reply = client.call("stats", json!({}), CALL_DEADLINE).await.unwrap();
    assert_eq!(reply, json!(["stats", {}]));
}

#[tokio::test]
async fn nics_go_as_they_are_specified_and_come_back_typed() {
    let mut spec = NicSpec::new("n1", "/s", "lan", "02:00:00:00:00:01".parse().unwrap());
    spec.vlan = Some(7);
    let fake = Fake::start(|call| match call["method"].as_str().unwrap() {
        "nic.attach" => {
            let expected = json!({
                "id": "n1", "socket": "/s", "network": "lan", "mac": "02:00:00:00:00:01",
                "queues": 1, "mq": true, "vlan": 7
            });
            assert_eq!(call["params"], expected);
            result(call, json!({"id": "n1", "network": "lan", "mtu": 1500, "queues": 1}))
        }
        method => {
            assert_eq!(method, "network.uplink");
            assert_eq!(call["params"], json!({"network": "lan", "tap": "t0"}));
            result(call, json!({}))
        }
    });
    let mut client = fake.client().await;
    let reply = client.nic_attach(&spec).await.unwrap();
    assert_eq!((reply.id.as_str(), reply.mtu, reply.queues), ("n1", 1500, 1));
    let uplink = UplinkSpec { network: "lan".into(), tap: Some("t0".into()) };
    client.network_uplink(&uplink).await.unwrap();
}

#[tokio::test]
async fn a_refusal_keeps_the_words_of_the_server() {
    let fake = Fake::start(|call| {
        let error = json!({"code": -32000, "message": "image is locked by pid 7"});
        line(&json!({"jsonrpc": "2.0", "id": call["id"], "error": error}))
    });
    let error = fake.client().await.detach("d1").await.unwrap_err();
    let DatapathError::Refused { what, source } = error else { panic!("{error}") };
    assert_eq!((what.as_str(), source.code), ("disk.detach", -32000));
    assert_eq!(source.to_string(), "image is locked by pid 7");
}

#[tokio::test]
async fn nobody_there_is_told_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let error = RpcConnection::connect(&dir.path().join("none.sock")).await.unwrap_err();
    assert!(matches!(error, DatapathError::NotThere { .. }), "{error}");
    assert!(error.to_string().contains("ringway-io --control"), "{error}");
}

#[tokio::test]
async fn silence_ends_at_the_deadline_and_a_late_answer_is_passed_over() {
    let mut held: Option<Value> = None;
    let fake = Fake::start(move |call| match held.take() {
        None => {
            held = Some(call.clone());
            b" ".to_vec() // leading space of the next line: no answer yet
        }
        Some(first) => [result(&first, json!("late")), result(call, json!("in time"))].concat(),
    });
    let mut client = fake.client().await;
    let error = client.call("stats", json!({}), Duration::from_millis(30)).await.unwrap_err();
    assert!(matches!(error, DatapathError::Late { .. }), "{error}");
    let reply = client.call("stats", json!({}), CALL_DEADLINE).await.unwrap();
    assert_eq!(reply, "in time");
}

#[tokio::test]
async fn a_server_that_dies_is_told() {
    let fake = Fake::start(|_| Vec::new());
    let error = fake.client().await.stats().await.unwrap_err();
    assert!(matches!(error, DatapathError::Broken { .. }), "{error}");
}

#[tokio::test]
async fn garbage_is_told_and_never_taken_for_an_answer() {
    type Answer = fn(&Value) -> Vec<u8>;
    let cases: [(&str, Answer); 5] = [
        ("not JSON", |_| b"HTTP/1.1 400\r\n".to_vec()),
        ("not an object", |_| b"[1]\n".to_vec()),
        ("another id", |_| line(&json!({"jsonrpc": "2.0", "id": 99, "result": 1}))),
        ("an id of text", |_| line(&json!({"jsonrpc": "2.0", "id": "x", "result": 1}))),
        ("not stats", |call| result(call, json!({"pid": "seven"}))),
    ];
    for (name, answer) in cases {
        let fake = Fake::start(answer);
        let error = fake.client().await.stats().await.unwrap_err();
        let reported =
            matches!(error, DatapathError::Broken { .. } | DatapathError::Nonsense { .. });
        assert!(reported, "{name}: {error}");
    }
}

#[tokio::test]
async fn an_endless_line_ends_at_the_bound() {
    let fake = Fake::start(|_| vec![b'x'; MAX_LINE_BYTES + 2]);
    let error = fake.client().await.stats().await.unwrap_err();
    let DatapathError::Broken { source, .. } = error else { panic!("{error}") };
    assert!(source.to_string().contains("more than"), "{source}");
}

#[tokio::test]
async fn after_a_broken_call_the_next_one_connects_anew() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("io.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut client = RpcConnection::connect(&socket).await.unwrap();
    drop(listener.accept().await.unwrap());
    let error = client.call("stats", json!({}), CALL_DEADLINE).await.unwrap_err();
    assert!(matches!(error, DatapathError::Broken { .. }), "{error}");
    let served = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = stream.split();
        let line = BufReader::new(reader).lines().next_line().await.unwrap().unwrap();
        let call: Value = serde_json::from_str(&line).unwrap();
        let reply = json!({"jsonrpc": "2.0", "id": call["id"], "result": 7});
        writer.write_all(format!("{reply}\n").as_bytes()).await.unwrap();
    };
    let (result, ()) = tokio::join!(client.call("stats", json!({}), CALL_DEADLINE), served);
    assert_eq!(result.unwrap(), 7);
}

#[tokio::test]
async fn a_call_cut_off_while_being_sent_makes_the_connection_unusable() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("io.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let mut client = RpcConnection::connect(&socket).await.unwrap();
    // The server does not read, so a large line fills the socket's buffer.
    let (_peer, _) = listener.accept().await.unwrap();
    let large = json!({"text": "x".repeat(2 << 20)});
    let error = client.call("stats", large, Duration::from_millis(30)).await.unwrap_err();
    assert!(matches!(error, DatapathError::Late { .. }), "{error}");
    let error = client.call("stats", json!({}), CALL_DEADLINE).await.unwrap_err();
    assert!(matches!(error, DatapathError::Unusable), "{error}");
}
