//! Digest of a whole image, which the identity may be: calculated when all blocks are in the cache file.
//!
//! The result is kept in a small file beside the cache file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::disk::WarmPhase;
use model::spec::DIGEST_PREFIX;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use crate::image::CachedImage;
use crate::link::Link;
use crate::{BLOCK_BYTES, SourceError, fetch, files};

/// Longest file with a result, in bytes.
const FILE_MAX: u64 = 4096;
/// Pause before a source that is gone is asked again for a damaged block.
const PAUSE: Duration = Duration::from_secs(1);

/// Result of a calculation.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    identity: String,
    sha256: String,
}

/// Returns the digest that was found for the image of a cache file. `None` if there is none, or if it is
/// that of another image.
pub(crate) fn read(cache_file: &Path, identity: &str) -> Option<String> {
    let text = files::read(&path(cache_file), FILE_MAX).ok()?;
    let found: Found = serde_json::from_slice(&text).ok()?;
    (found.identity == identity).then_some(found.sha256)
}

fn path(cache_file: &Path) -> std::path::PathBuf {
    cache_file.with_extension("digest")
}

/// Calculates the digest of an image that is in the cache file, and compares it with the identity. Ends
/// early if no operator wants it any more.
pub(crate) fn check(image: &Arc<CachedImage>, link: &mut Link) {
    match calculate(image, link) {
        Ok(Some(found)) => note(image, found),
        Ok(None) => {}
        Err(problem) => image.state().background.end_warm(WarmPhase::Failed, Some(problem)),
    }
}

fn calculate(image: &Arc<CachedImage>, link: &mut Link) -> Result<Option<String>, String> {
    let mut context = Context::new(&SHA256);
    let mut data = vec![0; BLOCK_BYTES as usize];
    for block in 0..image.blocks() {
        data.resize(image.bytes_of(block), 0);
        while !image.file.as_ref().is_some_and(|file| file.read(block, &mut data)) {
            // It was damaged since. The source has it.
            if !image.state().background.is_checking() {
                return Ok(None);
            }
            fetch::wait_rate(image, data.len());
            match link.read(image, u64::from(block) * BLOCK_BYTES, &mut data) {
                Ok(()) => {
                    fetch::store(image, block, &data);
                    break;
                }
                Err(SourceError::Failed(problem)) => {
                    return Err(format!("block {block}: {problem}"));
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
        if !image.state().background.is_checking() {
            return Ok(None);
        }
        context.update(&data);
    }
    let hex = |sum: String, byte: &u8| sum + &format!("{byte:02x}");
    Ok(Some(context.finish().as_ref().iter().fold(String::new(), hex)))
}

/// Notes the digest that was found.
fn note(image: &CachedImage, found: String) {
    let stored = Found { identity: image.identity.clone(), sha256: found.clone() };
    let text = serde_json::to_vec(&stored).map_err(std::io::Error::other);
    if let Err(error) = text.and_then(|text| files::replace(&path(&image.file_path), &text)) {
        tracing::warn!("the digest of {} is not stored: {error}", image.source);
    }
    let is_right = image.digest() == Some(&*found);
    let outcome = match is_right {
        true => (WarmPhase::Done, None),
        false => {
            let problem = problem(&found);
            tracing::error!(
                "the golden image {} is not {}: {problem}",
                image.source,
                image.identity
            );
            (WarmPhase::Failed, Some(problem))
        }
    };
    let mut state = image.state();
    state.found_digest = Some(found);
    state.background.end_warm(outcome.0, outcome.1);
}

/// Returns what is wrong with bytes of a digest that is not the identity.
pub(crate) fn problem(found: &str) -> String {
    format!(
        "its bytes have the digest {DIGEST_PREFIX}{found}; shut down its machines, give the source the \
         right image or the disks the right digest, and remove the cache file"
    )
}
