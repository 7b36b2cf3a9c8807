//! Header extensions.

use crate::ImageError;

const END: u32 = 0;
const BACKING_FORMAT: u32 = 0xe279_2aca;
const FEATURE_NAMES: u32 = 0x6803_f857;
const BITMAPS: u32 = 0x2385_2875;
const CRYPTO: u32 = 0x0537_be77;
/// Most extensions of an image. The specification knows five kinds.
const MAX_EXTENSIONS: usize = 64;
/// Bytes of the type and length of an extension.
const HEAD_BYTES: usize = 8;

/// Header extension that this module does not interpret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Type.
    pub kind: u32,
    /// Content, without padding.
    pub data: Vec<u8>,
}

/// Place of the directory of persistent bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapsExtension {
    /// Number of bitmaps, at least 1.
    pub count: u32,
    /// Size of the directory in bytes.
    pub directory_bytes: u64,
    /// Offset of the directory in the file.
    pub directory_offset: u64,
}

/// Parsed extensions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extensions {
    pub(super) backing_format: Option<String>,
    pub(super) bitmaps: Option<BitmapsExtension>,
    pub(super) feature_names: Vec<u8>,
    pub(super) has_crypto_header: bool,
    pub(super) others: Vec<Extension>,
}

impl Extensions {
    /// Parses the extensions in `area`, which ends with the first cluster or at the backing name.
    pub(super) fn parse(mut area: &[u8]) -> Result<Self, ImageError> {
        let mut found = Self::default();
        for _ in 0..MAX_EXTENSIONS {
            let Some((head, rest)) = area.split_first_chunk::<HEAD_BYTES>() else {
                return Ok(found);
            };
            let kind = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let len = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
            if kind == END {
                return Ok(found);
            }
            let data = rest.get(..len).ok_or_else(|| {
                let problem =
                    format!("extension {kind:#010x} of {len} bytes ends behind the header");
                ImageError::header(problem)
            })?;
            found.add(kind, data)?;
            area = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
        Err(ImageError::header(format!("it has more than {MAX_EXTENSIONS} extensions")))
    }

    fn add(&mut self, kind: u32, data: &[u8]) -> Result<(), ImageError> {
        match kind {
            BACKING_FORMAT => {
                let name = std::str::from_utf8(data).ok().filter(|name| !name.contains('\0'));
                let invalid = || ImageError::header("the name of the backing format is no text");
                self.backing_format = Some(name.ok_or_else(invalid)?.into());
            }
            FEATURE_NAMES => self.feature_names = data.into(),
            BITMAPS => self.bitmaps = Some(BitmapsExtension::parse(data)?),
            CRYPTO => self.has_crypto_header = true,
            kind => self.others.push(Extension { kind, data: data.into() }),
        }
        Ok(())
    }

    /// Returns the bytes of the extensions that this module writes: format, names, end.
    pub(super) fn to_bytes(backing_format: Option<&str>, feature_names: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |kind: u32, data: &[u8]| {
            let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
            bytes.extend(kind.to_be_bytes());
            bytes.extend(len.to_be_bytes());
            bytes.extend(data);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        };
        backing_format.into_iter().for_each(|name| add(BACKING_FORMAT, name.as_bytes()));
        add(FEATURE_NAMES, feature_names);
        add(END, &[]);
        bytes
    }
}

impl BitmapsExtension {
    fn parse(data: &[u8]) -> Result<Self, ImageError> {
        let Ok(data) = <&[u8; 24]>::try_from(data) else {
            let problem = format!("the bitmaps extension has {} bytes instead of 24", data.len());
            return Err(ImageError::header(problem));
        };
        let [a, b, c, d, _, _, _, _, sizes @ ..] = *data;
        let (bytes, offset) = sizes.split_at(8);
        let word = |part: &[u8]| part.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        Ok(Self {
            count: u32::from_be_bytes([a, b, c, d]),
            directory_bytes: word(bytes),
            directory_offset: word(offset),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_extensions_parse_back() {
        let bytes = Extensions::to_bytes(Some("raw"), &[7; 5]);
        let parsed = Extensions::parse(&bytes).unwrap();
        assert_eq!(parsed.backing_format.as_deref(), Some("raw"));
        assert_eq!(parsed.feature_names, [7; 5]);
    }

    #[test]
    fn an_unknown_extension_is_kept_and_a_long_one_refused() {
        let mut bytes = vec![0, 0, 0, 9, 0, 0, 0, 3, 1, 2, 3, 0, 0, 0, 0, 0];
        let parsed = Extensions::parse(&bytes).unwrap();
        assert_eq!(parsed.others, [Extension { kind: 9, data: vec![1, 2, 3] }]);
        bytes[7] = 9;
        assert!(Extensions::parse(&bytes).is_err());
        let endless = [0, 0, 0, 9, 0, 0, 0, 0].repeat(MAX_EXTENSIONS + 1);
        assert!(Extensions::parse(&endless).is_err());
    }
}
