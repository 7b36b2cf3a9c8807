use std::os::unix::fs::PermissionsExt;

use xenapi::table::Role;

use super::*;
use crate::auth::ROOT;

fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(OWNER)).unwrap();
    (dir, path)
}

#[test]
fn it_is_made_once_for_root() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("password");
    assert!(make(&path, [0xa5; 16]).unwrap());
    assert!(!make(&path, [0; 16]).unwrap());
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, format!("root\n{}\n", "a5".repeat(16)));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, OWNER);
    let root = check(&path, "root", &"a5".repeat(16)).unwrap().unwrap();
    assert_eq!((root.name.as_str(), root.role), (ROOT, Role::PoolAdmin));
    assert_eq!(check(&path, "root", "a5").unwrap(), None);
    assert_eq!(check(&path, "root", "").unwrap(), None);
}

#[test]
fn users_have_roles() {
    let (_dir, path) = file("root\nr\n\n\nwatcher\na: password\nread-only\n");
    let watcher = check(&path, "watcher", "a: password").unwrap().unwrap();
    assert_eq!(watcher.role, Role::ReadOnly);
    for (name, password) in [("watcher", "r"), ("root", "a: password"), ("nobody", "r")] {
        assert_eq!(check(&path, name, password).unwrap(), None);
    }
    let long = "r".repeat(WORD_BYTES_MAX + 1);
    assert_eq!(check(&path, "root", &long).unwrap(), None);
}

#[test]
fn what_is_wrong_is_told_by_line() {
    for (text, line, why) in [
        ("root\n", 2, "a password"),
        ("root\nr\n\nuser\np\n", 6, "a role"),
        ("user\np\nking\n", 3, "a role"),
        ("root\nr\nread-only\n", 1, "root as pool-admin"),
        ("a\np\nread-only\nb\np\nread-only\n", 4, "an empty line"),
        ("a\np\nread-only\n\na\nq\nread-only\n", 5, "a name that is not used above"),
    ] {
        let (_dir, path) = file(text);
        let error = check(&path, "root", "r").unwrap_err().to_string();
        assert!(error.contains(&format!("at line {line}: expected {why}")), "{text:?}: {error}");
    }
}

#[test]
fn others_must_not_read_it() {
    let (_dir, path) = file("root\nr\n");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let error = check(&path, "root", "r").unwrap_err().to_string();
    assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
    assert!(usable(&path).is_err());
}

#[test]
fn equal_is_equal_in_length_too() {
    assert!(same(b"", b"") && same(b"ab", b"ab"));
    assert!(!same(b"ab", b"ab\0") && !same(b"ab", b"a") && !same(b"", b"\0"));
}

#[test]
fn a_password_is_changed_and_nothing_else() {
    let text = "root\nr\n\n\nwatcher\nr\nread-only\n\nother\no\nvm-admin";
    let (dir, path) = file(text);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(change(&link, "watcher", "a new one").unwrap());
    let now = fs::read_to_string(&path).unwrap();
    assert_eq!(now, text.replace("watcher\nr", "watcher\na new one") + "\n");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, OWNER);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(!change(&path, "nobody", "x").unwrap());
    assert_eq!(fs::read_to_string(&path).unwrap(), now);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no draft stays");
}

#[test]
fn a_password_must_fit_a_line() {
    assert_eq!(fits("correct horse"), Ok(()));
    for bad in ["", "a\nb", "a\u{7f}", &"x".repeat(WORD_BYTES_MAX + 1)] {
        assert!(fits(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_stamp_is_of_name_password_and_role() {
    let keys = RandomState::new();
    let (_dir, path) = file("root\nr\n\nwatcher\nw\nread-only\n");
    let stamp = |name: &str, password: &str, role| {
        CredentialStamp::of(&keys, &Identity { name: name.to_owned(), role }, password)
    };
    let all = stamps(&path, &keys).unwrap();
    assert_eq!(all.len(), 2);
    assert!(all.contains(&stamp("watcher", "w", Role::ReadOnly)));
    for other in [
        stamp("watcher", "r", Role::ReadOnly),
        stamp("watcher", "w", Role::VmAdmin),
        stamp("root", "w", Role::ReadOnly),
    ] {
        assert!(!all.contains(&other));
    }
}
