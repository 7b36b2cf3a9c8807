//! What giver and taker say to each other.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::keeper_link::{Link, MAX_DESCRIPTORS};
use crate::served_disk::DiskHandoverState;

/// Longest description in bytes: a disk of 256 queues and 509 memory regions has a fifth, a network with
/// all the stations that it can have a half.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// Most descriptors of a disk or NIC: three for each queue, one for each region, and a handful.
const MAX_DESCRIPTORS_OF_ONE: usize = 2048;
/// Shortest wait that the kernel knows: zero would be for ever.
const SHORTEST: Duration = Duration::from_millis(1);

/// Formats that a program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FormatRange {
    pub(super) oldest: u32,
    pub(super) newest: u32,
}

impl FormatRange {
    /// Of a program that does not say.
    pub(super) const FIRST: Self = Self { oldest: 1, newest: 1 };
}

/// What a taker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DestinationMessage {
    /// It has begun, and reads these formats of sessions, of disks, and of NICs.
    Hello {
        pid: u32,
        version: String,
        oldest: u32,
        newest: u32,
        disks: Option<FormatRange>,
        nics: Option<FormatRange>,
    },
    /// It has everything and waits for the word to go.
    Ready,
    /// It takes nothing over.
    Refused { why: String },
}

/// What a giver says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SourceMessage {
    /// A disk: the descriptor that comes along holds its description, and so many follow.
    Disk { descriptors: usize },
    /// A network, in the same way; its NICs come behind.
    Network { descriptors: usize },
    /// A NIC, in the same way.
    Nic { descriptors: usize },
    /// Descriptors of what was said last, as many as fit.
    More,
    /// There were so many disks, and so many NICs. Without any, that is not said: one that knows of
    /// none understands it.
    End {
        disks: usize,
        #[serde(default, skip_serializing_if = "is_zero")]
        nics: usize,
    },
    /// Serve.
    Go,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The other worker is gone, late, or says something odd.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoverError {
    /// It has ended, or has closed the way.
    #[error("it has ended")]
    Gone,
    /// It says nothing.
    #[error("it did not answer in time")]
    Late,
    /// It says something that does not belong here.
    #[error("it said something else than it should: {0}")]
    Odd(String),
    /// It refuses.
    #[error("it refused: {0}")]
    Refused(String),
    /// It comes from a program that is newer than this one, or much older.
    #[error(
        "the record of a {what} has format {found}, and this program reads {} to {}; upgrade by \
         way of a version in between", reads.oldest, reads.newest
    )]
    Format {
        /// A disk, or a NIC.
        what: &'static str,
        /// The record's.
        found: u64,
        /// What is read.
        reads: FormatRange,
    },
    /// The way is broken.
    #[error("the way to it is broken")]
    Io(#[from] io::Error),
}

fn failed(error: io::Error) -> HandoverError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => HandoverError::Late,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => HandoverError::Gone,
        io::ErrorKind::InvalidData => HandoverError::Odd(error.to_string()),
        _ => HandoverError::Io(error),
    }
}

/// Says something by `deadline`.
pub(super) fn send_message(
    way: &Link,
    deadline: Instant,
    what: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> Result<(), HandoverError> {
    let left = deadline.saturating_duration_since(Instant::now()).max(SHORTEST);
    set_socket_timeout(way, Timeout::Send, Some(left)).map_err(io::Error::from)?;
    way.send(what, fds).map_err(failed)
}

/// Hears something by `deadline`; without one, whenever it comes.
pub(super) fn receive_message<T: DeserializeOwned>(
    way: &Link,
    deadline: Option<Instant>,
) -> Result<(T, Vec<OwnedFd>), HandoverError> {
    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()).max(SHORTEST));
    set_socket_timeout(way, Timeout::Recv, left).map_err(io::Error::from)?;
    way.receive().map_err(failed)?.ok_or(HandoverError::Gone)
}

/// Hands over a disk, a NIC or a network: `word` announces its record and so many descriptors.
pub(super) fn say_record(
    way: &Link,
    deadline: Instant,
    word: &SourceMessage,
    record: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> Result<(), HandoverError> {
    let text = serde_json::to_vec(record).map_err(io::Error::from)?;
    let memory = memfd_create("ringway-handover", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let memory = File::from(memory);
    memory.write_all_at(&text, 0)?;
    send_message(way, deadline, word, &[memory.as_fd()])?;
    for fds in fds.chunks(MAX_DESCRIPTORS) {
        send_message(way, deadline, &SourceMessage::More, fds)?;
    }
    Ok(())
}

/// A disk as it is announced.
pub(super) fn say_disk(
    way: &Link,
    deadline: Instant,
    disk: &DiskHandoverState,
    fds: &[BorrowedFd<'_>],
) -> Result<(), HandoverError> {
    say_record(way, deadline, &SourceMessage::Disk { descriptors: fds.len() }, disk, fds)
}

/// The record of something that was announced with `count` descriptors, and these. Its format is looked
/// at before anything else in it.
pub(super) fn hear_record<T: DeserializeOwned>(
    way: &Link,
    deadline: Instant,
    (what, formats): (&'static str, FormatRange),
    count: usize,
    came: Vec<OwnedFd>,
) -> Result<(T, Vec<OwnedFd>), HandoverError> {
    let odd = |how: &str| HandoverError::Odd(format!("a {what} {how}"));
    let memory = came.into_iter().next().ok_or_else(|| odd("without description"))?;
    let memory = File::from(memory);
    let bytes = memory.metadata()?.len();
    if bytes > MAX_RECORD_BYTES || count > MAX_DESCRIPTORS_OF_ONE {
        return Err(odd("that is too large"));
    }
    let mut text = vec![0; bytes as usize];
    memory.read_exact_at(&mut text, 0)?;
    let record = read(&text, what, formats)?;
    let mut fds = Vec::new();
    while fds.len() < count {
        match receive_message(way, Some(deadline))? {
            (SourceMessage::More, more) if !more.is_empty() => fds.extend(more),
            (other, _) => return Err(HandoverError::Odd(format!("{other:?}"))),
        }
    }
    Ok((record, fds))
}

fn read<T: DeserializeOwned>(
    text: &[u8],
    what: &'static str,
    reads: FormatRange,
) -> Result<T, HandoverError> {
    let odd = |error: serde_json::Error| HandoverError::Odd(error.to_string());
    let record: Value = serde_json::from_slice(text).map_err(odd)?;
    let format = record.get("version").map_or(Some(1), Value::as_u64);
    let found = format.ok_or_else(|| HandoverError::Odd("a format that is no number".into()))?;
    if !(u64::from(reads.oldest)..=u64::from(reads.newest)).contains(&found) {
        return Err(HandoverError::Format { what, found, reads });
    }
    serde_json::from_value(record).map_err(odd)
}

#[cfg(test)]
mod tests {
    use super::super::DISK_FORMATS;
    use super::*;

    fn read_disk(text: &[u8]) -> Result<DiskHandoverState, HandoverError> {
        read(text, "disk", DISK_FORMATS)
    }

    /// As each was written when it was the newest.
    const FIRST: &str = include_str!("../../tests/fixtures/disk-1.json");
    const DISK: &str = include_str!("../../tests/fixtures/disk-2.json");

    #[test]
    fn every_recorded_format_is_read_and_written_byte_for_byte() {
        for text in [FIRST, DISK] {
            let disk = read_disk(text.as_bytes()).unwrap();
            assert_eq!(serde_json::to_string_pretty(&disk).unwrap() + "\n", text);
            // A field that this format does not have is one whose meaning would be lost.
            let novel = text.replacen('{', "{\"novel\": 1,", 1);
            assert!(matches!(read_disk(novel.as_bytes()), Err(HandoverError::Odd(_))));
        }
    }

    #[test]
    fn a_record_from_the_future_is_refused_by_its_format() {
        // Whatever else it may have.
        let future = DISK.replacen("\"version\": 2", "\"version\": 3, \"novel\": []", 1);
        let error = read_disk(future.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("has format 3, and this program reads 1 to 2"), "{error}");
        for odd in ["0", "18446744073709551615"] {
            let odd = DISK.replacen("\"version\": 2", &format!("\"version\": {odd}"), 1);
            assert!(
                matches!(read_disk(odd.as_bytes()), Err(HandoverError::Format { .. })),
                "{odd}"
            );
        }
        for odd in ["-1", "\"2\"", "null", "[2]"] {
            let odd = DISK.replacen("\"version\": 2", &format!("\"version\": {odd}"), 1);
            assert!(matches!(read_disk(odd.as_bytes()), Err(HandoverError::Odd(_))), "{odd}");
        }
    }

    #[test]
    fn disks_arrive_whole_with_all_descriptors() {
        let (way, other) = Link::pair().unwrap();
        let other = Link::new(other);
        let disk: DiskHandoverState = read_disk(DISK.as_bytes()).unwrap();
        let soon = Instant::now() + Duration::from_secs(60);
        let files: Vec<_> = (0..200u64)
            .map(|size| {
                let fd = memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
                rustix::fs::ftruncate(&fd, size).unwrap();
                fd
            })
            .collect();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| say_disk(&way, soon, &disk, &fds).unwrap());
            let (record, came) = receive_message(&other, Some(soon)).unwrap();
            let SourceMessage::Disk { descriptors: 200 } = record else { panic!("{record:?}") };
            let (found, fds) =
                hear_record::<DiskHandoverState>(&other, soon, ("disk", DISK_FORMATS), 200, came)
                    .unwrap();
            assert_eq!(found.id, disk.id);
            let size = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_size;
            assert!(fds.iter().map(size).eq(0..200));
        });
        // A way that nobody answers on is late, and one that nobody holds is gone.
        let brief = Instant::now() + Duration::from_millis(20);
        assert!(matches!(
            receive_message::<SourceMessage>(&other, Some(brief)),
            Err(HandoverError::Late)
        ));
        drop(way);
        assert!(matches!(receive_message::<SourceMessage>(&other, None), Err(HandoverError::Gone)));
        assert!(matches!(
            send_message(&other, soon, &DestinationMessage::Ready, &[]),
            Err(HandoverError::Gone)
        ));
    }
}
