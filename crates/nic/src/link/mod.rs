//! Link that carries frames from one reactor to another: a bounded ring of bytes with one writer
//! and one reader.
//!
//! A record is its head, then the frame, and begins on a new cache line. A record that would extend
//! beyond the end of the ring is written at its beginning, after a wrap record. The memory is
//! private to this process, so the reader reads exactly what was written.
//!
//! The writer never waits: a frame without room is dropped, and the sender's descriptor has
//! completed either way. The synchronization of both sides is in [`sync`].

mod address;
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memory::{Buffers, Mapping, MemoryError, ThreadMapping};
use net::Mac;
use net::header::HEADER_BYTES;
use net::port::PortId;

use crate::frame_sink::EgressFrame;
pub(crate) use address::LinkAddress;
use sync::{LinkMemory, LinkWord};

/// Bytes of a link: 30 of the largest frames, or 1,300 of 1,500 bytes. Unused pages take no memory.
pub(crate) const LINK_BYTES: usize = 2 << 20;
/// Alignment of records: a cache line.
const ALIGN: usize = 64;
/// Bytes before the frame.
const HEAD_BYTES: usize = 32;

/// Learnt station, for other reactors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StationUpdate {
    pub(crate) port: PortId,
    /// Version of the port's policy under which the station was learnt. Another version may have
    /// other networks and VLANs, or belong to another port with the same number.
    pub(crate) term: u32,
    pub(crate) vlan: u16,
    pub(crate) mac: Mac,
}

/// Record in a link.
#[derive(Debug)]
pub(crate) enum LinkRecord {
    /// Frame with its address, its header, and the time at which it was popped from its sender's
    /// ring. Its bytes are in the list passed to [`Reader::next`].
    Frame(LinkAddress, [u8; HEADER_BYTES], u64),
    Station(StationUpdate),
}

const FRAME: u8 = 0;
/// Wrap record: the next record is at the beginning of the ring.
const WRAP: u8 = 1;
const NEWS: u8 = 2;

/// State that both sides share.
#[derive(Debug)]
pub(crate) struct Shared {
    mapping: Arc<Mapping>,
    written: CacheAligned,
    read: CacheAligned,
    reader_sleep: Arc<ReaderSleep>,
}

/// Number on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheAligned(AtomicU64);

/// State that tells whether a reader, with all its links, sleeps.
#[derive(Debug, Default)]
pub(crate) struct ReaderSleep(CacheAligned);

impl LinkMemory for Shared {
    fn load(&self, word: LinkWord, order: Ordering) -> u64 {
        self.word(word).load(order)
    }

    fn store(&self, word: LinkWord, value: u64, order: Ordering) {
        self.word(word).store(value, order);
    }
}

impl Shared {
    /// Creates an empty link to the reader with `reader_sleep`.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn new(reader_sleep: Arc<ReaderSleep>) -> Result<Arc<Self>, MemoryError> {
        let mapping = Arc::new(Mapping::private(LINK_BYTES)?);
        Ok(Arc::new(Self {
            mapping,
            written: CacheAligned::default(),
            read: CacheAligned::default(),
            reader_sleep,
        }))
    }

    fn word(&self, word: LinkWord) -> &AtomicU64 {
        match word {
            LinkWord::Written => &self.written.0,
            LinkWord::Read => &self.read.0,
            LinkWord::Asleep => &self.reader_sleep.0.0,
        }
    }
}

fn place(position: u64) -> usize {
    // Less than LINK_BYTES.
    (position % LINK_BYTES as u64) as usize
}

/// Head of a record.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    kind: u8,
    /// Bytes after the head.
    bytes: u32,
    address: LinkAddress,
    /// Header of the frame, or data of a station update.
    more: [u8; HEADER_BYTES],
    /// Time at which the frame was popped from its sender's ring.
    since_ns: u64,
}

impl Head {
    /// Returns the head as words, which are written as such.
    fn pack(&self) -> [[u8; 8]; HEAD_BYTES / 8] {
        // Seven bytes of the time fit, which is two years.
        let kind_since = self.since_ns << 8 | u64::from(self.kind);
        let [b0, b1, b2, b3] = self.bytes.to_le_bytes();
        let [m0, m1, m2, m3, more @ ..] = self.more;
        [self.address.pack(), kind_since.to_le_bytes(), [b0, b1, b2, b3, m0, m1, m2, m3], more]
    }

    fn unpack(raw: &[u8; HEAD_BYTES]) -> Option<Self> {
        let (address, rest) = raw.split_first_chunk()?;
        let (kind_since, rest) = rest.split_first_chunk()?;
        let (bytes, more) = rest.split_first_chunk()?;
        let kind_since = u64::from_le_bytes(*kind_since);
        Some(Self {
            kind: kind_since as u8,
            bytes: u32::from_le_bytes(*bytes),
            address: LinkAddress::unpack(*address),
            more: *more.first_chunk()?,
            since_ns: kind_since >> 8,
        })
    }
}

/// Writing side, on the reactor where frames come in.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    thread_mapping: ThreadMapping,
    at: u64,
    shown: u64,
    /// Position up to which the reader had released records at the last check.
    given_back: u64,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let thread_mapping = ThreadMapping::over(shared.mapping.clone());
        Self { shared, thread_mapping, at: 0, shown: 0, given_back: 0 }
    }

    /// Writes a frame; returns false if there is no room.
    pub(crate) fn put(&mut self, address: LinkAddress, frame: &EgressFrame<'_>) -> bool {
        let bytes = frame.bytes();
        let Some(at) = self.room(bytes) else { return false };
        let (head_at, body_at) = (at + HEAD_BYTES, at + HEAD_BYTES + frame.head.len());
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (more, since_ns) = (frame.header, frame.since_ns);
        let head = Head { kind: FRAME, bytes, address, more, since_ns };
        self.write_head(at, &head)
            && self.thread_mapping.write(head_at, frame.head)
            && frame.body.copy_to(self.thread_mapping.mapping(), body_at)
            && self.done(bytes as usize)
    }

    fn write_head(&self, at: usize, head: &Head) -> bool {
        self.thread_mapping.write(at, head.pack().as_flattened())
    }

    /// Writes a station update; returns false if there is no room.
    pub(crate) fn put_station(&mut self, station_update: StationUpdate) -> bool {
        let Some(at) = self.room(0) else { return false };
        let address =
            LinkAddress::new(station_update.port, station_update.vlan, station_update.term);
        let mut more = [0; HEADER_BYTES];
        more.iter_mut().zip(station_update.mac.0).for_each(|(place, byte)| *place = byte);
        let head = Head { kind: NEWS, address, more, ..Head::default() };
        self.write_head(at, &head) && self.done(0)
    }

    /// Publishes the records written since the last call. Returns true if the reader must be woken.
    pub(crate) fn show(&mut self) -> bool {
        if self.at == self.shown {
            return false;
        }
        self.shown = self.at;
        sync::publish(&*self.shared, self.at)
    }

    /// Returns the end of the last record.
    pub(crate) fn written(&self) -> u64 {
        self.at
    }

    /// Returns the end of the last record that the reader has released.
    pub(crate) fn arrived(&self) -> u64 {
        sync::released(&*self.shared)
    }

    /// Returns the position for a record with `bytes` bytes after its head.
    fn room(&mut self, bytes: usize) -> Option<usize> {
        let need = record(bytes);
        let behind = LINK_BYTES - place(self.at);
        let skip = if need > behind { behind } else { 0 };
        let end = self.at + (skip + need) as u64;
        if end - self.given_back > LINK_BYTES as u64 {
            self.given_back = sync::released(&*self.shared);
            if end - self.given_back > LINK_BYTES as u64 {
                return None;
            }
        }
        if skip > 0 {
            let head = Head { kind: WRAP, ..Head::default() };
            // Records are whole cache lines, so there is room for a head.
            if !self.write_head(place(self.at), &head) {
                return None;
            }
            self.at += skip as u64;
        }
        Some(place(self.at))
    }

    fn done(&mut self, bytes: usize) -> bool {
        self.at += record(bytes) as u64;
        true
    }
}

/// Returns the bytes that a record takes.
fn record(bytes: usize) -> usize {
    (HEAD_BYTES + bytes).next_multiple_of(ALIGN)
}

/// Reading side, on the reactor where frames go out.
#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    thread_mapping: ThreadMapping,
    at: u64,
    /// Position up to which the writer had published records at the last check.
    written: u64,
}

impl Reader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let thread_mapping = ThreadMapping::over(shared.mapping.clone());
        Self { shared, thread_mapping, at: 0, written: 0 }
    }

    /// Returns the next record, if there is one, and makes `frame` refer to the bytes of its frame.
    /// They are valid until [`Self::release`].
    pub(crate) fn next(&mut self, frame: &mut Buffers) -> Option<LinkRecord> {
        while self.has_more() {
            let (at, mut raw) = (place(self.at), [0; HEAD_BYTES]);
            let head =
                if self.thread_mapping.read(at, &mut raw) { Head::unpack(&raw) } else { None }?;
            if head.kind == WRAP {
                self.at += (LINK_BYTES - at) as u64;
                continue;
            }
            let bytes = head.bytes as usize;
            self.at += record(bytes) as u64;
            if head.kind == NEWS {
                let (at, mac) = (head.address, Mac(*head.more.first_chunk()?));
                let (port, term, vlan) = (at.port(), at.epoch(), at.queue());
                return Some(LinkRecord::Station(StationUpdate { port, term, vlan, mac }));
            }
            frame.clear();
            return frame
                .append_mapping(&self.thread_mapping, at + HEAD_BYTES, bytes)
                .then_some(LinkRecord::Frame(head.address, head.more, head.since_ns));
        }
        None
    }

    /// Releases all records that were read.
    pub(crate) fn release(&mut self) {
        sync::release(&*self.shared, self.at);
    }

    /// Returns whether there is a record to read.
    pub(crate) fn has_more(&mut self) -> bool {
        if self.at == self.written {
            self.written = sync::written(&*self.shared);
        }
        self.at != self.written
    }

    /// Announces that the reader's thread will sleep, unless one of its links has more records.
    pub(crate) fn prepare_sleep(&self) {
        sync::prepare_sleep(&*self.shared);
    }

    /// Announces that the reader's thread polls again.
    pub(crate) fn cancel_sleep(&self) {
        sync::cancel_sleep(&*self.shared);
    }
}

#[cfg(test)]
mod tests;
