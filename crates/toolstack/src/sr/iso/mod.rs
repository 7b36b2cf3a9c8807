//! SRs of type `iso`: a directory with ISO files, which is only read.
//!
//! Each regular file `*.iso` is a volume; symbolic links to such files are, too. Its id comes from
//! the SR and the name of the file, so it is the same on every host and after every scan. The
//! directory has no marker: it belongs to others.
//!
//! This module accesses no path. The SR's [worker](super::worker) does.

mod library;

use std::path::PathBuf;

use model::id::{SrId, VdiId};
use model::spec::{Backend, BlockSize};
use model::sr::SrFeature;
use model::vdi::automaton::Access;

pub(crate) use library::{find, scan};

use super::places::{self, Attached, LOCATION, Places};
use super::worker::{Host, SrRequest};
use super::{Config, Space, SrDriver, SrError, SrScan};
use crate::boxed_future::BoxFuture;

/// Type of these SRs.
pub const ISO: &str = "iso";
/// Key with which XenServer says that the location is a directory of the host.
const LEGACY_MODE: &str = "legacy_mode";

/// Driver of SRs of ISO files.
#[derive(Debug)]
pub struct IsoDriver {
    places: Places,
}

impl IsoDriver {
    /// Creates the driver.
    pub fn new(host: Host) -> Self {
        Self { places: Places::new(host) }
    }
}

/// Returns the configured directory.
fn place(config: &Config) -> Result<PathBuf, SrError> {
    let missing = || places::location("the directory with the ISO files is missing".into());
    let text = config.get(LOCATION).ok_or_else(missing)?;
    if !text.starts_with('/') && text.contains(':') || text.starts_with("//") {
        let why = format!("mount {text} on the host, and give the directory where it is mounted");
        return Err(places::location(why));
    }
    places::directory(text)
}

impl SrDriver for IsoDriver {
    fn kind(&self) -> &'static str {
        ISO
    }

    fn features(&self) -> &'static [SrFeature] {
        SrFeature::OF_READERS
    }

    fn check(&self, config: &Config) -> Result<(), SrError> {
        places::check_keys(config, &[LOCATION, LEGACY_MODE])?;
        place(config).map(drop)
    }

    /// Checks that the directory can be read. Creates nothing.
    fn create<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(async move {
            let place = place(config)?;
            self.places.call_at(sr, &place, SrRequest::ScanIsos).await?.into_scan().map(drop)
        })
    }

    /// Changes nothing: the files belong to others.
    fn destroy<'a>(&'a self, _sr: SrId, _config: &'a Config) -> BoxFuture<'a, Result<(), SrError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns no SR: a directory of ISO files names none.
    fn probe<'a>(&'a self, _config: &'a Config) -> BoxFuture<'a, Result<Vec<SrId>, SrError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    fn attach<'a>(&'a self, sr: SrId, config: &'a Config) -> BoxFuture<'a, Result<Space, SrError>> {
        Box::pin(async move {
            let attached = self.places.attach(sr, place(config)?, SrRequest::ScanIsos).await?;
            Ok(attached.into_scan()?.space)
        })
    }

    fn detach(&self, sr: SrId) -> BoxFuture<'_, Result<(), SrError>> {
        self.places.detach(sr);
        Box::pin(std::future::ready(Ok(())))
    }

    fn scan(&self, sr: SrId) -> BoxFuture<'_, Result<SrScan, SrError>> {
        Box::pin(async move { self.places.call(sr, SrRequest::ScanIsos).await?.into_scan() })
    }

    fn images(&self, sr: SrId, vdi: VdiId) -> BoxFuture<'_, Result<Backend, SrError>> {
        Box::pin(async move {
            let Attached { place, worker } = self.places.of(sr)?;
            let found = worker.call(sr, &place, SrRequest::FindIso { vdi: vdi.0 }).await?;
            let file_name = found.into_volume()?.file_name;
            let file_name = file_name.ok_or(SrError::NoVolume(vdi))?;
            Ok(Backend::File(place.join(file_name).into()))
        })
    }

    fn attach_volume(
        &self,
        sr: SrId,
        vdi: VdiId,
        access: Access,
    ) -> BoxFuture<'_, Result<(Backend, BlockSize), SrError>> {
        Box::pin(async move {
            let backend = self.images(sr, vdi).await?;
            if access == Access::Rw {
                let what = format!("{backend} is only read");
                let source = std::io::ErrorKind::PermissionDenied.into();
                return Err(SrError::Os { what, source });
            }
            Ok((backend, BlockSize::Bytes(BlockSize::DEFAULT_BYTES)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_directory_of_the_host() {
        let at = |location: &str| place(&[(LOCATION.to_owned(), location.to_owned())].into());
        assert_eq!(at("/srv/iso").unwrap(), PathBuf::from("/srv/iso"));
        for (location, says) in [
            ("filer:/export/iso", "mount filer:/export/iso"),
            ("//filer/iso", "mount //filer/iso"),
            ("iso", "absolute path"),
            ("/srv/../etc", "absolute path"),
        ] {
            let error = at(location).unwrap_err().to_string();
            assert!(error.contains(says), "{location}: {error}");
        }
        assert!(place(&Config::new()).unwrap_err().to_string().contains("missing"));
    }
}
