//! CDs that are inserted into a drive of a VM and ejected, also while its guest runs.
//!
//! The test guest's kernel has no AHCI driver. So the guest here is a few bytes of code that read a
//! drive through the firmware.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;

use serde_json::json;
use testkit::boot_sector::bootable;
use testkit::guest::Qmp;
use xenapi::Value;
use xenapi::client::ClientError;

use super::records::{of, with};
use super::world::{Machine, PATIENCE, World};

/// Offset of the read request in the boot sector.
const PACKET_AT: u8 = 64;
/// Output of the guest if it read nothing, and start of the line if it read a CD.
const NOTHING: u8 = b'-';
const CONTENT: &str = "this is ";
/// Number of reads. The result must not change.
const READS: usize = 3;

/// Builds a boot sector that reads the first sector of the first CD drive and prints the line
/// there. A byte on the serial line makes it boot again, which resets the VM and polls the drive's
/// readiness. Without that poll, a read after a change of the medium fails.
#[rustfmt::skip]
fn sector() -> Vec<u8> {
    let mut sector = vec![
        0x31, 0xc0,                                 // xor ax, ax
        0x8e, 0xd8,                                 // mov ds, ax
        0xc7, 0x06, 0x00, 0x80, NOTHING, b'\n',     // mov word [0x8000], nothing
        0xbe, PACKET_AT, 0x7c,                      // mov si, packet
        0xb8, 0x00, 0x42,                           // mov ax, 0x4200: an extended read
        0xb2, 0xe0,                                 // mov dl, 0xe0: of the first CD drive
        0xcd, 0x13,                                 // int 0x13
        0xbe, 0x00, 0x80,                           // mov si, 0x8000
        0xac,                                       // next: lodsb
        0x88, 0xc4,                                 // mov ah, al
        0xba, 0xfd, 0x03,                           // mov dx, 0x3fd
        0xec,                                       // full: in al, dx
        0xa8, 0x20,                                 // test al, 0x20: the line takes a byte
        0x74, 0xfb,                                 // jz full
        0x88, 0xe0,                                 // mov al, ah
        0xba, 0xf8, 0x03,                           // mov dx, 0x3f8
        0xee,                                       // out dx, al
        0x3c, b'\n',                                // cmp al, newline
        0x75, 0xeb,                                 // jne next
        0xba, 0xfd, 0x03,                           // mov dx, 0x3fd
        0xec,                                       // wait: in al, dx
        0xa8, 0x01,                                 // test al, 1: the line has a byte
        0x74, 0xfb,                                 // jz wait
        0xba, 0xf8, 0x03,                           // mov dx, 0x3f8
        0xec,                                       // in al, dx
        0xcd, 0x19,                                 // int 0x19
    ];
    assert!(sector.len() <= usize::from(PACKET_AT), "{}", sector.len());
    sector.resize(PACKET_AT.into(), 0);
    // Size of the request, one sector, to address 0x8000, from sector 0.
    sector.extend([16, 0, 1, 0, 0x00, 0x80, 0, 0]);
    bootable(&sector)
}

/// A VM with a CD drive, and its guest once it runs.
struct Trial {
    world: World,
    machine: Machine,
    of: String,
    drive: String,
    line: Option<BufReader<UnixStream>>,
}

impl Trial {
    /// Creates the VM without a drive.
    fn new() -> Self {
        let mut world = World::new();
        let machine = world.plain("cds");
        let image = OpenOptions::new().write(true).open(&machine.image).unwrap();
        image.write_all_at(&sector(), 0).unwrap();
        let of = format!("uuid={}", machine.uuid);
        Self { world, machine, of, drive: String::new(), line: None }
    }

    fn xe(&self, words: &[&str]) -> String {
        self.world.daemon.xe_prints(words).unwrap()
    }

    /// Creates an SR of ISO files with these names.
    fn discs(&self, names: &[&str]) {
        let place = self.world.daemon.dir().join("discs");
        std::fs::create_dir(&place).unwrap();
        for name in names {
            let mut content = format!("{CONTENT}{name}\n").into_bytes();
            content.resize(1 << 20, 0);
            std::fs::write(place.join(name), content).unwrap();
        }
        let location = format!("device-config:location={}", place.display());
        self.xe(&["sr-create", "type=iso", "name-label=discs", &location]);
        let shown = self.xe(&["cd-list", "params=name-label", "--minimal"]);
        let shown: std::collections::BTreeSet<_> = shown.split(',').collect();
        assert_eq!(shown, names.iter().copied().collect());
    }

    /// Starts the VM. It starts paused, so that no output of the guest is missed.
    fn start(&mut self) {
        self.xe(&["vm-param-set", &self.of, "HVM-boot-params:order=dc"]);
        self.xe(&["vm-start", "vm=cds", "paused=true"]);
        let socket = self.world.daemon.dir().join("run/vm").join(&self.machine.uuid);
        let line = UnixStream::connect(socket.join("console.sock")).unwrap();
        line.set_read_timeout(Some(PATIENCE)).unwrap();
        self.line = Some(BufReader::new(line));
        self.xe(&["vm-unpause", "vm=cds"]);
        assert_eq!(self.reported().as_deref(), Some("one.iso"));
        self.stays();
    }

    /// Makes QEMU handle resets itself from now on, so that the test stays in one domain.
    fn stays(&mut self) {
        let daemon = &mut self.world.daemon;
        daemon.process.kill().unwrap();
        let socket = daemon.dir().join("run/vm").join(&self.machine.uuid).join("qmp.sock");
        let mut control = Qmp::connect(&socket, PATIENCE).unwrap();
        control.execute("set-action", &json!({ "reboot": "reset" })).unwrap();
        drop(control);
        daemon.start_again().unwrap();
        self.world.client = daemon.client().unwrap();
    }

    /// Returns the CD that the guest reports.
    fn reported(&mut self) -> Option<String> {
        let line = self.line.as_mut().unwrap();
        loop {
            let mut text = String::new();
            assert!(line.read_line(&mut text).unwrap() > 0, "it is gone");
            match text.trim_end().strip_prefix(CONTENT) {
                Some(name) => return Some(name.to_owned()),
                None if text.as_bytes() == [NOTHING, b'\n'] => return None,
                // The firmware prints lines, too.
                None => {}
            }
        }
    }

    /// Returns the CD that the guest now finds in its drive.
    fn reads(&mut self) -> Option<String> {
        self.line.as_mut().unwrap().get_mut().write_all(b".").unwrap();
        self.reported()
    }

    /// Asserts that the guest, the records and `xe` agree on the inserted CD, or on none.
    fn holds(&mut self, name: Option<&str>) {
        for _ in 0..READS {
            assert_eq!(self.reads().as_deref(), name);
        }
        self.shows(name);
    }

    /// Asserts what the records and `xe` show.
    fn shows(&mut self, name: Option<&str>) {
        let drive = self.world.record("VBD", &self.drive);
        assert_eq!(drive.flag("empty"), name.is_none());
        let may = |op: &str| drive.texts("allowed_operations").contains(&op);
        assert_eq!((may("insert"), may("eject")), (name.is_none(), name.is_some()));
        let shown = self.xe(&["vm-cd-list", "vm=cds"]);
        let value = |field: &str| {
            let line = shown.lines().find(|line| line.trim_start().starts_with(field));
            line.map(|line| line.rsplit(' ').next().unwrap())
        };
        assert!(shown.starts_with("CD 0 VBD:\n"), "{shown}");
        let empty = if name.is_none() { "true" } else { "false" };
        assert_eq!((value("name-label"), value("empty")), (name, Some(empty)), "{shown}");
    }

    fn refused(&mut self, method: &str, params: &[Value]) -> Vec<String> {
        let error = self.world.client.run(method, params, PATIENCE).unwrap_err();
        let ClientError::Api(error) = error else { panic!("{error}") };
        std::iter::once(error.code.to_string()).chain(error.params).collect()
    }
}

#[test]
fn cds_are_changed_while_a_guest_runs() {
    let mut trial = Trial::new();
    trial.discs(&["one.iso", "two.iso"]);
    // Halted VM: a drive with a CD, without one, destroyed, and created again.
    let add = ["vm-cd-add", "vm=cds", "cd-name=one.iso", "device=3"];
    trial.xe(&add);
    trial.xe(&["vm-cd-eject", "vm=cds"]);
    trial.xe(&["vm-cd-remove", "vm=cds", "cd-name=<EMPTY>"]);
    assert_eq!(trial.xe(&["vm-cd-list", "vm=cds"]), "");
    trial.xe(&add);
    let slots = trial.world.record("VM", &trial.machine.reference);
    let mut slots = slots.texts("VBDs").into_iter().map(str::to_owned);
    trial.drive = slots.find(|slot| *slot != trial.machine.slot).unwrap();
    trial.shows(Some("one.iso"));

    trial.start();
    trial.holds(Some("one.iso"));
    for disc in ["two.iso", "one.iso"] {
        trial.xe(&["vm-cd-eject", "vm=cds"]);
        trial.holds(None);
        trial.xe(&["vm-cd-insert", "vm=cds", &format!("cd-name={disc}")]);
        trial.holds(Some(disc));
    }
    by_calls(&mut trial);
    trial.holds(Some("one.iso"));

    trial.world.call("VM.hard_shutdown", &of(&trial.machine.reference));
    trial.xe(&["vm-cd-remove", "vm=cds", "cd-name=one.iso"]);
    assert_eq!(trial.xe(&["vm-cd-list", "vm=cds"]), "");
    assert_eq!(trial.world.daemon.leftovers(), Vec::<String>::new());
}

/// Invalid calls fail as in XenServer and change nothing.
fn by_calls(trial: &mut Trial) {
    let (drive, disk) = (trial.drive.clone(), trial.machine.slot.clone());
    let disc = trial.world.record("VBD", &drive).text("VDI").to_owned();
    let insert = |slot: &str| with(slot, [Value::text(disc.as_str())]);
    assert_eq!(trial.refused("VBD.insert", &insert(&drive)), ["VBD_NOT_EMPTY", &drive]);
    for (method, params) in [("VBD.insert", insert(&disk)), ("VBD.eject", of(&disk))] {
        assert_eq!(trial.refused(method, &params), ["VBD_NOT_REMOVABLE_MEDIA", &disk]);
    }
    trial.holds(Some("one.iso"));
    trial.world.call("VBD.eject", &of(&drive));
    assert_eq!(trial.refused("VBD.eject", &of(&drive)), ["VBD_IS_EMPTY", &drive]);
    trial.holds(None);
    trial.world.call("VBD.insert", &insert(&drive));
}
