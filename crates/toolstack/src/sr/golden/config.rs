//! Configuration of an SR of a golden image.

use std::path::{Path, PathBuf};

use model::id::{SrId, Uuid};
use model::spec::{
    Backend, GoldenImage, GoldenSource, MIN_GOLDEN_RAM_BYTES, MIN_OVERFLOW_BYTES,
    MIN_OVERLAY_RAM_BYTES, OVERLAY_BLOCK_BYTES, parse_size,
};

use crate::sr::places::{self, LOCATION};
use crate::sr::{Config, SrError};

/// Key of the image's source.
pub const SOURCE: &str = "source";
/// Key of the SR in whose folder the cache is.
pub const CACHE_SR: &str = "cache-sr";
/// Folder in an SR that has the caches of golden images.
const CACHE_FOLDER: &str = "golden";
/// Key of the memory for blocks of the image.
pub const RAM: &str = "ram";
/// Key of the most bytes of the cache file.
pub const CACHE_SIZE: &str = "cache-size";
/// Key of the most bytes a second from the source.
pub const RATE: &str = "rate";
/// Key of the identity that the image must have.
pub const IDENTITY: &str = "identity";
/// Key of the memory for the writes of a disk.
pub const WRITE_CACHE_RAM: &str = "write-cache-ram";
/// Key of the most bytes of the file for the writes of a disk.
pub use model::vbd::WRITE_CACHE_OVERFLOW;
/// Part of the host's memory for the writes of a disk by default, and its bounds in bytes.
const WRITE_CACHE_RAM_PART: u64 = 256;
const WRITE_CACHE_RAM_BOUNDS: (u64, u64) = (16 << 20, 256 << 20);

/// All keys.
const KEYS: [&str; 9] = [
    SOURCE,
    LOCATION,
    CACHE_SR,
    RAM,
    CACHE_SIZE,
    RATE,
    IDENTITY,
    WRITE_CACHE_RAM,
    WRITE_CACHE_OVERFLOW,
];

/// Parsed configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GoldenConfig {
    pub(super) image: GoldenImage,
    /// Memory for the writes of a disk, in bytes. The rest goes to a file.
    pub(super) write_cache_ram: u64,
    /// Most bytes of that file. By default as many as its storage has room for.
    pub(super) write_cache_overflow: Option<u64>,
}

impl GoldenConfig {
    /// Parses a configuration. `usual` is the directory of SRs that name none, `host_bytes` the memory
    /// of the host, and `folder` returns the folder of another SR.
    ///
    /// # Errors
    /// The source is missing, a value is invalid, or the SR of the cache has no folder.
    pub(super) fn parse(
        config: &Config,
        usual: &Path,
        host_bytes: u64,
        folder: impl Fn(SrId) -> Option<PathBuf>,
    ) -> Result<Self, SrError> {
        places::check_keys(config, &KEYS)?;
        let cache = match (config.get(LOCATION), config.get(CACHE_SR)) {
            (Some(_), Some(_)) => {
                return invalid(CACHE_SR, format!("give either it or {LOCATION}"));
            }
            (Some(text), None) => places::directory(text)?,
            (None, Some(text)) => {
                let uuid = text.parse::<Uuid>();
                let uuid = uuid.or_else(|_| invalid(CACHE_SR, format!("{text:?} is no UUID")))?;
                let why = "is not plugged on this host, or its type has no folder for files: plug \
                           its PBD first, or name an SR of type dir, ext or file";
                let Some(folder) = folder(SrId(uuid)) else {
                    return invalid(CACHE_SR, format!("storage repository {uuid} {why}"));
                };
                folder.join(CACHE_FOLDER)
            }
            (None, None) => usual.to_owned(),
        };
        let least = |key, least: u64| match size(config, key)? {
            Some(bytes) if bytes < least => {
                invalid(key, format!("{bytes} bytes are fewer than {least}"))
            }
            bytes => Ok(bytes),
        };
        let write_cache_ram = match least(WRITE_CACHE_RAM, MIN_OVERLAY_RAM_BYTES)? {
            Some(bytes) if bytes % OVERLAY_BLOCK_BYTES != 0 => {
                return invalid(
                    WRITE_CACHE_RAM,
                    format!("{bytes} is no multiple of {OVERLAY_BLOCK_BYTES}"),
                );
            }
            Some(bytes) => bytes,
            None => write_cache_ram(host_bytes),
        };
        let image = GoldenImage {
            source: source(config)?,
            cache,
            identity: config.get(IDENTITY).cloned(),
            ram: least(RAM, MIN_GOLDEN_RAM_BYTES)?,
            cache_size: least(CACHE_SIZE, MIN_GOLDEN_RAM_BYTES)?,
            size: None,
            rate: least(RATE, 1)?,
        };
        let write_cache_overflow = least(WRITE_CACHE_OVERFLOW, MIN_OVERFLOW_BYTES)?;
        Ok(Self { image, write_cache_ram, write_cache_overflow })
    }

    /// Returns the backend of a disk whose writes go to memory, and beyond it to the file `overflow`, of
    /// at most `wanted` bytes if the slot says so.
    pub(super) fn overlay(&self, base: Backend, overflow: PathBuf, wanted: Option<u64>) -> Backend {
        Backend::Overlay {
            base: Box::new(base),
            ram: self.write_cache_ram,
            overflow: Some(overflow.into()),
            overflow_size: self.overflow_size(wanted),
        }
    }

    /// Returns the most bytes of the file for the writes of a disk whose slot wants `wanted`.
    pub(super) fn overflow_size(&self, wanted: Option<u64>) -> Option<u64> {
        wanted.or(self.write_cache_overflow)
    }

    /// Returns the name of the image: the end of its address.
    pub(super) fn name(&self) -> String {
        let text = match &self.image.source {
            GoldenSource::File(path) => path.to_string_lossy().into_owned(),
            GoldenSource::Nbd(address) => address.export.clone(),
            GoldenSource::Http(address) => {
                address.path.split(['?', '#']).next().unwrap_or_default().to_owned()
            }
        };
        let name = text.rsplit('/').find(|part| !part.is_empty()).unwrap_or("image");
        name.to_owned()
    }
}

/// Returns the memory for the writes of a disk by default, on a host with this much memory.
fn write_cache_ram(host_bytes: u64) -> u64 {
    let (least, most) = WRITE_CACHE_RAM_BOUNDS;
    let bytes = (host_bytes / WRITE_CACHE_RAM_PART).clamp(least, most);
    bytes - bytes % OVERLAY_BLOCK_BYTES
}

fn invalid<T>(key: &str, why: impl Into<String>) -> Result<T, SrError> {
    Err(SrError::Config { key: key.into(), why: why.into() })
}

fn size(config: &Config, key: &str) -> Result<Option<u64>, SrError> {
    let parse = |text: &String| parse_size(text).or_else(|error| invalid(key, error.problem));
    config.get(key).map(parse).transpose()
}

fn source(config: &Config) -> Result<GoldenSource, SrError> {
    const FORMS: &str = "give /PATH, nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH or \
                         http://HOST/PATH";
    let Some(text) = config.get(SOURCE) else {
        return invalid(SOURCE, format!("the address of the image is missing; {FORMS}"));
    };
    let source = match text.split_once(':').map_or("", |(scheme, _)| scheme) {
        "nbd" | "nbd+unix" => text.clone().try_into().map(GoldenSource::Nbd),
        "http" => text.clone().try_into().map(GoldenSource::Http),
        "https" => Err(format!("{text:?} is encrypted, which is not possible; {FORMS}")),
        _ if text.starts_with('/') => Ok(GoldenSource::File(PathBuf::from(text))),
        _ => Err(format!("{text:?} is no address of an image; {FORMS}")),
    };
    source.or_else(|problem| invalid(SOURCE, problem))
}

#[cfg(test)]
mod tests {
    use model::spec::DiskSpec;
    use serde_json::json;

    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<GoldenConfig, SrError> {
        let config = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let folder = |sr: SrId| (sr.to_string() == DIR).then(|| PathBuf::from("/dir"));
        GoldenConfig::parse(&config.collect(), Path::new("/usual"), 24 << 30, folder)
    }

    /// SR with a folder.
    const DIR: &str = "6d2c3b1e-0c4b-4f5a-9f0e-1a2b3c4d5e6f";

    #[test]
    fn the_cache_may_be_in_another_storage_repository() {
        let found = parse(&[(SOURCE, "/a"), (CACHE_SR, DIR)]).unwrap();
        assert_eq!(found.image.cache, Path::new("/dir/golden"));
        let other = DIR.replace("6d", "7d");
        for (pairs, says) in [
            (vec![(CACHE_SR, other.as_str())], "is not plugged on this host"),
            (vec![(CACHE_SR, "dir")], "cache-sr: \"dir\" is no UUID"),
            (vec![(CACHE_SR, DIR), (LOCATION, "/b")], "cache-sr: give either it or location"),
        ] {
            let pairs = [vec![(SOURCE, "/a")], pairs].concat();
            let error = parse(&pairs).unwrap_err().to_string();
            assert!(error.contains(says), "{pairs:?}: {error}");
        }
    }

    #[test]
    fn a_source_says_where_the_image_is() {
        for (address, name) in [
            ("nbd://store:10809/win10", "win10"),
            ("nbd+unix:///win10?socket=/run/a.sock", "win10"),
            ("nbd://store", "image"),
            ("http://store/images/win%2010.raw?version=2", "win%2010.raw"),
            ("/srv/images/win10.raw", "win10.raw"),
        ] {
            assert_eq!(parse(&[(SOURCE, address)]).unwrap().name(), name, "{address}");
        }
    }

    #[test]
    fn sizes_have_defaults_and_bounds() {
        let least = parse(&[(SOURCE, "/a")]).unwrap();
        assert_eq!(least.image.cache, Path::new("/usual"));
        assert_eq!((least.image.ram, least.write_cache_ram), (None, 96 << 20));
        assert_eq!(least.write_cache_overflow, None);
        assert_eq!([1 << 30, 1 << 40].map(write_cache_ram), [16 << 20, 256 << 20]);
        let all = parse(&[
            (SOURCE, "/a"),
            (LOCATION, "/b"),
            (RAM, "8M"),
            (CACHE_SIZE, "1G"),
            (RATE, "20M"),
            (IDENTITY, "0a"),
            (WRITE_CACHE_RAM, "64M"),
            (WRITE_CACHE_OVERFLOW, "2G"),
        ]);
        let GoldenConfig { image, write_cache_ram, write_cache_overflow } = all.unwrap();
        assert_eq!(write_cache_overflow, Some(2 << 30));
        assert_eq!((image.ram, image.cache_size), (Some(8 << 20), Some(1 << 30)));
        assert_eq!((image.rate, write_cache_ram), (Some(20 << 20), 64 << 20));
        assert_eq!((image.cache.as_path(), image.identity), (Path::new("/b"), Some("0a".into())));
    }

    #[test]
    fn the_disk_of_a_machine_has_the_limits_of_its_write_cache() {
        let disk = |pairs: &[_], wanted| {
            let config = parse(&[&[(SOURCE, "/a"), (WRITE_CACHE_RAM, "4M")], pairs].concat());
            let config = config.unwrap();
            let base = Backend::Golden(Box::new(config.image.clone()));
            let backend = config.overlay(base, PathBuf::from("/b/1.overflow"), wanted);
            DiskSpec::new("d", "/s", backend.clone()).validate().unwrap();
            serde_json::to_value(backend).unwrap()["overlay"].clone()
        };
        let usual = disk(&[], None);
        assert_eq!((&usual["ram"], &usual["overflow"]), (&json!(4 << 20), &json!("/b/1.overflow")));
        assert_eq!(usual["overflow_size"], json!(null));
        let limit = [(WRITE_CACHE_OVERFLOW, "1M")];
        assert_eq!(disk(&limit, None)["overflow_size"], json!(1 << 20));
        assert_eq!(
            disk(&limit, Some(2 << 20))["overflow_size"],
            json!(2 << 20),
            "that of the slot"
        );
    }

    #[test]
    fn what_is_wrong_is_refused_by_its_key() {
        for (pairs, says) in [
            (vec![], "source: the address of the image is missing; give /PATH"),
            (vec![(SOURCE, "https://store/a")], "source: \"https://store/a\" is encrypted"),
            (vec![(SOURCE, "win10.raw")], "is no address of an image"),
            (vec![(SOURCE, "nbd://store:x/a")], "source: "),
            (vec![(SOURCE, "/a"), (RAM, "1M")], "ram: 1048576 bytes are fewer than"),
            (vec![(SOURCE, "/a"), (RATE, "fast")], "rate: "),
            (vec![(SOURCE, "/a"), (WRITE_CACHE_RAM, "0")], "write-cache-ram: 0 bytes are fewer"),
            (vec![(SOURCE, "/a"), (WRITE_CACHE_RAM, "5000001")], "is no multiple of 4096"),
            (vec![(SOURCE, "/a"), (WRITE_CACHE_OVERFLOW, "1000K")], "1024000 bytes are fewer"),
            (vec![(SOURCE, "/a"), (WRITE_CACHE_OVERFLOW, "all")], "write-cache-overflow: "),
            (
                vec![(SOURCE, "/a"), (WRITE_CACHE_OVERFLOW, "99999999999T")],
                "write-cache-overflow: ",
            ),
            (vec![(SOURCE, "/a"), (LOCATION, "b")], "location: "),
            (vec![(SOURCE, "/a"), ("path", "/b")], "path: this type of storage has no such key"),
        ] {
            let error = parse(&pairs).unwrap_err().to_string();
            assert!(error.contains(says), "{pairs:?}: {error}");
        }
    }
}
