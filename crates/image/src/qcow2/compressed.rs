//! Compressed clusters.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::feature::{Features, Incompatible};
use crate::ImageError;

/// Largest window of zstd data in bytes. Encoders choose at most the size of a cluster, 2 MiB.
const MAX_WINDOW_BYTES: u64 = 8 << 20;
/// Number of bytes that are decoded before they are copied out.
const STEP_BYTES: usize = 128 << 10;

/// Compression method of an image's compressed clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Raw deflate, which QEMU calls `zlib`.
    Deflate,
    /// Zstandard.
    Zstd,
}

impl Compression {
    /// Parses the method of a header.
    pub(super) fn from_header(features: Features, method: u8) -> Result<Self, ImageError> {
        let is_named = features.incompatible & Incompatible::COMPRESSION != 0;
        match (method, is_named) {
            (0, false) => Ok(Self::Deflate),
            (1, true) => Ok(Self::Zstd),
            (0 | 1, _) => {
                let problem = format!("compression method {method} contradicts the feature bits");
                Err(ImageError::header(problem))
            }
            (other, _) => Err(ImageError::Unsupported {
                feature: format!("compression method {other}"),
                next: "copy it with the program that made it",
            }),
        }
    }

    /// Returns the name that QEMU uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deflate => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// Decompresses a cluster: fills `out`. `data` may be longer than the compressed data.
    ///
    /// # Errors
    /// The cause, as text: `data` is damaged or has fewer bytes than `out`.
    pub(super) fn decompress(self, data: &[u8], out: &mut [u8]) -> Result<(), String> {
        match self {
            Self::Deflate => inflate(data, out),
            Self::Zstd => unzstd(data, out),
        }
    }
}

fn inflate(data: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut state = Box::<DecompressorOxide>::default();
    let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let (status, _, written) = decompress(&mut state, data, out, 0, flags);
    let is_whole = matches!(status, TINFLStatus::Done | TINFLStatus::HasMoreOutput);
    if is_whole && written == out.len() {
        return Ok(());
    }
    Err(format!("deflate data gives {written} of {} bytes ({status:?})", out.len()))
}

fn unzstd(mut data: &[u8], out: &mut [u8]) -> Result<(), String> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(MAX_WINDOW_BYTES);
    decoder.init(&mut data).map_err(|error| format!("zstd header: {error}"))?;
    let mut written = 0;
    while written < out.len() && !(decoder.is_finished() && decoder.can_collect() == 0) {
        if !decoder.is_finished() {
            let step = BlockDecodingStrategy::UptoBytes(STEP_BYTES);
            decoder
                .decode_blocks(&mut data, step)
                .map_err(|error| format!("zstd data: {error}"))?;
        }
        let read = std::io::Read::read(&mut decoder, &mut out[written..]);
        written += read.map_err(|error| format!("zstd data: {error}"))?;
    }
    if written == out.len() {
        return Ok(());
    }
    Err(format!("zstd data gives {written} of {} bytes", out.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A zstd frame of one run-length block, with a window of 8 KiB.
    fn zstd_run(bytes: u32) -> Vec<u8> {
        let block = (bytes << 3 | 1 << 1 | 1).to_le_bytes();
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x18];
        frame.extend(&block[..3]);
        frame.push(b'x');
        frame
    }

    #[test]
    fn both_methods_fill_the_cluster_and_ignore_what_follows() {
        let plain: Vec<_> = (0..4096u32).map(|n| (n / 7) as u8).collect();
        let mut deflated = miniz_oxide::deflate::compress_to_vec(&plain, 6);
        deflated.extend([0xff; 100]);
        let mut out = vec![0; plain.len()];
        Compression::Deflate.decompress(&deflated, &mut out).unwrap();
        assert_eq!(out, plain);
        let mut frame = zstd_run(4096);
        frame.extend([0xff; 100]);
        Compression::Zstd.decompress(&frame, &mut out).unwrap();
        assert_eq!(out, [b'x'; 4096]);
    }

    #[test]
    fn short_data_and_large_windows_are_refused() {
        let mut out = vec![0; 4096];
        let short = miniz_oxide::deflate::compress_to_vec(&[1; 4095], 6);
        assert!(Compression::Deflate.decompress(&short, &mut out).is_err());
        assert!(Compression::Zstd.decompress(&zstd_run(4095), &mut out).is_err());
        let mut frame = zstd_run(4096);
        frame[5] = 0xa0; // a window of 1 GiB
        let error = Compression::Zstd.decompress(&frame, &mut out).unwrap_err();
        assert!(error.contains("header"), "{error}");
    }

    proptest! {
        #[test]
        fn hostile_data_never_panics(data: Vec<u8>, at in 0usize..14, value: u8) {
            let mut out = vec![0; 8192];
            let _ = Compression::Deflate.decompress(&data, &mut out);
            let mut frame = zstd_run(8192);
            frame.extend(&data);
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
            let _ = Compression::Zstd.decompress(&frame, &mut out);
        }
    }
}
