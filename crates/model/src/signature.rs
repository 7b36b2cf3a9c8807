//! First bytes of files that users state, or take, to be raw images.
//!
//! A guest can write any bytes to its disk, so the format of an image is never taken from them. They
//! are enough for advice to a person who may have stated the wrong format.

use std::fmt::Display;

use crate::image::ImageFormat;

/// Bytes at the start of a file that are compared.
pub const HEAD_BYTES: usize = 128;

/// Extended attribute of a file that a guest could write as a raw image. What its first bytes are
/// from then on is the guest's business.
pub const MARK: &str = "user.ringway.raw";

/// Content that the first bytes of a file suggest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
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
const SIGNATURES: [(usize, &[u8], Signature); 14] = [
    (0, b"QFI\xfb", Signature::Image(ImageFormat::Qcow2)),
    (0, b"conectix", Signature::Image(ImageFormat::Vhd)),
    (0, b"vhdxfile", Signature::Foreign("VHDX", "vhdx")),
    (0, b"KDMV", Signature::Foreign("VMDK", "vmdk")),
    (0, b"COWD", Signature::Foreign("VMDK", "vmdk")),
    (0, b"# Disk DescriptorFile", Signature::Foreign("VMDK", "vmdk")),
    (0x40, b"\x7f\x10\xda\xbe", Signature::Foreign("VirtualBox", "vdi")),
    (0, b"WithoutFreeSpace", Signature::Foreign("Parallels", "parallels")),
    (0, b"WithouFreSpacExt", Signature::Foreign("Parallels", "parallels")),
    (0, b"QED\0", Signature::Foreign("QED", "qed")),
    (0, b"LUKS\xba\xbe", Signature::Luks),
    (0, b"\x1f\x8b\x08", Signature::Compressed("gzip", "gunzip")),
    (0, b"\xfd7zXZ\0", Signature::Compressed("xz", "unxz")),
    (0, b"\x28\xb5\x2f\xfd", Signature::Compressed("zstd", "unzstd")),
];

impl Signature {
    /// Returns what a file with these first bytes begins like.
    pub fn of(head: &[u8]) -> Option<Self> {
        let begins = |at: usize, bytes: &[u8]| head.get(at..at + bytes.len()) == Some(bytes);
        SIGNATURES.iter().find(|(at, bytes, _)| begins(*at, bytes)).map(|(.., kind)| *kind)
    }

    /// Returns whether it is that of an image with metadata. Guests write the others to their disks:
    /// encrypted volumes, and compressed data without a file system.
    pub fn is_image(self) -> bool {
        matches!(self, Self::Image(_) | Self::Foreign(..))
    }

    /// Returns what the file with this name begins like.
    pub fn title(self) -> String {
        match self {
            Self::Image(format) => format!("a {} image", format.name()),
            Self::Foreign(title, _) => format!("a {title} image"),
            Self::Compressed(title, _) => format!("{title} data"),
            Self::Luks => "a LUKS volume".to_owned(),
        }
    }

    /// Returns the command that makes a raw image of the file. `None` if there is none.
    pub fn to_raw(self, file: &impl Display) -> Option<String> {
        let format = match self {
            Self::Image(format) => format.qemu_name(),
            Self::Foreign(_, format) => format,
            Self::Compressed(..) | Self::Luks => return None,
        };
        Some(format!("qemu-img convert -p -f {format} -O raw {file} NEW"))
    }

    /// Returns what to do with the file if it is what it begins like.
    pub fn remedy(self, file: &impl Display) -> String {
        let command = self.to_raw(file).unwrap_or_default();
        match self {
            Self::Image(format) => {
                let format = format.name();
                format!(
                    "if it is one, state that (--format {format}, or the backend \
                     {{\"{format}\":{{\"file\":...}}}}) or convert it: `{command}`"
                )
            }
            Self::Foreign(..) => format!("if it is one, convert it first: `{command}`"),
            Self::Compressed(_, program) => {
                format!("if it is that, decompress it first ({program})")
            }
            Self::Luks => "no key is used for it here, so the guest has to open it".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_has_advice() {
        for (at, bytes, kind) in SIGNATURES {
            let mut head = [0; HEAD_BYTES];
            head[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(Signature::of(&head), Some(kind));
            let (title, remedy) = (kind.title(), kind.remedy(&"/img/a"));
            assert!(!title.is_empty() && !remedy.is_empty(), "{kind:?}");
            assert_eq!(kind.is_image(), remedy.contains("qemu-img convert -p -f "), "{remedy}");
            assert_eq!(kind.is_image(), remedy.contains(" -O raw /img/a NEW"), "{remedy}");
        }
        assert_eq!(Signature::of(&[0; HEAD_BYTES]), None);
        assert_eq!(Signature::of(b"QF"), None);
    }
}
