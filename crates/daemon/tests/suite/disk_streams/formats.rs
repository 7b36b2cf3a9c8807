//! Disks in every format, whole and as differences.

use std::process::Command;

use super::*;

#[test]
fn a_disk_goes_out_and_comes_back_in_every_format() {
    let mut world = World::new();
    let disk = world.disk();
    let uuid = world.client.record("VDI", &disk).unwrap().text("uuid").to_owned();
    let first = bytes(5);
    let put = world.put(&format!("vdi={disk}"), &first);
    assert_eq!((put.status, put.text().as_str()), (200, ""), "{}", put.head);
    assert!(world.content(&disk) == first);
    let used = world.client.record("VDI", &disk).unwrap().int("physical_utilisation");
    assert!((4096..1 << 20).contains(&used), "zeroes take no space: {used}");
    let other = world.disk();
    for (format, kind) in [
        ("raw", "application/octet-stream"),
        ("vhd", "application/vhd"),
        ("qcow2", "application/x-qemu-disk"),
    ] {
        let task = world.task();
        let image = world.get(&format!("vdi={uuid}&format={format}&task_id={task}"));
        let length = format!("content-length: {}\r\n", image.body.len());
        assert!(image.head.contains(&length) && image.head.contains(kind), "{}", image.head);
        assert!(image.head.contains(&format!("filename=\"{uuid}.{format}\"")), "{}", image.head);
        assert_eq!(world.outcome(&task), ("success".to_owned(), vec![]));
        world.put(&format!("vdi={other}"), &bytes(9));
        let task = world.task();
        let put = world.put(&format!("vdi={other}&format={format}&task_id={task}"), &image.body);
        assert_eq!(put.status, 200, "{}", put.text());
        let record = world.client.record("task", &task).unwrap();
        assert_eq!((record.text("status"), record.float("progress")), ("success", 1.0));
        assert!(world.content(&other) == first, "{format}");
    }
    // A difference to a snapshot, over a copy of the snapshot.
    let snapshot = world.snapshot(&disk);
    let mut second = first.clone();
    second[1 << 20..(1 << 20) + 70_000].fill(8);
    second[4096..8192].fill(0);
    assert_eq!(world.put(&format!("vdi={disk}"), &second).status, 200);
    let delta = world.get(&format!("vdi={disk}&format=vhd&base={snapshot}"));
    assert_eq!(delta.status, 200, "{}", delta.text());
    assert!(world.content(&snapshot) == first, "a snapshot stays as it is");
    for round in 0..2 {
        let put = world.put(&format!("vdi={other}&format=vhd"), &delta.body);
        assert_eq!(put.status, 200, "{}", put.text());
        assert!(world.content(&other) == second, "round {round}");
    }
    let refused = world.get(&format!("vdi={disk}&format=raw&base={snapshot}"));
    assert_eq!(refused.status, 400, "{}", refused.text());
    // The server copies the same difference by itself.
    let third = world.disk();
    let none = xenapi::NULL_REF;
    for (from, base, expected) in [(&*snapshot, none, &first), (&disk, &snapshot, &second)] {
        let args = [from, none, base, &third].map(Value::text);
        assert_eq!(world.made("VDI.copy", &args), third);
        assert!(world.content(&third) == *expected);
    }
    world.call("VDI.destroy", &[Value::text(third.as_str())]);
    // All of it survives the daemon.
    world.daemon.process.kill().unwrap();
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    let again = |world: &mut World, name: &str| world.content(name);
    let found = world.client.records("VDI").unwrap();
    let contents: Vec<_> = found.iter().map(|(disk, _)| again(&mut world, disk)).collect();
    assert_eq!(contents.iter().filter(|content| **content == second).count(), 2);
    assert_eq!(contents.iter().filter(|content| **content == first).count(), 1);
    assert_eq!(world.incomplete(), [""; 0]);
}

/// Python's own HTTP client. `argv`: host and port, session, VDI, file with the content.
const SCRIPT: &str = r#"
import http.client, sys, base64
place, password, vdi, name = sys.argv[1:]
content = open(name, 'rb').read()
def ask(method, path, **more):
    connection = http.client.HTTPConnection(place, timeout=60)
    token = base64.b64encode(('root:' + password).encode()).decode()
    connection.request(method, path, headers={'Authorization': 'Basic ' + token}, **more)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, (answer.status, body)
    return body
ask('PUT', '/import_raw_vdi?vdi=' + vdi, body=content)
assert ask('GET', '/export_raw_vdi?vdi=' + vdi) == content
# Chunks, because nobody says how long a generator is.
vhd = ask('GET', '/export_raw_vdi/?format=vhd&vdi=' + vdi)
ask('PUT', '/import_raw_vdi/?format=vhd&chunked=true&vdi=' + vdi, body=iter([vhd[:70001], vhd[70001:]]),
    encode_chunked=True)
assert ask('GET', '/export_raw_vdi/?vdi=' + vdi) == content
"#;

#[test]
fn python_needs_no_more_than_its_own_client() {
    let mut world = World::new();
    let disk = world.disk();
    let file = world.daemon.dir().join("content");
    write(&file, &bytes(3));
    let url = world.daemon.url().unwrap();
    let password = world.daemon.password().unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", SCRIPT, url.trim_start_matches("http://"), &password, &disk]);
    let output = command.arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut stream = world.connect();
    send(&mut stream, "GET /metrics", "", b"");
    let metrics = answer(&mut stream).text();
    assert!(metrics.contains("ringway_sessions 1\n"), "no session is left: {metrics}");
}
