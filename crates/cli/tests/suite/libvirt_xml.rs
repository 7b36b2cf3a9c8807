//! Tests of `ringway libvirt-xml`: its output matches libvirt's schema, and it refuses bad input.
//! `testkit` tests with libvirtd that machines run with it.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use toolstack::accel::ProbeCache;

fn ringway(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.arg("libvirt-xml").args(arguments);
    command.env_remove("RINGWAY_CONTROL").stdin(Stdio::null()).output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let output = ringway(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks the text with libvirt's own program against its RelaxNG schema.
fn assert_valid(text: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("domain.xml");
    std::fs::write(&file, text).unwrap();
    let output = Command::new("virt-xml-validate").arg(&file).arg("domain").output();
    let output =
        output.expect("virt-xml-validate is there (package libvirt-clients, `make setup`)");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}\n{text}");
}

#[test]
fn whole_machines_are_valid() {
    assert_valid(&printed(&["--no-check", "--domain", "vm1", "/a", "/b,queues=4,boot=1"]));
    // Any characters in a path are preserved.
    assert_valid(&printed(&["--no-check", "--domain", "vm1", "/a> \"b\",,c é.sock"]));
    let file = tempfile::NamedTempFile::new().unwrap();
    let kernel = file.path().to_str().unwrap();
    let direct = ["--kernel", kernel, "--initrd", kernel, "--append", "a=<b> & c"];
    let mut arguments = vec!["--no-check", "--domain", "vm1", "--accel", "tcg", "/a"];
    arguments.extend(direct);
    assert_valid(&printed(&arguments));
}

/// The machine that is printed without `--accel`, and standard error. `result` is that of an
/// earlier trial boot under KVM.
fn machine_after_trial(result: Option<bool>) -> (String, String) {
    let cache = tempfile::tempdir().unwrap();
    if let Some(works) = result {
        let qemu = Command::new("qemu-system-x86_64").arg("--version").output().unwrap().stdout;
        let qemu = String::from_utf8(qemu).unwrap();
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let probe_cache = ProbeCache::at(&cache.path().join("ringway"), boot_id.trim());
        probe_cache.keep(qemu.lines().next().unwrap().trim(), works);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    command.args(["libvirt-xml", "--no-check", "--domain", "vm1", "/a"]);
    let output = command.env("XDG_CACHE_HOME", cache.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn a_machine_gets_kvm_only_if_it_is_not_known_to_fail() {
    let opens = std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok();
    for (result, is_kvm) in [(None, opens), (Some(true), opens), (Some(false), false)] {
        let (machine, said) = machine_after_trial(result);
        let kind = if is_kvm { "<domain type='kvm'>" } else { "<domain type='qemu'>" };
        assert!(machine.contains(kind), "{result:?}: {machine}");
        assert_eq!(said.contains("give --accel kvm"), !is_kvm, "{result:?}: {said}");
    }
    let asked = printed(&["--no-check", "--domain", "vm1", "--accel", "kvm", "/a"]);
    assert!(asked.contains("<domain type='kvm'>"), "{asked}");
}

#[test]
fn pieces_are_valid_where_they_belong() {
    let around = |memory: &str, devices: &str| {
        format!(
            "<domain type='qemu'><name>n</name><memory>1</memory>{memory}<os><type>hvm</type></os>\
             <devices>{devices}</devices></domain>"
        )
    };
    let snippet = printed(&["--no-check", "/a,target=vdc", "/b"]);
    let (memory, disks) = snippet.split_once("<!-- below <devices> -->").unwrap();
    assert_valid(&around(memory, disks));
    assert_valid(&around("", &printed(&["--no-check", "--attach", "/a,target=vdx"])));
}

#[test]
fn sockets_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("d.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    // A relative path becomes absolute, because libvirt has another working directory.
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringway"));
    let output = command.args(["libvirt-xml", "./d.sock"]).current_dir(&dir).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("path='{}'", socket.display())), "{text}");
}

#[test]
fn each_refusal_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("plain"), "").unwrap();
    let long = path(&"x".repeat(108));
    let cases: [(&[&str], &str); 15] = [
        (&[&path("none")], "ringway-blk --socket-path"),
        (&[&path("plain")], "is no socket"),
        (&["--no-check", &long], "a Unix socket allows 107; use a shorter directory"),
        (&["--no-check", "/a", "/a"], "it serves one machine"),
        (&["--no-check", "/a,target=vdb", "/b,target=vdb"], "vdb is given twice"),
        (&["--no-check", "/a,boot=1", "/b,boot=1"], "same place in the boot order"),
        (&["--no-check", "/a,queues=0"], "1 to 256"),
        (&["--no-check", "/a,target=sda"], "vda to vdzz"),
        (&["--no-check", "/a\u{1}b"], "control character"),
        (&["--no-check", "/it's"], "libvirt does not escape"),
        (&["--no-check", "--attach", "/a", "/b"], "one disk at a time"),
        (&["--no-check", "--domain", "a/b", "/a"], "is no name"),
        (&["--no-check", "--domain", "a", "--memory", "1000000001", "/a"], "whole MiB"),
        (&["--no-check", "--domain", "a", "--kernel", "/none", "/a"], "there is no kernel /none"),
        (&["--control", "/none/io.sock", "d1"], "ringway-io --control /none/io.sock"),
    ];
    for (arguments, expected) in cases {
        let output = ringway(arguments);
        let words = String::from_utf8_lossy(&output.stderr);
        // Errors of the host, as opposed to errors of usage.
        let host = ["--socket-path", "is no socket", "no kernel", "--control"];
        let code = if host.iter().any(|one| expected.contains(one)) { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {words}");
        assert!(words.contains(expected), "{arguments:?}: {words}");
        assert!(output.stdout.is_empty(), "{arguments:?}: something was printed");
    }
    for (option, expected) in [("/a,serial=A1", "queues=N, target=vda"), ("a b", "a disk's id")] {
        let output = ringway(&[option]);
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option}: {words}");
        assert!(words.contains(expected), "{option}: {words}");
    }
}

#[test]
fn disks_of_ringway_io_are_found_by_their_ids() {
    crate::common::need_ringway_io();
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("io.sock");
    let mut io = start_io(&control);
    let control = control.to_str().unwrap();
    let socket = dir.path().join("d1.sock");
    let call = format!("socket={}", socket.display());
    let attached = Command::new(env!("CARGO_BIN_EXE_ringway"))
        .args(["io", "--control", control, "disk.attach", "id=d1", &call])
        .args(["backend.null=1M", "queues=3"])
        .output()
        .unwrap();
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    let text = printed(&["--control", control, "d1"]);
    assert!(text.contains("queues='3'"), "{text}");
    assert!(text.contains(&format!("path='{}'", socket.display())), "{text}");
    let attached = Command::new(env!("CARGO_BIN_EXE_ringway"))
        .args(["io", "--control", control, "disk.attach", "id=d0", "backend.null=1M"])
        .output()
        .unwrap();
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    for (disk, expected) in [
        ("d0", "disk \"d0\" has no socket, so no machine can use it"),
        ("d2", "it has d0, d1"),
        ("d1,queues=4", "offers 3 queues, 4 were"),
    ] {
        let output = ringway(&["--control", control, disk]);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && words.contains(expected), "{disk}: {words}");
    }
    io.kill().unwrap();
    io.wait().unwrap();
}

/// Starts a `ringway-io` that accepts calls.
fn start_io(control: &Path) -> std::process::Child {
    use std::io::Read;
    let program = Path::new(crate::common::RINGWAY).with_file_name("ringway-io");
    let mut io = Command::new(program)
        .arg("--control")
        .arg(control)
        .args(["--ready-fd", "1", "--die-with-parent"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = [0];
    io.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    io
}
