//! Parent locators: where a differencing image says that its parent is. They are shown, and never
//! followed.

use super::fields::{array, put, u32_at, u64_at};
use super::header::{LOCATOR_BYTES, utf16};
use super::image::Image;
use crate::ImageFile;

/// Longest text of a locator in bytes.
const MAX_TEXT_BYTES: u32 = 8192;
/// Beginning of the addresses of files.
const FILE_SCHEME: &str = "file://";

/// Kind of the text of a locator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Platform {
    /// `MacX`: a `file:` address in UTF-8, of XenServer.
    MacX,
    /// `W2ku`: a path in UTF-16.
    W2ku,
    /// `W2ru`: a path relative to the image, in UTF-16.
    W2ru,
}

impl Platform {
    /// All kinds, the one first that says most to a host with Linux.
    pub(super) const ALL: [Self; 3] = [Self::MacX, Self::W2ru, Self::W2ku];

    fn code(self) -> &'static [u8; 4] {
        match self {
            Self::MacX => b"MacX",
            Self::W2ku => b"W2ku",
            Self::W2ru => b"W2ru",
        }
    }

    /// Encodes a path.
    pub(super) fn encode(self, path: &str) -> Vec<u8> {
        match self {
            Self::MacX if path.starts_with('/') => format!("{FILE_SCHEME}{path}").into(),
            Self::MacX => format!("{FILE_SCHEME}./{path}").into(),
            Self::W2ku | Self::W2ru => path.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        }
    }

    /// Decodes a path.
    fn decode(self, bytes: &[u8]) -> String {
        let path: String = match self {
            Self::MacX => {
                let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                let text = String::from_utf8_lossy(text);
                text.strip_prefix(FILE_SCHEME).unwrap_or(&text).into()
            }
            Self::W2ku | Self::W2ru => utf16(bytes, u16::from_le_bytes).replace('\\', "/"),
        };
        match path.strip_prefix("./") {
            Some(relative) => relative.into(),
            None => path,
        }
    }
}

/// Place of the text of a locator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Locator {
    pub(super) platform: Platform,
    /// Bytes of the text.
    pub(super) len: u32,
    /// Offset in the file in bytes.
    pub(super) offset: u64,
}

impl Locator {
    /// Parses the locators of known kinds.
    pub(super) fn parse_all(bytes: &[u8]) -> Vec<Self> {
        let entries = bytes.chunks_exact(LOCATOR_BYTES);
        let known = entries.filter_map(|entry| {
            let code: [u8; 4] = array(entry, 0);
            let platform = Platform::ALL.into_iter().find(|one| *one.code() == code)?;
            Some(Self { platform, len: u32_at(entry, 8), offset: u64_at(entry, 16) })
        });
        known.filter(|one| one.len <= MAX_TEXT_BYTES).collect()
    }

    pub(super) fn to_bytes(self) -> [u8; LOCATOR_BYTES] {
        let mut bytes = [0; LOCATOR_BYTES];
        put(&mut bytes, 0, self.platform.code());
        // Programs disagree on the unit. XenServer's takes bytes.
        put(&mut bytes, 4, &self.len.next_multiple_of(512).to_be_bytes());
        put(&mut bytes, 8, &self.len.to_be_bytes());
        put(&mut bytes, 16, &self.offset.to_be_bytes());
        bytes
    }
}

impl<F: ImageFile> Image<F> {
    /// Returns the path of the parent as the image has it, if it has one that can be read. A host
    /// with Linux reads `MacX` and `W2ru` best.
    pub async fn parent_path(&mut self) -> Option<String> {
        let locators = self.header.as_ref()?.locators.clone();
        for platform in Platform::ALL {
            for locator in locators.iter().filter(|one| one.platform == platform) {
                let mut text = vec![0; locator.len as usize];
                // A locator that cannot be read says nothing: the caller states the parent.
                let read = self.tables.read("parent locator", locator.offset, &mut text).await;
                let path = platform.decode(&text);
                if read.is_ok() && !path.is_empty() {
                    return Some(path);
                }
            }
        }
        let name = self.header.as_ref().map(|header| header.parent_name.clone());
        name.filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back() {
        for platform in Platform::ALL {
            for path in ["/img/ü.vhd", "b.vhd"] {
                let found = platform.decode(&platform.encode(path));
                assert_eq!(found, path, "{platform:?}");
            }
        }
        let windows: Vec<u8> = ".\\a.vhd".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(Platform::W2ru.decode(&windows), "a.vhd");
    }

    #[test]
    fn unknown_kinds_and_long_texts_are_left_out() {
        let locator = Locator { platform: Platform::W2ku, len: 20, offset: 4096 };
        let mut bytes = locator.to_bytes().to_vec();
        bytes.extend([0; LOCATOR_BYTES]);
        let mut long = locator.to_bytes();
        put(&mut long, 8, &u32::MAX.to_be_bytes());
        bytes.extend(long);
        assert_eq!(Locator::parse_all(&bytes), [locator]);
    }
}
