//! A disk that fails when it is told to, and one that loses its power.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ::redb::{Builder, StorageBackend};
use rustix::io::Errno;

use super::super::super::StoreError;
use super::super::{RedbStore, guarded, tables};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No room for one write.
    FullOnce,
    /// No room for any, until [`Disk::heal`].
    Full,
    /// One flush fails; what was written can still be read.
    Flush,
    /// Nothing works, until [`Disk::lose_power`].
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
    /// What survives a loss of power.
    durable: Vec<u8>,
    /// What was not flushed yet.
    changes: Vec<Change>,
    /// What is read.
    now: Vec<u8>,
    /// How many of those that can fail still do not, and how the next one does.
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

/// A disk with one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// One with an empty store.
    pub(super) fn new() -> Self {
        let disk = Self::default();
        guarded(|| tables::begin(&Builder::new().create_with_backend(disk.clone())?)).unwrap();
        disk
    }

    /// Opens the store that is on it.
    pub(super) fn open(&self) -> Result<RedbStore, StoreError> {
        let disk = self.clone();
        let open = move |_: &Path| Ok(Builder::new().create_with_backend(disk.clone())?);
        RedbStore::with_opener(Path::new("/disk/state"), Box::new(open))
    }

    /// After so many changes, flushes or, if it dies, either, it fails.
    pub(super) fn fail(&self, after: usize, fault: Fault) {
        self.0.lock().unwrap().fault = Some((after, fault));
    }

    /// It works again, or goes on to.
    pub(super) fn heal(&self) {
        self.0.lock().unwrap().fault = None;
    }

    /// It works again, with all that was flushed and those of the later changes that `kept` says,
    /// by number.
    pub(super) fn lose_power(&self, kept: impl Fn(usize) -> bool) {
        let mut state = self.0.lock().unwrap();
        state.fault = None;
        let mut bytes = std::mem::take(&mut state.durable);
        let changes = std::mem::take(&mut state.changes);
        // The length is kept by the file system's journal with what lies beyond the old one.
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
