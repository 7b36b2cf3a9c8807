//! Who may, and when.

use super::*;

/// A user who may not read disks, besides root.
const USERS: &str = "root\nr\npool-admin\n\nop\np\nvm-operator\n";

#[test]
fn only_those_who_may_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let users = dir.path().join("users");
    write(&users, USERS.as_bytes());
    std::fs::set_permissions(&users, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut world = World::with(&["--password-file", users.to_str().unwrap()]);
    let disk = world.disk();
    let url = world.daemon.url().unwrap();
    let place = url.trim_start_matches("http://").to_owned();
    let ask = |query: &str, headers: &str| {
        let mut stream = std::net::TcpStream::connect(&place).unwrap();
        send(&mut stream, &format!("GET /export_raw_vdi?vdi={disk}{query}"), headers, b"");
        answer(&mut stream)
    };
    let session = world.client.session().unwrap().to_owned();
    let basic = |text: &str| format!("Authorization: Basic {text}\r\n");
    for (query, headers, status) in [
        ("", String::new(), 401),
        ("&session_id=OpaqueRef:none", String::new(), 401),
        (&format!("&session_id={}", session.replace(':', "%3A")), String::new(), 200),
        ("", format!("Cookie: session_id={session}\r\n"), 200),
        ("", basic("cm9vdDpy"), 200),
        // `op`
        ("", basic("b3A6cA=="), 403),
    ] {
        let answer = ask(query, &headers);
        assert_eq!(answer.status, status, "{query} {headers}: {}", answer.text());
        assert_eq!(status == 401, answer.head.contains("www-authenticate: basic"));
    }
    let tasks = world.client.records("task").unwrap();
    assert!(tasks.iter().all(|(_, task)| task.text("status") == "success"));
    for (line, status) in [
        ("POST /import_raw_vdi/", 405),
        ("PUT /export_raw_vdi/", 405),
        ("GET /export_raw_vdi", 400),
        ("GET /export_raw_vdi?vdi=OpaqueRef:none", 404),
        ("GET /export_raw_vdi?vdi=../etc", 400),
    ] {
        let mut stream = world.connect();
        send(&mut stream, line, "Content-Length: 0\r\n", b"");
        assert_eq!(answer(&mut stream).status, status, "{line}");
    }
    let zip = world.get(&format!("vdi={disk}&format=zip"));
    assert_eq!(zip.status, 400, "{}", zip.text());
}

#[test]
fn a_disk_has_one_import_and_no_export_beside_it() {
    let mut world = World::new();
    let disk = world.disk();
    let (task, content) = (world.task(), bytes(4));
    let mut first = world.connect();
    let head = format!("Content-Length: {SIZE}\r\n");
    let line = format!("PUT /import_raw_vdi/?vdi={disk}&task_id={task}");
    send(&mut first, &line, &head, &content[..100_000]);
    // The import has begun when its bytes show.
    while world.client.record("task", &task).unwrap().float("progress") == 0.0 {
        std::thread::yield_now();
    }
    let second = world.put(&format!("vdi={disk}"), &content);
    assert_eq!(second.status, 409, "{}", second.text());
    assert!(second.text().starts_with("OTHER_OPERATION_IN_PROGRESS, VDI"), "{}", second.text());
    // The task belongs to this import alone.
    let third = world.put(&format!("vdi={disk}&task_id={task}"), &content);
    assert_eq!(third.status, 409, "{}", third.text());
    first.write_all(&content[100_000..]).unwrap();
    assert_eq!(answer(&mut first).status, 200);
    assert!(world.content(&disk) == content);
    // Snapshots are exported, and never written.
    let snapshot = world.snapshot(&disk);
    let put = world.put(&format!("vdi={snapshot}"), &content);
    assert_eq!((put.status, put.text().starts_with("VDI_READONLY")), (409, true));
    assert!(world.content(&snapshot) == content);
}

#[test]
fn what_looks_for_a_redirection_changes_nothing() {
    let mut world = World::new();
    let (disk, content) = (world.disk(), bytes(4));
    assert_eq!(world.put(&format!("vdi={disk}"), &content).status, 200);
    let tasks = world.client.records("task").unwrap().len();
    let line = format!("PUT /import_raw_vdi/?format=vhd&vdi={disk}");
    let unknown = "Content-Length: 1125899906842624\r\n";
    for headers in ["Content-Length: 0\r\n", unknown] {
        let mut stream = world.connect();
        send(&mut stream, &line, headers, b"");
        let mut head = [0; 15];
        stream.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 OK");
    }
    assert_eq!(world.client.records("task").unwrap().len(), tasks);
    assert!(world.content(&disk) == content);
    // A stream without a known length ends with its image.
    let image = world.get(&format!("vdi={disk}&format=vhd")).body;
    assert_eq!(world.put(&format!("vdi={disk}"), &bytes(7)).status, 200);
    let task = world.task();
    let mut stream = world.connect();
    send(&mut stream, &format!("{line}&task_id={task}"), unknown, &image);
    assert_eq!(answer(&mut stream).status, 200);
    assert!(world.content(&disk) == content);
    // A client that waits for a word gets it.
    let mut stream = world.connect();
    let headers = format!("Expect: 100-continue\r\nContent-Length: {}\r\n", image.len());
    send(&mut stream, &line, &headers, b"");
    let mut word = [0; 25];
    stream.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&image).unwrap();
    assert_eq!(answer(&mut stream).status, 200);
}
