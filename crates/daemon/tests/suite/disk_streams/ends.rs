//! Transfers that do not come to their end.

use testkit::in_namespace::in_little_room;

use super::*;

#[test]
fn an_import_that_ends_early_leaves_the_disk_as_it_was() {
    let mut world = World::new();
    let (disk, content) = (world.disk(), bytes(4));
    assert_eq!(world.put(&format!("vdi={disk}"), &content).status, 200);
    let new = bytes(6);
    let image = world.get(&format!("vdi={disk}&format=vhd")).body;
    let qcow2 = world.get(&format!("vdi={disk}&format=qcow2")).body;
    let begin = |world: &mut World, format: &str, image: &[u8]| {
        let task = world.task();
        let mut stream = world.connect();
        let line = format!("PUT /import_raw_vdi/?vdi={disk}&format={format}&task_id={task}");
        let length = format!("Content-Length: {}\r\n", image.len());
        send(&mut stream, &line, &length, &image[..image.len() - 4096]);
        while world.client.record("task", &task).unwrap().float("progress") == 0.0 {
            std::thread::yield_now();
        }
        (task, stream)
    };
    for (format, image) in [("raw", &new), ("vhd", &image), ("qcow2", &qcow2)] {
        // Cut.
        let (task, stream) = begin(&mut world, format, image);
        drop(stream);
        assert_eq!(world.failed(&task), ["IMPORT_ERROR_PREMATURE_EOF"], "{format}");
        // Cancelled. Meanwhile the disk cannot become read-only.
        let (task, mut stream) = begin(&mut world, format, image);
        let read_only = [Value::text(disk.as_str()), Value::Bool(true)];
        let refused = world.client.call("VDI.set_read_only", &read_only).unwrap_err();
        assert!(refused.to_string().contains("VDI_IN_USE"), "{refused}");
        world.call("task.cancel", &[Value::text(task.as_str())]);
        assert_eq!(world.failed(&task), ["TASK_CANCELLED", &task]);
        assert_eq!(answer(&mut stream).status, 500);
    }
    // Wrong sizes are known before a byte is stored.
    for (query, image, why) in [
        ("", &new[..4096], "has 4096 bytes"),
        ("", &[&new[..], &[0]].concat(), "has 4194305 bytes"),
        ("&format=qcow2", &new, "not a qcow2 image"),
    ] {
        let task = world.task();
        let put = world.put(&format!("vdi={disk}{query}&task_id={task}"), image);
        assert_eq!(put.status, 400, "{}", put.text());
        let error = world.failed(&task);
        assert!(error[0] == "IMPORT_ERROR" && error[1].contains(why), "{error:?}");
    }
    assert!(world.content(&disk) == content);
    assert_eq!(world.incomplete(), [""; 0]);
    // The daemon dies, and the import with it.
    let (_, _stream) = begin(&mut world, "raw", &new);
    world.daemon.process.kill().unwrap();
    world.daemon.start_again().unwrap();
    world.client = world.daemon.client().unwrap();
    let found = world.client.records("VDI").unwrap();
    assert_eq!(found.len(), 1);
    assert!(world.content(&found[0].0) == content);
}

#[test]
fn an_export_that_is_cancelled_is_cut() {
    let mut world = World::new();
    let disk = world.disk();
    let task = world.task();
    let mut stream = world.connect();
    let line = format!("GET /export_raw_vdi/?vdi={disk}&task_id={task}");
    send(&mut stream, &line, "", b"");
    // The socket takes less than the disk has.
    while world.client.record("task", &task).unwrap().float("progress") == 0.0 {
        std::thread::yield_now();
    }
    world.call("task.cancel", &[Value::text(task.as_str())]);
    assert_eq!(world.failed(&task), ["TASK_CANCELLED", &task]);
    let cut = answer(&mut stream);
    assert!(cut.status == 200 && cut.body.len() < SIZE, "{}", cut.body.len());
    // A client that goes away cancels its export, too, and the disk is free.
    let task = world.task();
    let mut stream = world.connect();
    send(&mut stream, &format!("GET /export_raw_vdi/?vdi={disk}&task_id={task}"), "", b"");
    stream.read_exact(&mut [0; 15]).unwrap();
    drop(stream);
    assert_eq!(world.failed(&task), ["TASK_CANCELLED", &task]);
    world.call("VDI.destroy", &[Value::text(disk.as_str())]);
}

const FULL: &str = concat!(module_path!(), "::a_full_storage_keeps_what_it_had");

#[test]
fn a_full_storage_keeps_what_it_had() {
    in_little_room(FULL, 6, inside_little_room).unwrap();
}

fn inside_little_room(dir: &Path) {
    let mut world = World::new();
    world.use_sr_at(dir.join("sr"));
    let disk = world.disk();
    // Two disks of 4 MiB do not fit, and an import needs the second.
    let content = vec![7; SIZE];
    assert_eq!(world.put(&format!("vdi={disk}"), &content).status, 200);
    for format in ["raw", "qcow2"] {
        let image = world.get(&format!("vdi={disk}&format={format}")).body;
        let task = world.task();
        let put = world.put(&format!("vdi={disk}&format={format}&task_id={task}"), &image);
        assert_eq!(put.status, 500, "{}", put.text());
        let error = world.failed(&task);
        assert!(error[0] == "SR_BACKEND_FAILURE", "{error:?}");
        assert!(error.concat().contains("No space left"), "{error:?}");
    }
    assert!(world.content(&disk) == content);
    assert_eq!(world.incomplete(), [""; 0]);
}

/// All of it is sent before the daemon looks.
#[test]
fn a_small_disk_goes_out_each_time() {
    let mut world = World::new();
    let disk = world.disk_of_size("raw", 4096);
    assert_eq!(world.put(&format!("vdi={disk}"), &[7; 4096]).status, 200);
    for _ in 0..50 {
        assert!(world.content(&disk) == [7; 4096]);
    }
}
