//! Domains of Debian's libvirt on Ringway's disks, driven by `virsh` with the XML that
//! `ringway libvirt-xml` prints: boot, plug and unplug, resize, kill and restart of the backend,
//! shutdown.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use testkit::boot_sector::bootable;
use testkit::guest::artifacts;
use testkit::libvirt::{APPEND, Domain, Libvirt};
use testkit::process::{Process, RingwayIo};
use testkit::raw::guest::wait_readable;
use testkit::rounds;

/// Far longer than any boot and pass of fio, also when several guests share two busy cores.
const DEADLINE: Duration = Duration::from_secs(240);
const MIB: u64 = 1 << 20;

/// Access to the socket: libvirt's QEMU runs as a user of its own, in this group.
const ACCESS: [&str; 2] = ["socket_group=kvm", "socket_mode=660"];

/// Attaches the image `id.raw` as disk `id` with serial `ID`.
fn attach(io: &RingwayIo, id: &str, more: &[&str]) {
    let serial = format!("serial={}", id.to_uppercase());
    let image = io.dir().join(format!("{id}.raw"));
    io.attach(id, &image, &[&[&serial[..]], &ACCESS[..], more].concat()).unwrap();
}

fn fresh_image(io: &RingwayIo, id: &str, mebibytes: u64) {
    let image = io.dir().join(format!("{id}.raw"));
    File::create(&image).unwrap().set_len(mebibytes * MIB).unwrap();
}

/// Returns the XML of a whole domain that boots the test guest.
fn xml(io: &RingwayIo, name: &str, disks: &[&str]) -> String {
    // Its QEMU does not run as root, and may not be able to enter the repository's folder.
    let guest = artifacts().unwrap();
    let [kernel, initrd] = [guest.kernel, guest.initramfs].map(|from| {
        let to = io.dir().join(from.file_name().unwrap());
        std::fs::copy(&from, &to).unwrap();
        to.display().to_string()
    });
    let mut words = vec!["libvirt-xml", "--domain", name, "--memory", "256M", "--vcpus", "2"];
    words.extend(["--accel", "tcg", "--kernel", &kernel, "--initrd", &initrd]);
    words.extend(["--append", APPEND]);
    words.extend(disks);
    io.ringway(&words).unwrap()
}

fn wait(domain: &mut Domain<'_>, text: &str) {
    domain.wait_for(text, DEADLINE).unwrap();
}

/// Polls until virsh shows an expected state.
fn until(what: &str, mut there: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !there() {
        assert!(Instant::now() < end, "{what} did not come");
        // virsh has no command that waits for this.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Disks are plugged, grow, are unplugged, and end with the domain.
#[test]
fn disks_are_plugged_resized_and_unplugged() {
    let libvirt = Libvirt::start().unwrap();
    let io = RingwayIo::start(libvirt.dir(), &[]).unwrap();
    fresh_image(&io, "d1", 16);
    fresh_image(&io, "d2", 8);
    attach(&io, "d1", &["queues=2"]);
    attach(&io, "d2", &[]);
    let script = "
        d1=$(disk D1); echo d1 $(blockdev --getsize64 $d1) $(ls /sys/block/${d1#/dev/}/mq | wc -l)
        echo boot | dd of=$d1 bs=4k count=1 conv=sync,fsync 2>/dev/null
        read go </dev/console
        d2=$(disk D2); echo plugged $(blockdev --getsize64 $d2)
        echo plug | dd of=$d2 bs=4k count=1 conv=sync,fsync 2>/dev/null; echo written
        until [ $(blockdev --getsize64 $d2) = 33554432 ]; do sleep 0.1; done; echo grown
        dd if=/dev/zero of=$d2 bs=1M seek=31 count=1 conv=fsync 2>/dev/null && echo wrote the new end
        while [ -e $d2 ]; do sleep 0.1; done; echo unplugged
        sleep 1000";
    let xml = xml(&io, "life", &["d1"]);
    let mut domain = libvirt.boot("life", &xml, script).unwrap();
    wait(&mut domain, "d1 16777216 2\n");

    let device = io.ringway(&["libvirt-xml", "--attach", "d2,target=vdb"]).unwrap();
    let device = libvirt.file("d2.xml", device).unwrap();
    libvirt.virsh(&["attach-device", "life", &device, "--live"]).unwrap();
    domain.type_in("go\n").unwrap();
    wait(&mut domain, "plugged 8388608\n");
    wait(&mut domain, "written\n");
    io.ringway(&["io", "disk.resize", "id=d2", "size=32M"]).unwrap();
    wait(&mut domain, "grown\n");
    wait(&mut domain, "wrote the new end\n");
    libvirt.virsh(&["detach-device", "life", &device, "--live"]).unwrap();
    wait(&mut domain, "unplugged\n");
    until("the unplugged disk's end in libvirt", || {
        !libvirt.virsh(&["domblklist", "life"]).unwrap().contains("d2.sock")
    });

    libvirt.virsh(&["shutdown", "life"]).unwrap();
    assert_eq!(domain.finish(DEADLINE).unwrap().code, 143);
    until("the machine's end", || {
        libvirt.virsh(&["domstate", "life"]).unwrap().trim() == "shut off"
    });
    io.ringway(&["io", "disk.detach", "id=d1"]).unwrap();
    let content = |id: &str| std::fs::read(io.dir().join(format!("{id}.raw"))).unwrap();
    assert!(content("d1").starts_with(b"boot\n") && content("d2").starts_with(b"plug\n"));
}

/// The worker is killed and replaced under fio.
#[test]
fn a_killed_backend_is_a_pause_for_a_machine_of_libvirt() {
    let libvirt = Libvirt::start().unwrap();
    let mut io = RingwayIo::start(libvirt.dir(), &[]).unwrap();
    fresh_image(&io, "d1", 8);
    attach(&io, "d1", &["queues=2"]);
    let script = "
        d1=$(disk D1)
        (read stop </dev/console; touch /tmp/stop) &
        n=0
        while [ ! -e /tmp/stop ]; do
            n=$((n + 1))
            fio --name=pass --filename=$d1 --rw=randwrite --bs=4k --size=8M --randseed=$n \\
                --verify=crc32c --verify_fatal=1 --verify_state_save=0 --direct=1 \\
                --ioengine=libaio --iodepth=16 --thread --eta=never --output=/tmp/log || exit 1
            echo pass $n
        done
        dmesg | grep -i 'I/O error' && exit 2
        exit 0";
    let xml = xml(&io, "fio", &["d1"]);
    let mut domain = libvirt.boot("fio", &xml, script).unwrap();
    wait(&mut domain, "pass 1\n");
    for _ in 0..rounds(2, 20) {
        io.kill_worker().unwrap();
        domain.skip();
        wait(&mut domain, "pass ");
    }
    domain.type_in("stop\n").unwrap();
    let outcome = domain.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
}

/// libvirt has no deadline for a missing disk. The domain starts when the disk exists.
#[test]
fn a_machine_that_is_started_before_its_disk_waits_for_it() {
    let libvirt = Libvirt::start().unwrap();
    let io = RingwayIo::start(libvirt.dir(), &[]).unwrap();
    fresh_image(&io, "d1", 1);
    let socket = io.socket("d1").display().to_string();
    let words = ["libvirt-xml", "--no-check", "--domain", "early", "--accel", "tcg"];
    let xml = io.ringway(&[&words[..], &["--memory", "64M", &socket]].concat()).unwrap();
    libvirt.define(&xml).unwrap();
    std::thread::scope(|scope| {
        let start = scope.spawn(|| libvirt.virsh(&["start", "early"]));
        until("QEMU", || libvirt.virsh(&["domstate", "early"]).unwrap().trim() != "shut off");
        attach(&io, "d1", &[]);
        start.join().unwrap().unwrap();
    });
    assert_eq!(libvirt.virsh(&["domstate", "early"]).unwrap().trim(), "running");
}

/// AppArmor's profile of a domain contains its images, but not Ringway's sockets (docs/libvirt.md).
#[test]
fn libvirts_apparmor_helper_leaves_the_socket_out() {
    let libvirt = Libvirt::start().unwrap();
    let io = RingwayIo::start(libvirt.dir(), &[]).unwrap();
    let words = ["libvirt-xml", "--no-check", "--domain", "vm1", "--accel", "tcg"];
    let uuid = "0a81f5b2-8403-7b23-c8d6-21ccc2f80d6f";
    let more = format!(
        "<uuid>{uuid}</uuid><devices><disk type='file' device='disk'>\
         <source file='{}/plain.raw'/><target dev='vdb' bus='virtio'/></disk>",
        libvirt.dir().display()
    );
    libvirt.file("plain.raw", [0; 512]).unwrap();
    let xml = io.ringway(&[&words[..], &["/run/ringway/d1.sock"]].concat()).unwrap();
    let xml = xml.replace("<devices>", &more);
    let xml = File::open(libvirt.file("aa.xml", xml).unwrap()).unwrap();
    let helper = "/usr/lib/libvirt/virt-aa-helper";
    let arguments = ["--dryrun", "--create", "--uuid", &format!("libvirt-{uuid}")];
    let output = Command::new(helper).args(arguments).stdin(xml).output().unwrap();
    let rules = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && rules.contains("plain.raw"), "{rules}");
    assert!(!rules.contains("d1.sock"), "{rules}");
}

/// Returns a boot sector that writes `text` to the serial line and halts.
fn boot_sector(text: &str) -> Vec<u8> {
    const CODE: [u8; 22] = [
        0x31, 0xc0, 0x8e, 0xd8, 0xfc, // segment 0, upwards
        0xbe, 0x16, 0x7c, // from the text, which follows the code
        0xac, 0x84, 0xc0, 0x74, 0x06, // next byte, until a zero
        0xba, 0xf8, 0x03, 0xee, 0xeb, 0xf5, // to port 0x3f8
        0xf4, 0xeb, 0xfd, // halt
    ];
    bootable(&[&CODE[..], text.as_bytes()].concat())
}

fn write_bootable(image: &Path, text: &str) {
    let mut content = boot_sector(text);
    content.resize(MIB as usize, 0);
    std::fs::write(image, content).unwrap();
}

/// Without libvirt, the command prints arguments for QEMU, which a shell accepts unchanged.
#[test]
fn qemu_boots_with_the_arguments_that_are_printed() {
    let dir = tempfile::Builder::new().prefix("it's a, folder ").tempdir().unwrap();
    let io = RingwayIo::start(dir.path(), &[]).unwrap();
    for (id, text) in [("d1", "from the first\n"), ("d2", "from the second\n")] {
        let image = io.dir().join(format!("{id}.raw"));
        write_bootable(&image, text);
        io.attach(id, &image, &["queues=2"]).unwrap();
    }
    let words = ["libvirt-xml", "--qemu", "--memory", "64M", "d1", "d2,boot=1"];
    let printed = io.ringway(&words).unwrap();
    let line = format!(
        "exec setpriv --pdeathsig KILL qemu-system-x86_64 -machine q35,accel=tcg -nodefaults \
         -display none -serial stdio {printed}"
    );
    let mut command = Command::new("sh");
    let mut qemu = Process::start(command.args(["-c", &line]).stdout(Stdio::piped())).unwrap();
    let mut console = qemu.child().stdout.take().unwrap();
    let mut text = String::new();
    while !text.contains("from the second") {
        let readable = wait_readable(&[console.as_fd()], DEADLINE).unwrap();
        let mut chunk = [0; 256];
        let count = readable.map_or(0, |_| console.read(&mut chunk).unwrap());
        assert!(count > 0, "{printed}{text}{}", qemu.stderr());
        text.push_str(&String::from_utf8_lossy(&chunk[..count]));
    }
    qemu.kill().unwrap();
}

/// The boot order is as requested, and a path may contain characters that XML and QEMU quote.
#[test]
fn a_machine_boots_from_the_disk_that_shall_be_first() {
    let libvirt = Libvirt::start().unwrap();
    let io = RingwayIo::start(libvirt.dir(), &[]).unwrap();
    let odd = io.dir().join("d 2,> \"x\"");
    write_bootable(&io.dir().join("d1.raw"), "from the first\n");
    write_bootable(&odd, "from the second\n");
    attach(&io, "d1", &[]);
    let (image, socket) = (odd.display(), io.dir().join("s 2,> \"x\""));
    let words = [format!("backend.file={image}"), format!("socket={}", socket.display())];
    let second = ["io", "disk.attach", "id=d2", &words[0], &words[1]];
    io.ringway(&[&second[..], &ACCESS].concat()).unwrap();
    let words = ["libvirt-xml", "--domain", "boot", "--accel", "tcg", "--memory", "64M"];
    let xml = io.ringway(&[&words[..], &["d1,boot=2", "d2,boot=1"]].concat()).unwrap();
    let mut domain = libvirt.boot("boot", &xml, "").unwrap();
    wait(&mut domain, "from the second\n");
}
