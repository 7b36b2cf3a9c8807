//! Wake-ups of reactors of other processes, through FIFOs.
//!
//! Each process reads its own FIFO on a thread, which passes wake-ups on to the reactors.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, Weak};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use share::ReactorId;

use super::Storage;

/// Wake-ups that are read at a time.
const BATCH: usize = 64;
/// Bytes of a wake-up: slot of a reactor, or one of the numbers below.
const WAKE_BYTES: usize = 2;
/// All channels of the process look: the profile has changed.
const ALL: u16 = u16::MAX - 1;
/// The thread ends.
const END: u16 = u16::MAX;

/// What another process is woken for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wake {
    /// The turn of a reactor may have come.
    Reactor(ReactorId),
    /// The profile has changed.
    All,
}

/// FIFOs of other processes, opened at their first wake-up, and the end of this one's thread.
#[derive(Debug)]
pub(super) struct Wakes {
    own: File,
    others: Mutex<BTreeMap<u64, File>>,
}

impl Wakes {
    /// Makes the FIFO of this process, and starts the thread that reads it.
    ///
    /// # Errors
    /// The FIFO cannot be made, or the process has too many threads.
    pub(super) fn start(fifo: &PathBuf, storage: Weak<Storage>) -> io::Result<Self> {
        match fs::remove_file(fifo) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        mknodat(CWD, fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        // With its own writer, a FIFO never ends.
        let reader = OpenOptions::new().read(true).write(true).open(fifo)?;
        let own = open_writer(fifo)?;
        thread::Builder::new()
            .name("share-wakes".into())
            .spawn(move || pass_on(reader, &storage))?;
        Ok(Self { own, others: Mutex::default() })
    }

    /// Wakes another process, whose FIFO is `fifo`. A process that cannot be woken has ended, or does
    /// not run: others pass it over.
    pub(super) fn wake(&self, process: u64, fifo: impl FnOnce() -> PathBuf, wake: Wake) {
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let word = match wake {
            Wake::Reactor(reactor) => reactor.slot() as u16,
            Wake::All => ALL,
        };
        if let Some(writer) = others.get_mut(&process)
            && write(writer, word)
        {
            return;
        }
        // Another process may have this number now.
        others.remove(&process);
        if let Ok(mut writer) = open_writer(&fifo())
            && write(&mut writer, word)
        {
            others.insert(process, writer);
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        // If the FIFO is full, the thread wakes anyway, and finds the storage gone.
        write(&mut self.own, END);
    }
}

fn open_writer(fifo: &PathBuf) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    OpenOptions::new().write(true).custom_flags(flags).open(fifo)
}

/// Writes a wake-up. Returns whether the FIFO has a reader.
fn write(writer: &mut File, word: u16) -> bool {
    // A FIFO takes so few bytes at once, or not at all.
    match writer.write_all(&word.to_le_bytes()) {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// Passes wake-ups on to the reactors of this process until the storage is gone.
fn pass_on(mut fifo: File, storage: &Weak<Storage>) {
    let mut bytes = [0; BATCH * WAKE_BYTES];
    loop {
        // Writers write whole wake-ups: a FIFO keeps small writes in one piece.
        let count = match fifo.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let Some(storage) = storage.upgrade() else { return };
        for word in bytes.get(..count).unwrap_or_default().chunks_exact(WAKE_BYTES) {
            match word.try_into().map_or(END, u16::from_le_bytes) {
                END => return,
                ALL => storage.look_all(),
                slot => {
                    if let Some(reactor) = ReactorId::from_slot(slot) {
                        storage.kick_own(reactor);
                    }
                }
            }
        }
    }
}
