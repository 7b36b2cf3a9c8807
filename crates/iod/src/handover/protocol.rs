//! Protocol between source and destination.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::connect::timeout_until;
use crate::keeper_link::{Link, MAX_DESCRIPTORS};
use crate::served_disk::DiskHandoverState;

/// Longest record in bytes. A disk of 256 queues and 509 memory regions needs a fifth of it. A
/// network with the maximum number of stations needs half of it.
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// Most descriptors of a disk or NIC: three for each queue, one for each region, and a handful.
const MAX_DESCRIPTORS_OF_ONE: usize = 2048;

/// Range of formats that a program supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FormatRange {
    pub(super) oldest: u32,
    pub(super) newest: u32,
}

impl FormatRange {
    /// Range of a program that reports none.
    pub(super) const FIRST: Self = Self { oldest: 1, newest: 1 };
}

/// Message from the destination to the source.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DestinationMessage {
    /// The destination has started and reads these formats of sessions, disks and NICs.
    Hello {
        pid: u32,
        version: String,
        oldest: u32,
        newest: u32,
        disks: Option<FormatRange>,
        nics: Option<FormatRange>,
    },
    /// The destination has everything and waits for `Go`.
    Ready,
    /// The destination refuses to take over.
    Refused { why: String },
}

/// Message from the source to the destination.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SourceMessage {
    /// A disk. The attached descriptor holds its record, and this many descriptors follow.
    Disk { descriptors: usize },
    /// A network, in the same form. Its NICs follow.
    Network { descriptors: usize },
    /// A NIC, in the same form.
    Nic { descriptors: usize },
    /// Further descriptors of the last record, as many as fit.
    More,
    /// End of the records, with the numbers of disks and NICs. The number of NICs is omitted if it
    /// is zero, so that a destination without NIC support understands the message.
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

/// Error: the peer is gone, late, or sent an unexpected message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandoverError {
    /// The peer has ended or has closed the link.
    #[error("the other worker has ended")]
    Gone,
    /// The peer sends nothing.
    #[error("the other worker did not answer in time")]
    Late,
    /// The peer sent an unexpected message.
    #[error("unexpected message: {0}")]
    Odd(String),
    /// The peer refuses.
    #[error("the other worker refused: {0}")]
    Refused(String),
    /// The record comes from a program that is newer than this one, or much older.
    #[error(
        "the record of a {what} has format {found}, and this program reads {} to {}; upgrade by \
         way of a version in between", reads.oldest, reads.newest
    )]
    Format {
        /// Disk or NIC.
        what: &'static str,
        /// Format of the record.
        found: u64,
        /// Formats that this program reads.
        reads: FormatRange,
    },
    /// The link failed.
    #[error("the handover link failed")]
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

/// Sends a message by `deadline`.
pub(super) fn send_message(
    way: &Link,
    deadline: Instant,
    what: &impl Serialize,
    fds: &[BorrowedFd<'_>],
) -> Result<(), HandoverError> {
    let left = timeout_until(deadline);
    set_socket_timeout(way, Timeout::Send, Some(left)).map_err(io::Error::from)?;
    way.send(what, fds).map_err(failed)
}

/// Receives a message by `deadline`. Without a deadline, it waits as long as needed.
pub(super) fn receive_message<T: DeserializeOwned>(
    way: &Link,
    deadline: Option<Instant>,
) -> Result<(T, Vec<OwnedFd>), HandoverError> {
    let left = deadline.map(timeout_until);
    set_socket_timeout(way, Timeout::Recv, left).map_err(io::Error::from)?;
    way.receive().map_err(failed)?.ok_or(HandoverError::Gone)
}

/// Hands over a disk, NIC or network. `word` announces its record and the number of descriptors.
pub(super) fn send_record(
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

/// Hands over a disk. See [`send_record`].
pub(super) fn send_disk(
    way: &Link,
    deadline: Instant,
    disk: &DiskHandoverState,
    fds: &[BorrowedFd<'_>],
) -> Result<(), HandoverError> {
    send_record(way, deadline, &SourceMessage::Disk { descriptors: fds.len() }, disk, fds)
}

/// Receives the record that was announced with `count` descriptors, and these descriptors. The
/// record's format is checked before anything else in it.
pub(super) fn receive_record<T: DeserializeOwned>(
    way: &Link,
    deadline: Instant,
    (what, formats): (&'static str, FormatRange),
    count: usize,
    received: Vec<OwnedFd>,
) -> Result<(T, Vec<OwnedFd>), HandoverError> {
    let odd = |how: &str| HandoverError::Odd(format!("a {what} {how}"));
    let memory = received.into_iter().next().ok_or_else(|| odd("without description"))?;
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
    let found = format.ok_or_else(|| HandoverError::Odd("a format that is not a number".into()))?;
    if !(u64::from(reads.oldest)..=u64::from(reads.newest)).contains(&found) {
        return Err(HandoverError::Format { what, found, reads });
    }
    serde_json::from_value(record).map_err(odd)
}

#[cfg(test)]
mod tests {
    use super::super::DISK_FORMATS;
    use std::time::Duration;

    use super::*;

    fn read_disk(text: &[u8]) -> Result<DiskHandoverState, HandoverError> {
        read(text, "disk", DISK_FORMATS)
    }

    /// Samples of each format, written when that format was the newest.
    const FIRST: &str = include_str!("../../tests/fixtures/disk-1.json");
    const SECOND: &str = include_str!("../../tests/fixtures/disk-2.json");
    const THIRD: &str = include_str!("../../tests/fixtures/disk-3.json");
    const DISK: &str = include_str!("../../tests/fixtures/disk-4.json");

    #[test]
    fn every_recorded_format_is_read_and_written_byte_for_byte() {
        for text in [FIRST, SECOND, THIRD, DISK] {
            let disk = read_disk(text.as_bytes()).unwrap();
            assert_eq!(serde_json::to_string_pretty(&disk).unwrap() + "\n", text);
            // An unknown field is refused, because ignoring it would lose its meaning.
            let novel = text.replacen('{', "{\"novel\": 1,", 1);
            assert!(matches!(read_disk(novel.as_bytes()), Err(HandoverError::Odd(_))));
        }
    }

    #[test]
    fn a_record_from_the_future_is_refused_by_its_format() {
        // The version alone decides, whatever other fields there are.
        let future = DISK.replacen("\"version\": 4", "\"version\": 5, \"novel\": []", 1);
        let error = read_disk(future.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("has format 5, and this program reads 1 to 4"), "{error}");
        for odd in ["0", "18446744073709551615"] {
            let odd = DISK.replacen("\"version\": 4", &format!("\"version\": {odd}"), 1);
            assert!(
                matches!(read_disk(odd.as_bytes()), Err(HandoverError::Format { .. })),
                "{odd}"
            );
        }
        for odd in ["-1", "\"3\"", "null", "[3]"] {
            let odd = DISK.replacen("\"version\": 4", &format!("\"version\": {odd}"), 1);
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
            scope.spawn(|| send_disk(&way, soon, &disk, &fds).unwrap());
            let (record, received) = receive_message(&other, Some(soon)).unwrap();
            let SourceMessage::Disk { descriptors: 200 } = record else { panic!("{record:?}") };
            let (found, fds) = receive_record::<DiskHandoverState>(
                &other,
                soon,
                ("disk", DISK_FORMATS),
                200,
                received,
            )
            .unwrap();
            assert_eq!(found.id, disk.id);
            let size = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_size;
            assert!(fds.iter().map(size).eq(0..200));
        });
        // No answer on an open link is `Late`; a closed link is `Gone`.
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
