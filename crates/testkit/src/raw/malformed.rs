//! Catalogue of broken requests and rings that a guest can make.
//!
//! Each entry writes itself into a guest's memory, and defines what a backend may do. If header and
//! status byte can be found, the request must fail with a status. Anything else may end the queue,
//! but must never succeed. No other queue or session may notice.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use testkit::raw::{Guest, Malformed, Setup};
//! # fn main() -> testkit::Result<()> {
//! for bad in Malformed::ALL {
//!     let mut guest = Guest::start("/run/disk.sock".as_ref(), &Setup::default())?;
//!     let outcome = bad.inflict(&mut guest, 0, Duration::from_millis(300))?;
//!     assert!(bad.expect().accepts(&outcome), "{bad:?}: {outcome:?}");
//! }
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use super::guest::{Guest, WaitEvent};
use super::request::{HEADER_BYTES, Placed, Request, kind, status};
use super::ring::{DESC_INDIRECT, DESC_NEXT, Desc, SplitRing, link};
use crate::error::Result;

/// Descriptors of an overlong chain. Linux makes chains longer than the queue, so backends allow up
/// to 1024 descriptors. No driver needs as many as these.
pub const OVERLONG: usize = 1100;

/// A malformed request or ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The data descriptor links to itself.
    SelfLoop,
    /// The last descriptor links to the first.
    LongLoop,
    /// An indirect table whose descriptors loop.
    IndirectLoop,
    /// A chain of [`OVERLONG`] descriptors, in an indirect table.
    OverlongIndirect,
    /// Data past the end of all memory.
    DataOutside,
    /// Data that starts inside and ends outside.
    DataStraddlesEnd,
    /// Header past the end of all memory.
    HeaderOutside,
    /// Status byte past the end of all memory.
    StatusOutside,
    /// Data of length zero.
    ZeroLengthData,
    /// Header of length zero.
    ZeroLengthHeader,
    /// Address near 2^64, so that address plus length wraps around.
    WrapAround,
    /// Length of 4 GiB less one.
    HugeLength,
    /// Eight bytes of header.
    ShortHeader,
    /// Header in a buffer that the device is to write.
    WritableHeader,
    /// No descriptor that the device may write.
    NoStatus,
    /// A status byte that the device may only read.
    ReadOnlyStatus,
    /// No header, only a status byte.
    NoHeader,
    /// A readable descriptor after a writable one.
    ReadableAfterWritable,
    /// Read of one sector past the end.
    ReadPastEnd,
    /// Write of one sector past the end.
    WritePastEnd,
    /// Read that starts inside and ends past the end.
    ReadAcrossEnd,
    /// Sector whose byte offset does not fit 64 bits.
    SectorOverflow,
    /// Sector 2^64 - 1, so that sector plus count wraps around.
    SectorWrap,
    /// Data of 513 bytes.
    UnevenData,
    /// A request type that is not defined.
    UnknownType,
    /// GET_ID with a buffer of 4 bytes.
    ShortId,
    /// DISCARD of a range past the end.
    DiscardPastEnd,
    /// DISCARD whose sector count wraps around.
    DiscardWrap,
    /// DISCARD with reserved flags.
    DiscardFlags,
    /// DISCARD with half a range.
    DiscardHalfRange,
    /// WRITE_ZEROES past the end.
    WriteZeroesPastEnd,
    /// WRITE_ZEROES with reserved flags.
    WriteZeroesFlags,
    /// The available ring contains a head past the table.
    HeadOutOfRange,
    /// A descriptor's next is past the table.
    NextOutOfRange,
    /// The available index jumps by more than the queue's size.
    IndexJump,
    /// The available index goes back by one.
    IndexBack,
    /// An indirect descriptor inside an indirect table.
    IndirectNested,
    /// An indirect descriptor with a next flag.
    IndirectWithNext,
    /// An indirect table of 24 bytes.
    IndirectUneven,
    /// An indirect table of length zero.
    IndirectEmpty,
    /// An indirect table outside memory.
    IndirectOutside,
    /// An indirect table whose first descriptor links outside of it.
    IndirectNextOutside,
}

/// Allowed reactions of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The request completes with one of these statuses.
    Status(&'static [u8]),
    /// The request does not succeed. Allowed are an error status, a used element without status, a
    /// signalled queue error, a closed connection, and silence.
    NoSuccess,
    /// The entry is wrong but harmless. Success is allowed too.
    Survives,
}

/// Reaction of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Event that ended the wait.
    pub event: WaitEvent,
    /// Status byte, if the device wrote it.
    pub status: Option<u8>,
}

impl Expect {
    /// Returns whether the outcome is allowed.
    #[must_use]
    pub fn accepts(&self, outcome: &Outcome) -> bool {
        match self {
            Self::Survives => true,
            Self::NoSuccess => outcome.status != Some(status::OK),
            Self::Status(allowed) => {
                matches!(outcome.event, WaitEvent::Used(_))
                    && outcome.status.is_some_and(|s| allowed.contains(&s))
            }
        }
    }
}

const FAILED: Expect = Expect::Status(&[status::IOERR]);
const FAILED_OR_UNSUPPORTED: Expect = Expect::Status(&[status::IOERR, status::UNSUPP]);
const UNSUPPORTED: Expect = Expect::Status(&[status::UNSUPP]);

impl Malformed {
    /// All entries.
    pub const ALL: [Self; 42] = {
        use Malformed::*;
        [
            SelfLoop,
            LongLoop,
            IndirectLoop,
            OverlongIndirect,
            DataOutside,
            DataStraddlesEnd,
            HeaderOutside,
            StatusOutside,
            ZeroLengthData,
            ZeroLengthHeader,
            WrapAround,
            HugeLength,
            ShortHeader,
            WritableHeader,
            NoStatus,
            ReadOnlyStatus,
            NoHeader,
            ReadableAfterWritable,
            ReadPastEnd,
            WritePastEnd,
            ReadAcrossEnd,
            SectorOverflow,
            SectorWrap,
            UnevenData,
            UnknownType,
            ShortId,
            DiscardPastEnd,
            DiscardWrap,
            DiscardFlags,
            DiscardHalfRange,
            WriteZeroesPastEnd,
            WriteZeroesFlags,
            HeadOutOfRange,
            NextOutOfRange,
            IndexJump,
            IndexBack,
            IndirectNested,
            IndirectWithNext,
            IndirectUneven,
            IndirectEmpty,
            IndirectOutside,
            IndirectNextOutside,
        ]
    };

    /// Returns the allowed reactions of a backend.
    #[must_use]
    pub fn expect(self) -> Expect {
        use Malformed::*;
        match self {
            ReadPastEnd | WritePastEnd | ReadAcrossEnd | SectorOverflow | SectorWrap => FAILED,
            DiscardPastEnd | DiscardWrap | WriteZeroesPastEnd | UnevenData => FAILED_OR_UNSUPPORTED,
            DiscardHalfRange => FAILED_OR_UNSUPPORTED,
            UnknownType | DiscardFlags | WriteZeroesFlags => UNSUPPORTED,
            ShortId => Expect::Survives,
            _ => Expect::NoSuccess,
        }
    }

    /// Writes the entry to a queue, kicks, and waits at most `deadline` for a reaction. The queue
    /// must be idle and work well.
    ///
    /// # Errors
    /// A failure on the test's side. The backend's reaction is the [`Outcome`].
    pub fn inflict(self, guest: &mut Guest, queue: usize, deadline: Duration) -> Result<Outcome> {
        let sectors = match guest.config() {
            Ok(config) => config.capacity_sectors,
            Err(error) => return Err(error),
        };
        let placed = self.request(sectors).place(&mut guest.memory)?;
        self.lay_out(guest, queue, &placed)?;
        guest.kick(queue)?;
        let event = guest.wait(queue, deadline)?;
        let byte = placed.status(&guest.memory)?;
        Ok(Outcome { event, status: (byte != status::UNTOUCHED).then_some(byte) })
    }

    /// Returns the request to be malformed. For the last group the request itself is wrong.
    fn request(self, sectors: u64) -> Request {
        use Malformed::*;
        match self {
            ReadPastEnd => Request::read(sectors, 512),
            WritePastEnd => Request::write(sectors, &[7; 512]),
            ReadAcrossEnd => Request::read(sectors.saturating_sub(1), 1024),
            SectorOverflow => Request::read(1 << 55, 512),
            SectorWrap => Request::read(u64::MAX, 512),
            UnevenData => Request::read(0, 513),
            UnknownType => Request::bare(0x7777),
            ShortId => Request { input: vec![4], ..Request::get_id() },
            DiscardPastEnd => Request::range(kind::DISCARD, sectors, 8, 0),
            DiscardWrap => Request::range(kind::DISCARD, u64::MAX - 1, 8, 0),
            DiscardFlags => Request::range(kind::DISCARD, 0, 8, 0xfffe),
            DiscardHalfRange => {
                Request { out: vec![0; 8], ..Request::range(kind::DISCARD, 0, 8, 0) }
            }
            WriteZeroesPastEnd => Request::range(kind::WRITE_ZEROES, sectors, 8, 0),
            WriteZeroesFlags => Request::range(kind::WRITE_ZEROES, 0, 8, 0xfffe),
            _ => Request::read(0, 512),
        }
    }

    /// Puts the malformed request on the ring and publishes it.
    fn lay_out(self, guest: &mut Guest, queue: usize, placed: &Placed) -> Result<()> {
        use Malformed::*;
        let memory = &mut guest.memory;
        let ring = &mut guest.queues[queue].ring;
        let first = ring.reserve(4)?;
        let mut chain = link(&placed.descs(), first);
        match self {
            SelfLoop => chain[1].next = first + 1,
            LongLoop => {
                chain[2].flags |= DESC_NEXT;
                chain[2].next = first;
            }
            NextOutOfRange => chain[1].next = ring.size,
            IndirectLoop | OverlongIndirect | IndirectNested | IndirectWithNext
            | IndirectUneven | IndirectEmpty | IndirectOutside | IndirectNextOutside => {
                chain = self.indirect(memory, placed, first)?;
            }
            _ => chain = link(&self.bend(placed, memory.end()), first),
        }
        for (index, desc) in (first..).zip(&chain) {
            ring.set_desc(memory, index, *desc)?;
        }
        match self {
            HeadOutOfRange => ring.publish(memory, ring.size),
            IndexJump => ring.set_avail_idx(memory, ring.avail_idx.wrapping_add(ring.size + 1)),
            IndexBack => ring.set_avail_idx(memory, ring.avail_idx.wrapping_sub(1)),
            _ => ring.publish(memory, first),
        }
    }

    /// Returns the descriptors of a direct chain, not linked yet. `outside` is an address outside
    /// of all memory.
    fn bend(self, placed: &Placed, outside: u64) -> Vec<Desc> {
        use Malformed::*;
        let mut descs = placed.descs();
        match self {
            DataOutside => descs[1].addr = outside,
            DataStraddlesEnd => descs[1].addr = outside - 256,
            HeaderOutside => descs[0].addr = outside,
            StatusOutside => descs[2].addr = outside,
            ZeroLengthData => descs[1].len = 0,
            ZeroLengthHeader => descs[0].len = 0,
            WrapAround => descs[1].addr = u64::MAX - 255,
            HugeLength => descs[1].len = u32::MAX,
            ShortHeader => descs[0].len = HEADER_BYTES / 2,
            WritableHeader => descs[0] = Desc::writable(placed.header, HEADER_BYTES),
            NoStatus => descs.truncate(1),
            ReadOnlyStatus => descs = vec![descs[0], Desc::readable(placed.status, 1)],
            NoHeader => descs.drain(..2).for_each(drop),
            ReadableAfterWritable => descs[2] = Desc::readable(placed.status, 1),
            _ => {}
        }
        descs
    }

    /// Builds the chain on the ring for the entries about indirect tables.
    fn indirect(
        self,
        memory: &mut super::memory::SharedMemory,
        placed: &Placed,
        first: u16,
    ) -> Result<Vec<Desc>> {
        use Malformed::*;
        let mut table = placed.descs();
        if self == OverlongIndirect {
            let (data, _) = placed.input[0];
            table.splice(1..2, (2..OVERLONG).map(|_| Desc::writable(data, 512)));
        }
        let mut table = link(&table, 0);
        match self {
            IndirectLoop => table[1].next = 0,
            IndirectNextOutside => table[0].next = 3,
            IndirectNested => table[1].flags |= DESC_INDIRECT,
            _ => {}
        }
        let mut outer = SplitRing::indirect(memory, &table)?;
        match self {
            IndirectUneven => outer.len = 24,
            IndirectEmpty => outer.len = 0,
            IndirectOutside => outer.addr = memory.end(),
            IndirectWithNext => {
                outer.flags |= DESC_NEXT;
                outer.next = first + 1;
                return Ok(vec![outer, Desc::writable(placed.status, 1)]);
            }
            _ => {}
        }
        Ok(vec![outer])
    }
}
