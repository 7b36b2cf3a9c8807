//! Machine of the demo, which an API client creates and runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use model::id::VdiId;
use xenapi::Value;
use xenapi::client::{Client, Record, Tunnel};

use super::disks::Disk;
use super::images;

/// Longest call: a start, or a hard shutdown.
const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// Longest wait for the end of a machine whose guest has powered off.
const HALT_DEADLINE: Duration = Duration::from_secs(60);
/// Name of the machine's template.
const TEMPLATE: &str = "Ringway test guest";
/// Name of the machine.
pub(super) const NAME: &str = "demo";
/// Guest memory in bytes.
const MEMORY_BYTES: i64 = 384 << 20;
/// Number of virtual CPUs.
const VCPUS: i64 = 2;
/// Number of queues of the multi-queue disk.
const QUEUES: &str = "4";

/// Client of the demo's daemon.
#[derive(Debug)]
pub(super) struct Api(Client);

/// The machine and its devices.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    vm: String,
    /// Kernel arguments of the template.
    args: String,
    volumes: BTreeMap<Disk, Volume>,
}

/// Volume of a disk.
#[derive(Clone, Debug)]
struct Volume {
    reference: String,
    id: VdiId,
    image: PathBuf,
}

impl Machine {
    /// Returns the path of a disk's image.
    pub(super) fn image(&self, disk: Disk) -> PathBuf {
        self.volumes.get(&disk).map(|volume| volume.image.clone()).unwrap_or_default()
    }

    fn serial(&self, disk: Disk) -> String {
        self.volumes.get(&disk).map(|volume| disk.serial(volume.id)).unwrap_or_default()
    }
}

impl Api {
    /// Logs in through the daemon's socket.
    pub(super) fn open(socket: &Path) -> anyhow::Result<Self> {
        let mut client = Client::unix(socket)?;
        client.login("root", "", "ringway demo")?;
        Ok(Self(client))
    }

    fn run(&mut self, method: &str, params: &[Value]) -> anyhow::Result<String> {
        let result = self.0.run(method, params, CALL_DEADLINE);
        match result.with_context(|| method.to_owned())? {
            Value::Str(text) => Ok(text),
            _ => Ok(String::new()),
        }
    }

    fn set(&mut self, vm: &str, field: &str, value: Value) -> anyhow::Result<()> {
        self.run(&format!("VM.set_{field}"), &[Value::text(vm), value]).map(drop)
    }

    /// Creates the disks with their content, and the machine.
    pub(super) fn make(&mut self) -> anyhow::Result<Machine> {
        let (storage, place) = self.storage()?;
        let mut volumes = BTreeMap::new();
        for disk in Disk::ALL {
            volumes.insert(disk, self.volume(disk, &storage, &place)?);
        }
        let (vm, args) = self.clone_template()?;
        let machine = Machine { vm, args, volumes };
        let script = images::script(|disk| machine.serial(disk))?;
        for (disk, bytes) in [(Disk::Golden, images::golden()), (Disk::Script, script.into())] {
            let image = machine.image(disk);
            let written = images::write(&image, disk, &bytes);
            written.with_context(|| format!("cannot write {}", image.display()))?;
        }
        for disk in Disk::ALL.into_iter().filter(|disk| *disk != Disk::Late) {
            self.give(&machine, disk)?;
        }
        let args = format!("{} ringway.script={}", machine.args, machine.serial(Disk::Script));
        self.set(&machine.vm, "PV_args", Value::Str(args))?;
        Ok(machine)
    }

    /// Returns the daemon's own storage, and its directory.
    fn storage(&mut self) -> anyhow::Result<(String, PathBuf)> {
        let pool = self.0.records("pool")?.into_iter().next();
        let (_, pool) = pool.context("there is no pool")?;
        let storage = pool.text("default_SR").to_owned();
        let connections = self.0.records("PBD")?;
        let ours = connections.iter().find(|(_, one)| one.text("SR") == storage);
        let place = ours.and_then(|(_, one)| one.pairs("device_config").get("location").copied());
        let place = PathBuf::from(place.context("the default SR has no location")?);
        Ok((storage, place))
    }

    fn volume(&mut self, disk: Disk, storage: &str, place: &Path) -> anyhow::Result<Volume> {
        let size = i64::try_from(disk.bytes()).unwrap_or(i64::MAX);
        let reference = self.run(
            "VDI.create",
            &[record([
                ("name_label", Value::text(disk.name())),
                ("name_description", Value::text(disk.title())),
                ("SR", Value::text(storage)),
                ("virtual_size", Value::Int(size)),
                ("type", Value::text("user")),
                ("sharable", Value::Bool(false)),
                ("read_only", Value::Bool(false)),
                ("other_config", pairs([])),
            ])],
        )?;
        let uuid = self.0.record("VDI", &reference)?.text("uuid").to_owned();
        let id = uuid.parse().map(VdiId).ok().context("a disk has no UUID")?;
        Ok(Volume { reference, id, image: place.join(format!("{uuid}.raw")) })
    }

    /// Returns a machine of the template, and its kernel arguments.
    fn clone_template(&mut self) -> anyhow::Result<(String, String)> {
        let templates = self.0.records_where("VM", "field \"is_a_template\"=\"true\"")?;
        let mut templates = templates.into_iter();
        let (template, record) = templates
            .find(|(_, one)| one.text("name_label") == TEMPLATE)
            .with_context(|| format!("there is no template {TEMPLATE:?}"))?;
        let args = record.text("PV_args").to_owned();
        let vm = self.run("VM.clone", &[Value::Str(template), Value::text(NAME)])?;
        self.run("VM.provision", &[Value::text(&vm)])?;
        let memory = Value::Int(MEMORY_BYTES);
        let limits = [Value::text(&vm), memory.clone(), memory.clone(), memory.clone(), memory];
        self.run("VM.set_memory_limits", &limits)?;
        self.set(&vm, "VCPUs_max", Value::Int(VCPUS))?;
        self.set(&vm, "VCPUs_at_startup", Value::Int(VCPUS))?;
        Ok((vm, args))
    }

    /// Adds a disk to the machine.
    fn give(&mut self, machine: &Machine, disk: Disk) -> anyhow::Result<String> {
        let volume = machine.volumes.get(&disk).context("a disk has no volume")?;
        let queues = (disk == Disk::Multi).then_some(("queues", QUEUES));
        self.run(
            "VBD.create",
            &[record([
                ("VM", Value::text(&machine.vm)),
                ("VDI", Value::text(&volume.reference)),
                ("userdevice", Value::Str(disk.userdevice().to_string())),
                ("bootable", Value::Bool(false)),
                ("mode", Value::text(if disk.read_only() { "RO" } else { "RW" })),
                ("type", Value::text("Disk")),
                ("empty", Value::Bool(false)),
                ("other_config", pairs(queues)),
                ("qos_algorithm_type", Value::text("")),
                ("qos_algorithm_params", pairs([])),
            ])],
        )
    }

    /// Plugs the last disk into the running machine.
    pub(super) fn plug(&mut self, machine: &Machine) -> anyhow::Result<()> {
        let device = self.give(machine, Disk::Late)?;
        self.run("VBD.plug", &[Value::Str(device)]).map(drop)
    }

    /// Starts the machine paused and opens its console, so that no output is lost.
    pub(super) fn start(&mut self, machine: &Machine) -> anyhow::Result<Tunnel> {
        let vm = Value::text(&machine.vm);
        self.run("VM.start", &[vm, Value::Bool(true), Value::Bool(false)])?;
        let record = self.0.record("VM", &machine.vm)?;
        let console = record.texts("consoles").first().map(|one| (*one).to_owned());
        let console = self.0.record("console", &console.context("the machine has no console")?)?;
        let path = path_of(console.text("location")).context("the console has no path")?;
        Ok(self.0.tunnel(path)?)
    }

    /// Unpauses the machine.
    pub(super) fn unpause(&mut self, machine: &Machine) -> anyhow::Result<()> {
        self.run("VM.unpause", &[Value::text(&machine.vm)]).map(drop)
    }

    /// Waits until the machine is halted.
    pub(super) fn halted(&mut self, machine: &Machine) -> anyhow::Result<()> {
        let (until, of) = (Instant::now() + HALT_DEADLINE, format!("VM/{}", machine.vm));
        let mut token = String::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let batch = self.0.events(&[&of], &token, left)?;
            let mut snapshots = batch.events.iter().filter_map(|event| event.snapshot.as_ref());
            if snapshots.next_back().is_some_and(|vm| vm.text("power_state") == "Halted") {
                return Ok(());
            }
            if left.is_zero() {
                bail!("the machine is not halted {} s after its end", HALT_DEADLINE.as_secs());
            }
            token = batch.token;
        }
    }

    /// Returns the ids of the machine's disks in the datapath.
    pub(super) fn ids(&mut self, machine: &Machine) -> anyhow::Result<BTreeMap<String, Disk>> {
        let devices = self.0.records("VBD")?;
        let ours = devices.into_iter().filter(|(_, one)| one.text("VM") == machine.vm);
        let id = |one: &Record| {
            let of = |disk: &Disk| one.text("userdevice") == disk.userdevice().to_string();
            Some((one.text("uuid").to_owned(), Disk::ALL.into_iter().find(of)?))
        };
        Ok(ours.filter_map(|(_, one)| id(&one)).collect())
    }

    /// Unplugs all storage: afterwards no process serves a disk.
    pub(super) fn disconnect(&mut self) -> anyhow::Result<()> {
        for (reference, _) in self.0.records("PBD")? {
            self.run("PBD.unplug", &[Value::Str(reference)])?;
        }
        Ok(())
    }

    /// Plugs the storage again, and starts the machine with a shell on its console.
    pub(super) fn start_for_people(&mut self, machine: &Machine) -> anyhow::Result<()> {
        for (reference, _) in self.0.records("PBD")? {
            self.run("PBD.plug", &[Value::Str(reference)])?;
        }
        self.set(&machine.vm, "PV_args", Value::text(&machine.args))?;
        let vm = Value::text(&machine.vm);
        self.run("VM.start", &[vm, Value::Bool(false), Value::Bool(false)]).map(drop)
    }

    /// Ends all machines and unplugs all storage.
    pub(super) fn end(&mut self) -> anyhow::Result<()> {
        for (reference, vm) in self.0.records("VM")? {
            let stays = ["is_a_template", "is_control_domain"].iter().any(|one| vm.flag(one));
            if !stays && vm.text("power_state") != "Halted" {
                self.run("VM.hard_shutdown", &[Value::Str(reference)])?;
            }
        }
        self.disconnect()
    }
}

/// Returns a URL without its scheme and host.
fn path_of(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.get(rest.find('/')?..)
}

fn record<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let pairs = pairs.into_iter();
    Value::Map(pairs.map(|(key, value)| (key.to_owned(), Value::text(value))).collect())
}
