use std::os::unix::fs::PermissionsExt;

use xenapi::Value;
use xenapi::envelope::{Call, Dialect};

use crate::auth::Users;
use crate::dispatch::dispatch;
use crate::peer::{Origin, Peer};
use crate::tests::app::{TestApp, peer};

/// Creates the password file of a test application.
fn passwords(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    (dir, path)
}

#[tokio::test(start_paused = true)]
async fn root_changes_its_password_and_its_other_sessions_end() {
    let (_dir, path) = passwords("root\nold\n\nann\na\npool-admin\n");
    let test_app = TestApp::with_users(Users::File(path.clone())).await;
    let far = Peer {
        from: Origin::Tcp(([10, 0, 0, 1], 1).into()),
        user_agent: None,
        connection_session: None,
    };
    let log_in = async |from: &Peer, user: &str, password: &str| {
        let params = [user, password].map(Value::text).to_vec();
        let method = "session.login_with_password".to_owned();
        dispatch(&test_app.app, Call { method, params, dialect: Dialect::Xml }, from).await
    };
    let change = async |session: &Value, old: &str, new: &str| {
        let params = vec![session.clone(), Value::text(old), Value::text(new)];
        test_app.raw("session.change_password", params).await.map_err(|error| error.details())
    };
    let (one, other) =
        (log_in(&far, "root", "old").await.unwrap(), log_in(&far, "root", "old").await.unwrap());
    let ann = log_in(&far, "ann", "a").await.unwrap();
    let refused = change(&ann, "old", "new").await.unwrap_err();
    assert_eq!(refused[0], "USER_IS_NOT_LOCAL_SUPERUSER");
    let refused = change(&one, "wrong", "new").await.unwrap_err();
    assert_eq!(refused[..2], ["SESSION_AUTHENTICATION_FAILED", "root"]);
    let refused = change(&one, "old", "").await.unwrap_err();
    assert_eq!(refused[0], "CHANGE_PASSWORD_REJECTED");
    assert_eq!(change(&one, "old", "new").await, Ok(Value::text("")));
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, "root\nnew\n\nann\na\npool-admin\n");
    let uses = async |session: &Value| test_app.raw("VM.get_all", vec![session.clone()]).await;
    assert!(uses(&one).await.is_ok() && uses(&ann).await.is_ok());
    assert_eq!(uses(&other).await.unwrap_err().code, "SESSION_INVALID");
    assert_eq!(
        log_in(&far, "root", "old").await.unwrap_err().code,
        "SESSION_AUTHENTICATION_FAILED"
    );
    // A client on the Unix socket need not know the old password.
    assert_eq!(uses(&test_app.session.value()).await.unwrap_err().code, "SESSION_INVALID");
    let here = log_in(&peer(), "", "").await.unwrap();
    assert_eq!(change(&here, "", "newer").await, Ok(Value::text("")));
    assert_eq!(uses(&one).await.unwrap_err().code, "SESSION_INVALID");
    assert!(log_in(&far, "root", "newer").await.is_ok());
}
