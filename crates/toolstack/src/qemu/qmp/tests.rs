//! Tests of the protocol against a scripted QEMU.

use super::*;
use tokio::io::AsyncWriteExt;

const GREETING: &[u8] = b"{\"QMP\":{\"version\":{},\"capabilities\":[]}}\r\n";

/// Creates a QEMU that answers each command with the output of `script`.
async fn scripted(
    mut script: impl FnMut(&Value) -> String + Send + 'static,
) -> (Result<Qmp, QemuError>, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = tokio::spawn(async move {
        let (reader, mut writer) = theirs.into_split();
        writer.write_all(GREETING).await.unwrap();
        let mut lines = JsonLines::new(reader, 1 << 20);
        while let Ok(command) = lines.next_json().await {
            let answer = script(&command);
            writer.write_all(answer.as_bytes()).await.unwrap();
            if answer.ends_with("BYE") {
                return;
            }
        }
    });
    (Qmp::handshake(ours).await.map(|(qmp, _)| qmp), server)
}

fn done(command: &Value) -> String {
    format!("{{\"return\":{{}},\"id\":{}}}\n", command["id"])
}

#[tokio::test]
async fn commands_are_answered_by_id_whatever_the_order() {
    let mut first = None;
    let (qmp, _server) = scripted(move |command| match command["execute"].as_str().unwrap() {
        "first" => {
            first = Some(command["id"].clone());
            String::new()
        }
        "second" => format!(
            "{{\"return\":2,\"id\":{}}}\n{{\"return\":1,\"id\":{}}}\n",
            command["id"],
            first.clone().unwrap()
        ),
        _ => done(command),
    })
    .await;
    let qmp = qmp.unwrap();
    let (one, two) = tokio::join!(
        qmp.execute("first", Value::Null, COMMAND_DEADLINE),
        qmp.execute("second", json!({"a": 1}), COMMAND_DEADLINE),
    );
    assert_eq!((one.unwrap(), two.unwrap()), (json!(1), json!(2)));
}

#[tokio::test]
async fn events_between_answers_reach_who_listens() {
    let (qmp, _server) = scripted(|command| {
        let event = "{\"event\":\"SHUTDOWN\",\"data\":{\"guest\":true}}\n";
        format!("{event}{}", done(command))
    })
    .await;
    let qmp = qmp.unwrap();
    let mut events = qmp.events();
    qmp.execute("stop", Value::Null, COMMAND_DEADLINE).await.unwrap();
    let event = events.recv().await.unwrap();
    assert_eq!((event.name.as_str(), event.data), ("SHUTDOWN", json!({"guest": true})));
}

#[tokio::test]
async fn a_refusal_carries_the_words_of_qemu() {
    let (qmp, _server) = scripted(|command| match command["execute"].as_str().unwrap() {
        "qmp_capabilities" => done(command),
        _ => format!("{{\"error\":{{\"class\":\"X\",\"desc\":\"no way\"}},\"id\":{}}}\n", {
            &command["id"]
        }),
    })
    .await;
    let error = qmp.unwrap().execute("cont", Value::Null, COMMAND_DEADLINE).await.unwrap_err();
    assert_eq!(error.to_string(), "QEMU refused cont: no way");
}

#[tokio::test]
async fn a_closed_connection_ends_every_wait() {
    let (qmp, _server) = scripted(|command| match command["execute"].as_str().unwrap() {
        "qmp_capabilities" => done(command),
        _ => "BYE".into(),
    })
    .await;
    let qmp = qmp.unwrap();
    assert!(!qmp.is_closed());
    let error = qmp.execute("cont", Value::Null, COMMAND_DEADLINE).await.unwrap_err();
    assert!(matches!(error, QemuError::Closed), "{error}");
    qmp.closed().await;
    assert!(qmp.is_closed());
    let error = qmp.execute("cont", Value::Null, COMMAND_DEADLINE).await.unwrap_err();
    assert!(matches!(error, QemuError::Closed), "{error}");
}

#[tokio::test]
async fn silence_ends_at_the_deadline() {
    let (qmp, _server) = scripted(|command| match command["execute"].as_str().unwrap() {
        "qmp_capabilities" => done(command),
        _ => String::new(),
    })
    .await;
    let qmp = qmp.unwrap();
    let error = qmp.execute("cont", Value::Null, Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, QemuError::Late { .. }), "{error}");
    assert!(lock(&qmp.pending).is_empty());
}

#[tokio::test]
async fn something_else_than_qemu_is_told() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"{\"hello\":1}\n").await.unwrap();
    let error = Qmp::handshake(ours).await.unwrap_err();
    assert!(matches!(error, QemuError::NotQemu(_)), "{error}");
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"SSH-2.0\n").await.unwrap();
    let error = Qmp::handshake(ours).await.unwrap_err();
    assert!(matches!(error, QemuError::Broken(_)), "{error}");
}

#[test]
fn a_qemu_that_can_reads_ahead() {
    let greeting = |capabilities: Value| json!({ "QMP": { "capabilities": capabilities } });
    assert_eq!(wanted(&greeting(json!(["oob"]))), json!({ "enable": ["oob"] }));
    for other in [json!([]), json!(["new"]), json!("oob"), Value::Null] {
        assert_eq!(wanted(&greeting(other)), Value::Null);
    }
}
