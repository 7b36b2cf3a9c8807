//! Journal of the simulator: its state outlives the process, as guests and storage outlive a
//! daemon.
//!
//! Each line contains the present state of one object, and is written with its change. So a killed
//! process loses nothing that it has reported. The journal is rewritten with the present state
//! only, when it is opened and when it has become long.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use model::id::{SrId, Uuid, VdiId, VmId};
use serde::{Deserialize, Serialize};

use super::state::{Disk, Domain, Port, State, Volume};

/// File name of the journal, in the simulator's directory.
const NAME: &str = "journal";
/// Lines after which the journal is rewritten: some 20 MB.
const LINES_MAX: u64 = 100_000;

/// Present state of one object; `None` if it was removed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum JournalEntry {
    Domain(VmId, Option<Domain>),
    Volume(SrId, VdiId, Option<Volume>),
    Disk(String, Option<Disk>),
    Sr(SrId, bool),
    Tap(String, Option<String>),
    Port(String, Option<Port>),
    Bridge(String, bool),
}

/// Open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    lines: u64,
}

impl Journal {
    fn write(&mut self, journal_entry: &JournalEntry) -> io::Result<()> {
        let mut text = serde_json::to_vec(journal_entry)?;
        text.push(b'\n');
        self.file.write_all(&text)?;
        self.lines += 1;
        Ok(())
    }
}

impl State {
    /// Opens the state in this directory, and writes later changes there.
    ///
    /// # Errors
    /// The directory cannot be used, or its journal is invalid.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let path = dir.join(NAME);
        let mut state = Self::default();
        match File::open(&path) {
            Ok(file) => state.read(file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        state.write_anew(&path)?;
        Ok(state)
    }

    fn read(&mut self, file: File) -> io::Result<()> {
        let mut file = BufReader::new(file);
        let mut text = String::new();
        while file.read_line(&mut text)? > 0 {
            // The last line may be incomplete after a kill.
            if text.ends_with('\n') {
                let journal_entry: JournalEntry = serde_json::from_str(&text)?;
                self.apply(journal_entry);
            }
            text.clear();
        }
        Ok(())
    }

    fn apply(&mut self, journal_entry: JournalEntry) {
        match journal_entry {
            JournalEntry::Domain(vm, Some(domain)) => drop(self.domains.insert(vm, domain)),
            JournalEntry::Domain(vm, None) => drop(self.domains.remove(&vm)),
            JournalEntry::Volume(sr, vdi, Some(volume)) => {
                self.volumes.insert((sr, vdi), volume);
            }
            JournalEntry::Volume(sr, vdi, None) => drop(self.volumes.remove(&(sr, vdi))),
            JournalEntry::Disk(id, Some(disk)) => drop(self.disks.insert(id, disk)),
            JournalEntry::Disk(id, None) => drop(self.disks.remove(&id)),
            JournalEntry::Sr(sr, true) => drop(self.attached_srs.insert(sr)),
            JournalEntry::Sr(sr, false) => drop(self.attached_srs.remove(&sr)),
            JournalEntry::Tap(tap, Some(bridge)) => drop(self.taps.insert(tap, bridge)),
            JournalEntry::Tap(tap, None) => drop(self.taps.remove(&tap)),
            JournalEntry::Port(id, Some(port)) => drop(self.ports.insert(id, port)),
            JournalEntry::Port(id, None) => drop(self.ports.remove(&id)),
            JournalEntry::Bridge(bridge, true) => drop(self.bridges.insert(bridge)),
            JournalEntry::Bridge(bridge, false) => drop(self.bridges.remove(&bridge)),
        }
    }

    fn lines(&self) -> impl Iterator<Item = JournalEntry> {
        let domains =
            self.domains.iter().map(|(vm, one)| JournalEntry::Domain(*vm, Some(one.clone())));
        let volumes = self.volumes.iter();
        let volumes = volumes.map(|((sr, vdi), one)| JournalEntry::Volume(*sr, *vdi, Some(*one)));
        let disks =
            self.disks.iter().map(|(id, one)| JournalEntry::Disk(id.clone(), Some(one.clone())));
        let srs = self.attached_srs.iter().map(|sr| JournalEntry::Sr(*sr, true));
        let taps =
            self.taps.iter().map(|(tap, on)| JournalEntry::Tap(tap.clone(), Some(on.clone())));
        let ports =
            self.ports.iter().map(|(id, one)| JournalEntry::Port(id.clone(), Some(one.clone())));
        let bridges = self.bridges.iter().map(|one| JournalEntry::Bridge(one.clone(), true));
        domains.chain(volumes).chain(disks).chain(srs).chain(taps).chain(ports).chain(bridges)
    }

    /// Writes the present state to a new file, which replaces the journal.
    fn write_anew(&mut self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let mut file = BufWriter::new(File::create(&new)?);
        for journal_entry in self.lines() {
            serde_json::to_writer(&mut file, &journal_entry)?;
            file.write_all(b"\n")?;
        }
        file.flush()?;
        std::fs::rename(&new, path)?;
        let file = OpenOptions::new().append(true).open(path)?;
        self.journal = Some(Journal { file, path: path.into(), lines: 0 });
        Ok(())
    }

    /// Writes the present state of one object. A failed write is logged, and the change ends with
    /// the process.
    fn keep(&mut self, line: impl FnOnce(&Self) -> JournalEntry) {
        if self.journal.is_none() {
            return;
        }
        let journal_entry = line(self);
        let Some(journal) = &mut self.journal else { return };
        let mut written = journal.write(&journal_entry);
        if journal.lines >= LINES_MAX {
            let path = journal.path.clone();
            written = written.and_then(|()| self.write_anew(&path));
        }
        if let Err(error) = written {
            tracing::warn!(%error, "the simulator's journal cannot be written");
        }
    }

    pub(crate) fn keep_domain(&mut self, vm: VmId) {
        self.keep(|state| JournalEntry::Domain(vm, state.domains.get(&vm).cloned()));
    }

    pub(crate) fn keep_volume(&mut self, sr: SrId, vdi: Uuid) {
        let vdi = VdiId(vdi);
        self.keep(|state| JournalEntry::Volume(sr, vdi, state.volumes.get(&(sr, vdi)).copied()));
    }

    pub(crate) fn keep_disk(&mut self, id: &str) {
        self.keep(|state| JournalEntry::Disk(id.to_owned(), state.disks.get(id).cloned()));
    }

    pub(crate) fn keep_sr(&mut self, sr: SrId) {
        self.keep(|state| JournalEntry::Sr(sr, state.attached_srs.contains(&sr)));
    }

    pub(crate) fn keep_tap(&mut self, tap: &str) {
        self.keep(|state| JournalEntry::Tap(tap.to_owned(), state.taps.get(tap).cloned()));
    }

    pub(crate) fn keep_port(&mut self, id: &str) {
        self.keep(|state| JournalEntry::Port(id.to_owned(), state.ports.get(id).cloned()));
    }

    pub(crate) fn keep_bridge(&mut self, bridge: &str) {
        self.keep(|state| JournalEntry::Bridge(bridge.to_owned(), state.bridges.contains(bridge)));
    }
}

/// Serialization of an access mode by its name.
pub(crate) mod access {
    use model::vdi::automaton::Access;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        access: &Option<Access>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        access.map(Access::name).serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<Access>, D::Error> {
        let Some(name) = Option::<String>::deserialize(from)? else { return Ok(None) };
        Access::parse(&name).map(Some).ok_or_else(|| D::Error::custom("no access"))
    }
}

/// Serialization of a run state by its name. A simulated domain is never silent by itself, and has
/// only the ends of guests and processes.
pub(crate) mod run {
    use model::plan::RunState;
    use model::vm::exits::DomainExit;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    const NAMES: [(&str, RunState); 7] = [
        ("fresh", RunState::Created),
        ("running", RunState::Running),
        ("paused", RunState::Paused),
        ("powered-off", RunState::Ended(DomainExit::PoweredOff)),
        ("rebooted", RunState::Ended(DomainExit::Rebooted)),
        ("panicked", RunState::Ended(DomainExit::Panicked)),
        ("killed", RunState::Ended(DomainExit::Killed)),
    ];

    pub(crate) fn serialize<S: Serializer>(
        run: &Option<RunState>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        let name = |run: RunState| NAMES.iter().find(|(_, one)| *one == run).map(|(name, _)| *name);
        run.map(|run| name(run).unwrap_or("powered-off")).serialize(to)
    }

    pub(crate) fn deserialize<'a, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Option<RunState>, D::Error> {
        let Some(name) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let run = NAMES.iter().find(|(one, _)| *one == name).map(|(_, run)| Some(*run));
        run.ok_or_else(|| D::Error::custom("no state of a domain"))
    }
}
