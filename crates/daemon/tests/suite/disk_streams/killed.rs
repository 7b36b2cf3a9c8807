//! Transfers whose `ringway-io` dies.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

impl World {
    /// Kills all processes of the storage's `ringway-io`, and returns their number.
    fn kill_ringway_io(&self) -> usize {
        let started = self.daemon.started().into_iter();
        let is_it = |words: &str| words.contains("ringway-io") && !words.contains("/networks/");
        let io = started.filter(|(_, words)| is_it(words));
        io.map(|(pid, _)| {
            let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            // The keeper ends a worker, too.
            let _gone = kill_process(pid, Signal::KILL);
        })
        .count()
    }
}

#[test]
fn an_import_fails_and_the_disk_is_as_it_was() {
    let mut world = World::new();
    let (disk, content, new) = (world.disk(), bytes(4), bytes(6));
    assert_eq!(world.put(&format!("vdi={disk}"), &content).status, 200);
    for format in ["raw", "qcow2"] {
        let image = world.get(&format!("vdi={disk}&format={format}")).body;
        let task = world.task();
        let mut stream = world.connect();
        let line = format!("PUT /import_raw_vdi/?vdi={disk}&format={format}&task_id={task}");
        let length = format!("Content-Length: {}\r\n", image.len());
        send(&mut stream, &line, &length, &image[..image.len() / 2]);
        while world.client.record("task", &task).unwrap().float("progress") == 0.0 {
            std::thread::yield_now();
        }
        assert!(world.kill_ringway_io() > 0);
        let error = world.failed(&task);
        assert_eq!(error[0], "SR_BACKEND_FAILURE", "{error:?}");
        assert_eq!(answer(&mut stream).status, 500);
        assert_eq!(world.incomplete(), [""; 0]);
        assert!(world.content(&disk) == content, "{format}");
    }
    assert_eq!(world.put(&format!("vdi={disk}"), &new).status, 200);
    assert!(world.content(&disk) == new);
}

#[test]
fn an_export_is_cut_and_its_task_fails() {
    let mut world = World::new();
    let (disk, content) = (world.disk(), bytes(4));
    assert_eq!(world.put(&format!("vdi={disk}"), &content).status, 200);
    let task = world.task();
    let mut stream = world.connect();
    send(&mut stream, &format!("GET /export_raw_vdi/?vdi={disk}&task_id={task}"), "", b"");
    let mut status = [0; 15];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200 OK");
    // The sockets take less than the disk has.
    assert!(world.kill_ringway_io() > 0);
    let mut rest = Vec::new();
    let _reset = stream.read_to_end(&mut rest);
    assert!(rest.len() < SIZE, "{}", rest.len());
    let error = world.failed(&task);
    assert_eq!(error[0], "SR_BACKEND_FAILURE", "{error:?}");
    let again = world.get(&format!("vdi={disk}"));
    assert!(again.body == content, "{}", again.text());
}

/// A call that needs a worker waits for the next one.
#[test]
fn right_after_a_kill_every_call_works() {
    let mut world = World::new();
    let (disk, into, content) = (world.disk(), world.disk(), bytes(4));
    assert_eq!(world.put(&format!("vdi={disk}"), &content).status, 200);
    let sr = Value::text(&world.sr);
    for turn in 0..testkit::rounds(2, 30) {
        for call in ["export", "import", "create", "snapshot", "copy", "copy into"] {
            assert!(world.kill_ringway_io() > 0, "{call} {turn}");
            let named = Value::text(&disk);
            match call {
                "export" => assert!(world.content(&disk) == content, "{turn}"),
                "import" => {
                    let put = world.put(&format!("vdi={disk}"), &content);
                    assert_eq!(put.status, 200, "{turn}: {}", put.text());
                }
                "create" => drop(world.disk_of("vhd")),
                "snapshot" => drop(world.snapshot(&disk)),
                "copy" => {
                    let copy = world.made("VDI.copy", &[named, sr.clone()]);
                    assert!(world.content(&copy) == content, "{turn}");
                }
                _ => {
                    let null = Value::text("OpaqueRef:NULL");
                    let params = [named, sr.clone(), null, Value::text(&into)];
                    assert_eq!(world.made("VDI.copy", &params), into);
                    assert!(world.content(&into) == content, "{turn}");
                }
            }
        }
    }
    assert!(world.content(&disk) == content);
}
