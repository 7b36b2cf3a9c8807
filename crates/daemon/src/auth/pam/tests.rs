//! Tests with a script as the helper. The tests of the whole daemon cover PAM itself.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::task::spawn_blocking;
use xenapi::table::Role;

use super::*;
use crate::auth::Identity;

/// Creates a client whose helper runs this script. `$1` is the service.
fn helper(script: &str, deadline: Duration) -> (tempfile::TempDir, Pam) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("helper");
    std::fs::write(&program, format!("#!/bin/sh\ncd {}\n{script}\n", dir.path().display()))
        .unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
    (dir, Pam::by(HelperCommand { program, words: Vec::new() }, deadline))
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_line_goes_in_and_a_line_comes_out() {
    let answer = r#"{"Admitted":{"name":"ann@example","role":"read-only"}}"#;
    let script = format!("cat >question\necho \"$1\" >service\necho '{answer}'");
    let (dir, pam) = helper(&script, LONG);
    let from = Some([10, 0, 0, 1].into());
    let verdict = pam.check("ann", "it's \"quoted\"", from).await.unwrap();
    let identity = Identity { name: "ann@example".into(), role: Role::ReadOnly };
    assert_eq!(verdict, AuthOutcome::Admitted(identity, None));
    let question = std::fs::read_to_string(dir.path().join("question")).unwrap();
    let Ok(Question::Login { name, password, from }) = serde_json::from_str(&question) else {
        panic!("{question}")
    };
    assert_eq!((name.as_str(), password.as_str()), ("ann", "it's \"quoted\""));
    assert_eq!(from.as_deref(), Some("10.0.0.1"));
    assert_eq!(std::fs::read_to_string(dir.path().join("service")).unwrap(), "ringway\n");
}

#[tokio::test]
async fn what_is_no_answer_admits_nobody() {
    for (script, expected) in [
        ("exit 1", "without an answer"),
        ("echo nonsense", "without an answer"),
        (r#"echo '{"Admitted":{"name":"ann","role":"king"}}'"#, "without an answer"),
        (r#"echo '"Changed"'"#, "without an answer"),
        (r#"echo '{"Failed":"no module"}'"#, "PAM failed: no module"),
    ] {
        let (_dir, pam) = helper(&format!("cat >/dev/null\n{script}"), LONG);
        let error = pam.check("ann", "secret", None).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{script}: {error}");
    }
    let (_dir, pam) = helper("cat >/dev/null\necho '\"Wrong\"'", LONG);
    assert_eq!(pam.check("ann", "secret", None).await.unwrap(), AuthOutcome::Wrong);
}

#[tokio::test]
async fn some_words_are_not_asked_about() {
    let (dir, pam) = helper("touch asked", LONG);
    let long = "x".repeat(WORD_BYTES_MAX + 1);
    for (name, password) in
        [("", "p"), ("ann", ""), ("ann", "a\0b"), ("an\nn", "p"), (&long, "p"), ("ann", &long)]
    {
        assert_eq!(pam.check(name, password, None).await.unwrap(), AuthOutcome::Wrong);
    }
    assert!(!dir.path().join("asked").exists());
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_is_ended_with_all_that_it_started() {
    let script = "exec 3>alive\necho >&3\nsleep 1000 &\nwait";
    let (dir, pam) = helper(script, ANSWER_DEADLINE);
    let alive = dir.path().join("alive");
    mknodat(CWD, &alive, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    // Paused test time does not advance while this blocking task runs.
    let up = spawn_blocking(move || {
        let mut alive = File::open(alive).unwrap();
        alive.read_exact(&mut [0]).unwrap();
        alive
    });
    let (checked, alive) = tokio::join!(pam.check("ann", "secret", None), up);
    assert!(matches!(checked, Err(PamError::Late(ANSWER_DEADLINE))), "{checked:?}");
    let mut alive = alive.unwrap();
    // The read ends when no process holds the FIFO open for writing.
    spawn_blocking(move || alive.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    let _all_free = pam.places.acquire_many(HELPERS_MAX as u32).await.unwrap();
}

#[tokio::test]
async fn the_places_are_bounded() {
    let (_dir, pam) = helper("echo '\"Wrong\"'", Duration::from_millis(100));
    let held = pam.places.acquire_many(HELPERS_MAX as u32).await.unwrap();
    let error = pam.check("ann", "secret", None).await.unwrap_err();
    assert!(matches!(error, PamError::Busy(_)), "{error}");
    drop(held);
    let unhurried = Pam { deadline: LONG, ..pam };
    assert_eq!(unhurried.check("ann", "secret", None).await.unwrap(), AuthOutcome::Wrong);
}

#[tokio::test]
async fn a_password_is_changed_or_the_reason_is_told() {
    let (_dir, pam) = helper("cat >/dev/null\necho '\"Changed\"'", LONG);
    assert_eq!(pam.change("root", "new").await.unwrap(), None);
    let (_dir, pam) = helper("cat >/dev/null\necho '{\"Rejected\":\"too short\"}'", LONG);
    assert_eq!(pam.change("root", "new").await.unwrap().as_deref(), Some("too short"));
}
