//! First bytes of files that are served as raw images.
//!
//! A guest can write any bytes to its disk, so the format of an image is never taken from them. They
//! are enough for advice to a person who may have stated the wrong format.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use disk::{FileDisk, open_image};
use image::{ImageError, ImageFile as _, PlainFile, run_now};
use model::image::ImageFormat;
use model::spec::FileRef;

/// Bytes that are compared.
const HEAD_BYTES: usize = 128;
/// Alignment of reads that is enough for direct I/O on every storage.
const ALIGNMENT: usize = 4096;

/// What a file is that begins with a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Image that can be served in its own format.
    Image(ImageFormat),
    /// Image that QEMU converts. The words are its name, and QEMU's name.
    Foreign(&'static str, &'static str),
    /// Compressed data, and the program that decompresses it.
    Compressed(&'static str, &'static str),
    /// Encrypted volume. A guest that encrypts its whole disk has one, too.
    Luks,
}

/// Place and bytes of each signature.
const SIGNATURES: [(usize, &[u8], Kind); 11] = [
    (0, b"QFI\xfb", Kind::Image(ImageFormat::Qcow2)),
    (0, b"conectix", Kind::Image(ImageFormat::Vhd)),
    (0, b"vhdxfile", Kind::Foreign("VHDX", "vhdx")),
    (0, b"KDMV", Kind::Foreign("VMDK", "vmdk")),
    (0, b"# Disk DescriptorFile", Kind::Foreign("VMDK", "vmdk")),
    (0x40, b"\x7f\x10\xda\xbe", Kind::Foreign("VirtualBox", "vdi")),
    (0, b"QED\0", Kind::Foreign("QED", "qed")),
    (0, b"LUKS\xba\xbe", Kind::Luks),
    (0, b"\x1f\x8b\x08", Kind::Compressed("gzip", "gunzip")),
    (0, b"\xfd7zXZ\0", Kind::Compressed("xz", "unxz")),
    (0, b"\x28\xb5\x2f\xfd", Kind::Compressed("zstd", "unzstd")),
];

impl Kind {
    fn of(head: &[u8]) -> Option<Self> {
        let begins = |at: usize, bytes: &[u8]| head.get(at..at + bytes.len()) == Some(bytes);
        SIGNATURES.iter().find(|(at, bytes, _)| begins(*at, bytes)).map(|(.., kind)| *kind)
    }

    /// Returns what the file begins like, and what to do if it is that.
    fn text(self, name: &FileRef) -> String {
        match self {
            Self::Image(format) => {
                let format = format.name();
                format!(
                    "begins like a {format} image; if it is one, state that: --format {format}, or \
                     the backend {{\"{format}\":{{\"file\":...}}}}"
                )
            }
            Self::Foreign(title, format) => format!(
                "begins like a {title} image; if it is one, convert it first: `qemu-img convert -p \
                 -f {format} -O raw {name} NEW`"
            ),
            Self::Compressed(title, program) => {
                format!("begins like {title} data; if it is that, decompress it first ({program})")
            }
            Self::Luks => {
                "begins like a LUKS volume; no key is used for it here, so the guest has \
                           to open it"
                    .to_owned()
            }
        }
    }
}

/// Returns a note if a raw image file begins like something else. A device is not read: it may hang,
/// and an attach must not wait for it.
pub(super) fn note(name: &FileRef, disk: &FileDisk) -> Option<String> {
    if disk.identity().ok()?.inode == 0 {
        return None;
    }
    let kind = read(Arc::clone(disk.handover().0))?;
    Some(format!("{name} is served as a raw image and {}", kind.text(name)))
}

/// Returns what a file begins like, if that is an image with metadata: then its size is not that of a
/// disk.
pub(super) fn container(name: &FileRef) -> Option<String> {
    let FileRef::Path(path) = name else { return None };
    match read(Arc::new(open_image(path, true).ok()?))? {
        Kind::Luks => None,
        kind => Some(kind.text(name)),
    }
}

/// Reads the signature of a file. An image that cannot be read says so when it is served.
fn read(file: Arc<OwnedFd>) -> Option<Kind> {
    let mut head = [0; HEAD_BYTES];
    let file = PlainFile::direct(file, ALIGNMENT).ok()?;
    let read = async { file.read_at(0, &mut head).await.map_err(ImageError::io("read", 0)) };
    run_now(read).ok()?;
    Kind::of(&head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_has_advice() {
        let name = FileRef::Path("/img/a".into());
        for (at, bytes, kind) in SIGNATURES {
            let mut head = [0; HEAD_BYTES];
            head[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(Kind::of(&head), Some(kind));
            assert!(kind.text(&name).starts_with("begins like "), "{kind:?}");
        }
        assert_eq!(Kind::of(&[0; HEAD_BYTES]), None);
        assert_eq!(Kind::of(b"QF"), None);
    }
}
