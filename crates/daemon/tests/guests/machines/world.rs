//! A daemon with real guests, and its client.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use testkit::boot_sector::SectorGuest;
use testkit::clock::WallClock;
use testkit::guest::boot_config;
use testkit::ringwayd::{Ringwayd, Shell};
use testkit::storage::store_profile;
use xenapi::Value;
use xenapi::client::{Client, Record};

use super::records::{of, record, slot, with};

/// Longest wait for a guest. Without KVM it boots in some seconds, on a busy host in many.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// Size of the disks, in bytes.
pub(crate) const DISK_BYTES: i64 = 8 << 20;
/// Memory of a VM that only runs firmware, in bytes.
const PLAIN_BYTES: i64 = 128 << 20;
/// Size of a block that a guest writes, in bytes.
const BLOCK: u64 = 512;
/// Longest wait for events before conditions outside of the records are checked again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(250);

pub(crate) struct World {
    pub(crate) daemon: Ringwayd,
    pub(crate) client: Client,
    /// Whether the first daemon has created control groups.
    pub(crate) has_slices: bool,
    _config: NamedTempFile,
}

/// A VM with a disk.
#[derive(Clone)]
pub(crate) struct Machine {
    pub(crate) reference: String,
    pub(crate) uuid: String,
    /// VBD. The next field is its VDI.
    pub(crate) slot: String,
    pub(crate) disk: String,
    /// Image of the VDI.
    pub(crate) image: PathBuf,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::begin(|options| Ringwayd::start(options).unwrap())
    }

    /// Starts a daemon with this wall clock.
    pub(crate) fn at(clock: &WallClock) -> Self {
        Self::begin(|options| Ringwayd::start_at(clock, options).unwrap())
    }

    /// Starts a daemon with control groups, or without them on a host known to allow none.
    pub(crate) fn with_slices() -> Self {
        let with = |options: &[&str]| Ringwayd::with_slices(options).unwrap();
        Self::begin(|options| with(options).unwrap_or_else(|| Ringwayd::start(options).unwrap()))
    }

    fn begin(start: impl FnOnce(&[&str]) -> Ringwayd) -> Self {
        let config = boot_config().unwrap();
        let path = config.path().display().to_string();
        let daemon = start(&["--hypervisor", "qemu", "--config", &path]);
        let (client, has_slices) = (daemon.client().unwrap(), daemon.slices().is_some());
        Self { daemon, client, has_slices, _config: config }
    }

    /// Kills the daemon, asserts that its helpers end, and starts it again.
    pub(crate) fn killed(&mut self) {
        assert!(self.daemon.kill().unwrap() > 0, "storage is looked at by a helper");
        self.daemon.start_again().unwrap();
        self.client = self.daemon.client().unwrap();
    }

    /// Makes a call and waits for its end, as a task if possible.
    pub(crate) fn call(&mut self, method: &str, params: &[Value]) -> Value {
        let answer = self.client.run(method, params, PATIENCE);
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    pub(crate) fn made(&mut self, method: &str, params: &[Value]) -> String {
        match self.call(method, params) {
            Value::Str(text) => text,
            other => panic!("{method}: {other:?}"),
        }
    }

    /// Creates a VM with a disk from this template, and without a CD drive.
    fn machine(&mut self, template: &str, name: &str) -> Machine {
        let found = self.call("VM.get_by_name_label", &of(template));
        let Value::Set(found) = found else { panic!("{found:?}") };
        let from = found.into_iter().next().unwrap();
        let reference = self.made("VM.clone", &[from, Value::text(name)]);
        self.call("VM.remove_from_other_config", &with(&reference, [Value::text("disks")]));
        for drive in self.record("VM", &reference).texts("VBDs") {
            self.call("VBD.destroy", &of(drive));
        }
        self.call("VM.provision", &of(&reference));
        let (slot, disk) = self.device(&reference);
        let uuid = self.record("VM", &reference).text("uuid").to_owned();
        let image = self.image(&disk);
        Machine { reference, uuid, slot, disk, image }
    }

    /// Returns the path of a VDI's image.
    pub(crate) fn image(&mut self, disk: &str) -> PathBuf {
        let volume = self.record("VDI", disk);
        let name = format!("{}.raw", volume.text("uuid"));
        let place = self.record("SR", volume.text("SR")).text("uuid").to_owned();
        self.daemon.dir().join("state/sr").join(place).join(name)
    }

    /// Creates a VM without an operating system, which uses few resources.
    pub(crate) fn plain(&mut self, name: &str) -> Machine {
        let machine = self.machine("Other install media", name);
        let limits = [PLAIN_BYTES; 4].map(Value::Int);
        self.call("VM.set_memory_limits", &with(&machine.reference, limits));
        machine
    }

    /// Creates a VM with the test guest, which has a shell.
    pub(crate) fn guest(&mut self, name: &str) -> Machine {
        self.machine("Ringway test guest", name)
    }

    /// Creates a VM whose guest fits in a boot sector.
    pub(crate) fn sector_guest(&mut self, name: &str) -> Machine {
        let machine = self.plain(name);
        self.call("VBD.set_bootable", &with(&machine.slot, [Value::Bool(true)]));
        let image = OpenOptions::new().write(true).open(&machine.image).unwrap();
        image.write_all_at(&SectorGuest::sector(), 0).unwrap();
        machine
    }

    /// Returns the guest in a VM's boot sector after its boot.
    pub(crate) fn sector_line(&mut self, machine: &Machine) -> SectorGuest {
        let line = self.daemon.dir().join("run/vm").join(&machine.uuid).join("console.sock");
        let guest = SectorGuest::connect(&line, PATIENCE);
        guest.unwrap_or_else(|error| panic!("{error}: {}", self.shown()))
    }

    /// Creates a VDI.
    pub(crate) fn disk(&mut self) -> String {
        let disk = self.new_disk("d");
        self.made("VDI.create", &[disk])
    }

    /// Returns the record of a new VDI.
    pub(crate) fn new_disk(&mut self, name: &str) -> Value {
        let pool = self.client.records("pool").unwrap().remove(0).1;
        record([
            ("name_label", Value::text(name)),
            ("SR", Value::text(pool.text("default_SR"))),
            ("virtual_size", Value::Int(DISK_BYTES)),
            ("type", Value::text("user")),
            ("sharable", Value::Bool(false)),
            ("read_only", Value::Bool(false)),
            ("other_config", record([])),
        ])
    }

    /// Creates a VDI and its VBD in a VM.
    pub(crate) fn device(&mut self, machine: &str) -> (String, String) {
        let disk = self.disk();
        (self.made("VBD.create", &[slot(machine, Some(&disk))]), disk)
    }

    pub(crate) fn record(&mut self, class: &str, reference: &str) -> Record {
        self.client.record(class, reference).unwrap()
    }

    pub(crate) fn power(&mut self, machine: &Machine) -> String {
        self.record("VM", &machine.reference).text("power_state").to_owned()
    }

    pub(crate) fn domid(&mut self, machine: &Machine) -> i64 {
        self.record("VM", &machine.reference).int("domid")
    }

    /// Returns a shell in the VM's guest after its boot.
    pub(crate) fn shell(&mut self, machine: &Machine) -> Shell {
        let mut shell = self.daemon.shell(&machine.uuid).unwrap();
        let ready = shell.ready(PATIENCE);
        ready.unwrap_or_else(|error| panic!("{error}: {}", self.shown()));
        shell
    }

    /// Returns the names of the messages about a VM, sorted. Their dates are whole seconds, so they
    /// do not order messages that follow each other quickly.
    pub(crate) fn messages(&mut self, machine: &Machine) -> Vec<String> {
        let all = self.client.records("message").unwrap().into_iter();
        let of = all.filter(|(_, one)| one.text("obj_uuid") == machine.uuid);
        let mut names: Vec<_> = of.map(|(_, one)| one.text("name").to_owned()).collect();
        names.sort();
        names
    }

    /// Returns whether a QEMU process runs for the VM.
    pub(crate) fn lives(&self, machine: &Machine) -> bool {
        let is = |words: &String| words.contains("qemu") && words.contains(&machine.uuid);
        self.daemon.processes().iter().any(is)
    }

    /// Waits until a condition holds. Checks it after each event, and periodically.
    pub(crate) fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) {
        let (end, mut token) = (Instant::now() + PATIENCE, String::new());
        loop {
            let classes = ["vm", "vbd", "vif", "vdi", "message"];
            let batch = self.client.events(&classes, &token, RECHECK_INTERVAL).unwrap();
            if is(self) {
                return;
            }
            assert!(Instant::now() < end, "{what} did not come: {}", self.shown());
            token = batch.token;
        }
    }

    /// Returns a description of all VMs, messages, processes and the daemon's log.
    pub(crate) fn shown(&mut self) -> String {
        let fields = ["name_label", "power_state", "domid", "current_operations", "other_config"];
        let machines = self.client.records("VM").unwrap().into_iter();
        let machines = machines.filter(|(_, one)| !one.flag("is_a_template"));
        let machines: Vec<_> =
            machines.map(|(_, one)| fields.map(|field| one.get(field).cloned())).collect();
        let messages = self.client.records("message").unwrap().into_iter();
        let messages: Vec<_> = messages
            .map(|(_, one)| ["name", "body"].map(|field| one.text(field).to_owned()))
            .collect();
        let processes = self.daemon.processes();
        format!("{machines:?} {messages:?} {processes:#?}\n{}", self.daemon.process.stderr())
    }

    pub(crate) fn until_power(&mut self, machine: &Machine, power: &str) {
        self.until(power, |world| world.power(machine) == power);
    }

    /// Asserts that the VM runs in this domain, and that all records agree.
    pub(crate) fn assert_runs_on(&mut self, machine: &Machine, domid: i64) {
        assert_eq!((self.power(machine).as_str(), self.domid(machine)), ("Running", domid));
        assert!(self.record("VBD", &machine.slot).flag("currently_attached"));
        assert!(self.is_quiet(machine) && self.lives(machine));
    }

    /// Waits until the VM runs in a domain other than this one.
    pub(crate) fn until_again(&mut self, machine: &Machine, before: i64) {
        self.until("another domain", |world| {
            let now = world.record("VM", &machine.reference);
            now.text("power_state") == "Running" && ![before, -1].contains(&now.int("domid"))
        });
    }

    /// Returns whether a VM has no operation under way and no pending op.
    pub(crate) fn is_quiet(&mut self, machine: &Machine) -> bool {
        let now = self.record("VM", &machine.reference);
        let owed = now.pairs("other_config").contains_key("owed_operation");
        !owed && now.pairs("current_operations").is_empty()
    }
}

impl Machine {
    /// Stores a profile of the storage of its SR, so that its disk has a share there.
    pub(crate) fn calibrate(&self) {
        let folder = self.image.parent().unwrap();
        let device = std::fs::metadata(folder).unwrap().dev();
        store_profile(folder, calibrate::identity(device)).unwrap();
    }

    /// Writes a word to a block of the disk and flushes it.
    pub(crate) fn write(&self, shell: &mut Shell, block: u64, word: &str) {
        let to = format!("dd of=/dev/vda bs={BLOCK} seek={block} conv=notrunc,fsync 2>/dev/null");
        shell.run(&format!("echo {word} | {to}"), PATIENCE).unwrap();
    }

    /// Returns the word that the guest reads from the block.
    pub(crate) fn read(&self, shell: &mut Shell, block: u64) -> String {
        let from = format!("dd if=/dev/vda bs={BLOCK} skip={block} count=1 2>/dev/null");
        shell.run(&format!("{from} | tr -d '\\0'"), PATIENCE).unwrap()
    }

    /// Returns the word in the image's block.
    pub(crate) fn stored(&self, block: u64) -> String {
        let mut bytes = vec![0; usize::try_from(BLOCK).unwrap()];
        File::open(&self.image).unwrap().read_exact_at(&mut bytes, block * BLOCK).unwrap();
        String::from_utf8_lossy(&bytes).trim_end_matches(['\0', '\n']).to_owned()
    }

    pub(crate) fn image_bytes(&self) -> u64 {
        self.image.metadata().unwrap().len()
    }
}
