//! Failing datapaths, played by shell scripts, and a real one that serves NICs.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::PathBuf;

use model::nic::NicSpec;
use model::rpc::code;
use tempfile::TempDir;
use testkit::process::find_binary;
use testkit::raw::{Guest, Setup};
use toolstack::ringway_io::{DatapathError, IoProcess};

/// Creates a program `ringway-io` that is a shell script.
fn program(script: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ringway-io");
    testkit::process::write_script(&path, script).unwrap();
    (dir, path)
}

async fn failure(script: &str) -> DatapathError {
    let (dir, path) = program(script);
    let mut process = IoProcess::spawn(&path, &dir.path().join("io.sock"), false).unwrap();
    let error = process.ready().await.unwrap_err();
    let error = process.explain(error).await;
    process.kill().await;
    assert_eq!(process.id(), None);
    error
}

#[tokio::test]
async fn a_death_at_the_start_is_told_with_its_last_words() {
    let error = failure("echo 'no memory for a ring' >&2; exit 3").await;
    let DatapathError::Died { status, tail } = &error else { panic!("{error}") };
    assert_eq!((status.code(), tail.as_str()), (Some(3), "no memory for a ring"));
    assert!(error.to_string().contains("no memory for a ring"), "{error}");
}

#[tokio::test]
async fn a_death_after_readiness_is_told_instead_of_the_missing_socket() {
    let error = failure("echo >&0; echo 'lost the socket' >&2; exit 4").await;
    assert!(matches!(&error, DatapathError::Died { tail, .. } if tail.contains("lost")), "{error}");
}

#[tokio::test]
async fn readiness_without_a_socket_is_told() {
    let error = failure("echo >&0; exec sleep 1000").await;
    assert!(matches!(error, DatapathError::NotThere { .. }), "{error}");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none");
    let error = IoProcess::spawn(&path, &dir.path().join("io.sock"), false).unwrap_err();
    assert!(matches!(error, DatapathError::Start { .. }), "{error}");
}

fn code_of(error: DatapathError) -> i64 {
    let DatapathError::Refused { source, .. } = error else { panic!("{error}") };
    source.code
}

#[tokio::test]
async fn nics_of_a_real_process_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let program = find_binary("ringway-io").unwrap();
    let mut process = IoProcess::spawn(&program, &dir.path().join("io.sock"), false).unwrap();
    let mut client = process.ready().await.unwrap();
    let mac = "02:00:00:00:00:01".parse().unwrap();
    let spec = NicSpec { queues: 2, ..NicSpec::new("n1", dir.path().join("n1"), "lan", mac) };
    let reply = client.nic_attach(&spec).await.unwrap();
    assert_eq!((reply.network.as_str(), reply.mtu, reply.queues), ("lan", 1500, 2));
    assert_eq!(client.nic_attach(&spec).await.unwrap(), reply, "told again");
    let other = NicSpec { queues: 1, ..spec.clone() };
    assert_eq!(code_of(client.nic_attach(&other).await.unwrap_err()), code::WRONG_STATE);
    let setup = Setup { queues: 4, ..Setup::default() };
    let mut guest = Guest::start(&spec.socket, &setup).unwrap();
    let stats = client.stats_of("n1").await.unwrap();
    assert!(stats.nics.len() == 1 && stats.nics[0].connected && stats.nics[0].mac == mac);
    assert_eq!(client.stats().await.unwrap().networks[0].name, "lan");
    client.nic_detach("n1").await.unwrap();
    guest.frontend.connection.wait_closed().unwrap();
    assert_eq!(code_of(client.nic_detach("n1").await.unwrap_err()), code::NO_SUCH_NIC);
    assert!(!spec.socket.exists());
    process.stop(&mut client).await.unwrap();
}
