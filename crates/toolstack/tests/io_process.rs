//! A datapath that fails, as shell scripts play it.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::path::PathBuf;

use tempfile::TempDir;
use toolstack::io::{IoError, IoProcess};

/// A program called `ringway-io` that is a shell script.
fn program(script: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ringway-io");
    testkit::process::write_script(&path, script).unwrap();
    (dir, path)
}

async fn failure(script: &str) -> IoError {
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
    let IoError::Died { status, tail } = &error else { panic!("{error}") };
    assert_eq!((status.code(), tail.as_str()), (Some(3), "no memory for a ring"));
    assert!(error.to_string().contains("no memory for a ring"), "{error}");
}

#[tokio::test]
async fn a_death_after_readiness_is_told_instead_of_the_missing_socket() {
    let error = failure("echo >&0; echo 'lost the socket' >&2; exit 4").await;
    assert!(matches!(&error, IoError::Died { tail, .. } if tail.contains("lost")), "{error}");
}

#[tokio::test]
async fn readiness_without_a_socket_is_told() {
    let error = failure("echo >&0; exec sleep 1000").await;
    assert!(matches!(error, IoError::NotThere { .. }), "{error}");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none");
    let error = IoProcess::spawn(&path, &dir.path().join("io.sock"), false).unwrap_err();
    assert!(matches!(error, IoError::Start { .. }), "{error}");
}
