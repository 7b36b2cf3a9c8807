//! Simulated disk with faults and power loss.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ::redb::{Builder, StorageBackend};
use rustix::io::Errno;

use super::super::super::StoreError;
use super::super::{RedbStore, guarded, tables};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// One write fails for lack of space.
    FullOnce,
    /// All writes fail for lack of space, until [`Disk::heal`].
    Full,
    /// One flush fails. Written data can still be read.
    Flush,
    /// All operations fail, until [`Disk::lose_power`].
    Dead,
}

#[derive(Debug)]
enum Change {
    Write(u64, Vec<u8>),
    Length(u64),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Length(length) => bytes.resize(*length as usize, 0),
            Self::Write(at, data) => {
                let end = *at as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*at as usize..end].copy_from_slice(data);
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// Content that survives a loss of power.
    durable: Vec<u8>,
    /// Changes that are not flushed yet.
    changes: Vec<Change>,
    /// Content that reads return.
    now: Vec<u8>,
    /// Number of operations before the next fault, and the fault.
    fault: Option<(usize, Fault)>,
}

impl State {
    fn fails(&mut self, flush: bool) -> io::Result<()> {
        let Some((left, fault)) = &mut self.fault else { return Ok(()) };
        let meant = match fault {
            Fault::FullOnce | Fault::Full => !flush,
            Fault::Flush => flush,
            Fault::Dead => true,
        };
        if !meant {
            return Ok(());
        }
        if *left > 0 {
            *left -= 1;
            return Ok(());
        }
        let fault = *fault;
        if matches!(fault, Fault::FullOnce | Fault::Flush) {
            self.fault = None;
        }
        let full = matches!(fault, Fault::FullOnce | Fault::Full);
        Err(if full { Errno::NOSPC } else { Errno::IO }.into())
    }
}

/// Disk with one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// Creates a disk with an empty store.
    pub(super) fn new() -> Self {
        let disk = Self::default();
        guarded(|| tables::begin(&Builder::new().create_with_backend(disk.clone())?)).unwrap();
        disk
    }

    /// Opens the store on the disk.
    pub(super) fn open(&self) -> Result<RedbStore, StoreError> {
        let disk = self.clone();
        let open = move |_: &Path| Ok(Builder::new().create_with_backend(disk.clone())?);
        RedbStore::with_opener(Path::new("/disk/state"), Box::new(open))
    }

    /// Fails after so many changes or flushes, depending on the fault. [`Fault::Dead`] counts both.
    pub(super) fn fail(&self, after: usize, fault: Fault) {
        self.0.lock().unwrap().fault = Some((after, fault));
    }

    /// Ends or cancels the fault.
    pub(super) fn heal(&self) {
        self.0.lock().unwrap().fault = None;
    }

    /// Loses power and works again. The disk has the flushed content, and those of the later
    /// changes for whose number `kept` returns true.
    pub(super) fn lose_power(&self, kept: impl Fn(usize) -> bool) {
        let mut state = self.0.lock().unwrap();
        state.fault = None;
        let mut bytes = std::mem::take(&mut state.durable);
        let changes = std::mem::take(&mut state.changes);
        // The file system's journal preserves the length together with the data beyond the old end.
        let kept =
            |number: &usize, change: &Change| matches!(change, Change::Length(_)) || kept(*number);
        let survivors = changes.iter().enumerate().filter(|(number, one)| kept(number, one));
        survivors.for_each(|(_, change)| change.apply(&mut bytes));
        state.durable.clone_from(&bytes);
        state.now = bytes;
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock().unwrap();
        let from = state.now.get(offset as usize..).unwrap_or_default();
        let bytes = from.get(..out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.fails(false)?;
        let change = Change::Length(length);
        change.apply(&mut state.now);
        state.changes.push(change);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.fails(true)?;
        state.changes.clear();
        state.durable = state.now.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        state.fails(false)?;
        let change = Change::Write(offset, data.to_vec());
        change.apply(&mut state.now);
        state.changes.push(change);
        Ok(())
    }
}
