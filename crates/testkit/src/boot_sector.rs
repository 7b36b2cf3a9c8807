//! Guests that fit in a boot sector. Firmware boots them in a tenth of the time of a Linux guest.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

const SECTOR_BYTES: usize = 512;
/// Silence after which [`SectorGuest::connect`] asks again. Firmware may have dropped the question.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// Answer to a letter that is no command.
const READY: u8 = b'>';
/// Answer if the disk fails.
const FAILED: u8 = b'!';

/// Code of [`SectorGuest`]. Firmware loads it at 0x7c00, and the disk that it came from is 0x80.
#[rustfmt::skip]
const COMMANDS: [u8; 0x93] = [
    0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, // 00: xor ax, ax; mov ds, ax; mov ss, ax
    0xbc, 0x00, 0x7c,                   // 06: mov sp, 0x7c00
    0xe8, 0x67, 0x00,                   // 09: next: call take
    0x3c, b'w', 0x74, 0x3a,             // 0c: cmp al, 'w'; je write
    0x3c, b'r', 0x74, 0x47,             // 10: cmp al, 'r'; je read
    0x3c, b'b', 0x74, 0x26,             // 14: cmp al, 'b'; je reset
    0x3c, b'p', 0x74, 0x16,             // 18: cmp al, 'p'; je off
    0xb0, READY,                        // 1c: mov al, READY
    0xe8, 0x02, 0x00, 0xeb, 0xe6,       // 1e: answer: call say; jmp next
    0x50,                               // 23: say: push ax
    0xba, 0xfd, 0x03, 0xec,             // 24: full: mov dx, 0x3fd; in al, dx
    0xa8, 0x20, 0x74, 0xf8,             // 28: test al, 0x20; jz full
    0x58, 0xba, 0xf8, 0x03, 0xee, 0xc3, // 2c: pop ax; mov dx, 0x3f8; out dx, al; ret
    0xe8, 0xee, 0xff,                   // 32: off: call say
    0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, // 35: mov dx, 0x604; mov ax, 0x2000
    0xef, 0xeb, 0x09,                   // 3b: out dx, ax; jmp halt
    0xe8, 0xe2, 0xff,                   // 3e: reset: call say
    0xba, 0xf9, 0x0c, 0xb0, 0x06, 0xee, // 41: mov dx, 0xcf9; mov al, 6; out dx, al
    0xf4, 0xeb, 0xfd,                   // 47: halt: hlt; jmp halt
    0xe8, 0x26, 0x00, 0xa2, 0x8b, 0x7c, // 4a: write: call take; mov [block], al
    0xe8, 0x20, 0x00, 0xa2, 0x00, 0x80, // 50: call take; mov [0x8000], al
    0xb8, 0x00, 0x43, 0xeb, 0x08,       // 56: mov ax, 0x4300; jmp disk
    0xe8, 0x15, 0x00, 0xa2, 0x8b, 0x7c, // 5b: read: call take; mov [block], al
    0xb4, 0x42,                         // 61: mov ah, 0x42
    0xbe, 0x83, 0x7c, 0xb2, 0x80,       // 63: disk: mov si, packet; mov dl, 0x80
    0xcd, 0x13, 0xa0, 0x00, 0x80,       // 68: int 0x13; mov al, [0x8000]
    0x73, 0xaf,                         // 6d: jnc answer
    0xb0, FAILED, 0xeb, 0xab,           // 6f: mov al, FAILED; jmp answer
    0xba, 0xfd, 0x03, 0xec,             // 73: take: mov dx, 0x3fd; in al, dx
    0xa8, 0x01, 0x75, 0x03,             // 77: test al, 1; jnz got
    0xf4, 0xeb, 0xf5,                   // 7b: hlt until the timer's next interrupt; jmp take
    0xba, 0xf8, 0x03, 0xec, 0xc3,       // 7e: got: mov dx, 0x3f8; in al, dx; ret
    16, 0, 1, 0, 0x00, 0x80, 0, 0,      // 83: packet: its size, one sector, to 0:0x8000
    0, 0, 0, 0, 0, 0, 0, 0,             // 8b: block
];

/// Returns a boot sector with this code, which firmware loads at 0x7c00.
///
/// # Panics
/// The code is longer than 510 bytes.
#[must_use]
pub fn bootable(code: &[u8]) -> Vec<u8> {
    assert!(code.len() <= SECTOR_BYTES - 2, "{} bytes of code", code.len());
    let mut sector = code.to_vec();
    sector.resize(SECTOR_BYTES - 2, 0);
    sector.extend([0x55, 0xaa]);
    sector
}

/// Guest that obeys letters on its serial line, and answers each command. It uses its first disk
/// through firmware, and ends as an operating system does: by ACPI's power control and by the
/// chipset's reset register.
#[derive(Debug)]
pub struct SectorGuest {
    line: UnixStream,
    /// Longest wait for an answer.
    deadline: Duration,
}

impl SectorGuest {
    /// Returns the boot sector of the guest's first disk. The guest uses further blocks as data.
    #[must_use]
    pub fn sector() -> Vec<u8> {
        bootable(&COMMANDS)
    }

    /// Connects to the guest's serial line, and waits until the guest has booted.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no line; [`Error::Timeout`]; [`Error::Closed`] if the guest ends.
    pub fn connect(line: &Path, deadline: Duration) -> Result<Self> {
        let at = |e| Error::io(format!("cannot connect to {}", line.display()), e);
        let line = UnixStream::connect(line).map_err(at)?;
        line.set_read_timeout(Some(ASK_AFTER)).map_err(at)?;
        let (mut guest, end) = (Self { line, deadline }, Instant::now() + deadline);
        loop {
            guest.send(b"?")?;
            match guest.receive()? {
                Some(READY) => break,
                None if Instant::now() < end => {}
                answer => return Err(timeout(&format!("boot, got {answer:?}"), deadline)),
            }
        }
        guest.line.set_read_timeout(Some(deadline)).map_err(at)?;
        Ok(guest)
    }

    /// Writes a sector that begins with this letter and is zero otherwise.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`Error::Io`] if the disk fails.
    pub fn write(&mut self, block: u8, letter: u8) -> Result<()> {
        self.command(&[b'w', block, letter]).map(drop)
    }

    /// Returns the first letter of a sector. It must not be `>` or `!`, which are answers.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&mut self, block: u8) -> Result<u8> {
        self.command(&[b'r', block])
    }

    /// Makes the guest reset itself. Returns once the guest has taken the command: QEMU drops what
    /// the guest has not read yet when a client of the line goes.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn reboot(mut self) -> Result<()> {
        self.command(b"b").map(drop)
    }

    /// Makes the guest power itself off. Returns as [`reboot`](Self::reboot) does.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn power_off(mut self) -> Result<()> {
        self.command(b"p").map(drop)
    }

    fn command(&mut self, command: &[u8]) -> Result<u8> {
        self.send(command)?;
        loop {
            match self.receive()? {
                // The guest may have been asked more than once whether it has booted.
                Some(READY) => {}
                Some(FAILED) => return Err(Error::io("the guest's disk fails", ErrorKind::Other)),
                Some(letter) => return Ok(letter),
                None => return Err(timeout(&format!("{command:?}"), self.deadline)),
            }
        }
    }

    fn send(&mut self, letters: &[u8]) -> Result<()> {
        self.line.write_all(letters).map_err(|e| Error::io("cannot write to the serial line", e))
    }

    /// Returns the next letter, or `None` if none comes in time.
    fn receive(&mut self) -> Result<Option<u8>> {
        let mut letter = [0];
        match self.line.read(&mut letter) {
            Ok(0) => Err(Error::Closed { what: "the guest's serial line".to_owned() }),
            Ok(_) => Ok(Some(letter[0])),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(None),
            Err(e) => Err(Error::io("cannot read the serial line", e)),
        }
    }
}

fn timeout(what: &str, after: Duration) -> Error {
    Error::Timeout {
        what: format!("the guest in the boot sector: {what}"),
        after_ms: after.as_millis(),
    }
}
