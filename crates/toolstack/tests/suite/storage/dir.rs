//! Directories of SRs of type `dir`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::id::{SrId, Uuid, VdiId};
use model::spec::{Backend, BlockSize};
use model::vdi::automaton::Access;
use tempfile::TempDir;
use toolstack::sr::dir::{DirDriver, LOCATION};
use toolstack::sr::worker::Host;
use toolstack::sr::{Config, SrDriver, SrError};

use super::again;

/// Directory for an SR.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("sr")
    }

    pub(crate) fn config(&self) -> Config {
        at(&self.path())
    }
}

pub(crate) fn at(path: &Path) -> Config {
    Config::from([(LOCATION.to_owned(), path.to_str().unwrap().to_owned())])
}

pub(crate) fn host() -> Host {
    Host::new(again("storage_worker", &[]), Duration::from_secs(20))
}

pub(crate) fn sr() -> SrId {
    SrId(Uuid::from_random([1; 16]))
}

pub(crate) fn vdi(n: u8) -> VdiId {
    VdiId(Uuid::from_random([n; 16]))
}

/// Creates an attached SR with volume 1.
async fn attached(place: &Place) -> DirDriver {
    let driver = DirDriver::new("dir", host(), "/nonexistent".into());
    driver.create(sr(), &place.config()).await.unwrap();
    driver.attach(sr(), &place.config()).await.unwrap();
    driver.create_volume(sr(), vdi(1), 4096).await.unwrap();
    driver
}

#[tokio::test]
async fn a_directory_that_vanishes_is_told_and_works_when_it_is_back() {
    let place = Place::new();
    let driver = attached(&place).await;
    let away = place.path().with_extension("away");
    let (backend, _) = driver.attach_volume(sr(), vdi(1), Access::Rw).await.unwrap();
    assert_eq!(backend, Backend::File(place.path().join(format!("{}.raw", vdi(1))).into()));
    std::fs::rename(place.path(), &away).unwrap();
    // Twice: the directory does not exist, then it is a mount point without its file system.
    for _ in 0..2 {
        for outcome in [
            driver.scan(sr()).await.map(drop),
            driver.attach(sr(), &place.config()).await.map(drop),
            driver.create_volume(sr(), vdi(2), 4096).await.map(drop),
            driver.resize_volume(sr(), vdi(1), 8192).await.map(drop),
            driver.destroy_volume(sr(), vdi(1)).await,
            driver.attach_volume(sr(), vdi(1), Access::Rw).await.map(drop),
        ] {
            let Err(SrError::Vanished { path }) = &outcome else { panic!("{outcome:?}") };
            assert_eq!(*path, place.path());
        }
        driver.deactivate_volume(sr(), vdi(1)).await.unwrap();
        driver.detach_volume(sr(), vdi(1)).await.unwrap();
        if !place.path().exists() {
            std::fs::create_dir(place.path()).unwrap();
        }
    }
    assert_eq!(place.path().read_dir().unwrap().count(), 0, "nothing is made on a mount point");
    std::fs::remove_dir(place.path()).unwrap();
    std::fs::rename(&away, place.path()).unwrap();
    assert_eq!(driver.scan(sr()).await.unwrap().volumes.len(), 1);
    std::fs::remove_file(place.path().join(format!("{}.raw", vdi(1)))).unwrap();
    let lost = driver.attach_volume(sr(), vdi(1), Access::Ro).await;
    assert!(matches!(lost, Err(SrError::NoVolume(id)) if id == vdi(1)), "{lost:?}");
}

#[tokio::test]
async fn volumes_of_an_earlier_version_keep_the_blocks_of_their_storage() {
    let place = Place::new();
    let driver = attached(&place).await;
    let list = place.path().join(".ringway-storage-blocks");
    let size = async |driver: &DirDriver, n| {
        driver.attach_volume(sr(), vdi(n), Access::Rw).await.map(|(_, size)| size)
    };
    let small = BlockSize::Bytes(512);
    assert_eq!(size(&driver, 1).await.unwrap(), small);
    // An earlier version made no list.
    std::fs::remove_file(&list).unwrap();
    assert_eq!(size(&driver, 1).await.unwrap(), BlockSize::Storage);
    for _ in 0..2 {
        let next = DirDriver::new("dir", host(), "/nonexistent".into());
        next.attach(sr(), &place.config()).await.unwrap();
        next.create_volume(sr(), vdi(2), 4096).await.unwrap();
        // A file that was copied here.
        std::fs::write(place.path().join(format!("{}.raw", vdi(3))), [0; 4096]).unwrap();
        assert_eq!(size(&next, 1).await.unwrap(), BlockSize::Storage);
        assert_eq!((size(&next, 2).await.unwrap(), size(&next, 3).await.unwrap()), (small, small));
    }
    for (text, why) in [("{", "cannot be parsed"), (r#"{"format":2,"volumes":[]}"#, "format 2")] {
        std::fs::write(&list, text).unwrap();
        let error = size(&driver, 1).await.unwrap_err().to_string();
        assert!(error.contains(why) && error.contains(list.to_str().unwrap()), "{error}");
    }
}

#[tokio::test]
async fn a_volume_that_cannot_be_written_can_be_read() {
    let place = Place::new();
    let driver = attached(&place).await;
    let file = place.path().join(format!("{}.raw", vdi(1)));
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o400)).unwrap();
    driver.attach_volume(sr(), vdi(1), Access::Ro).await.unwrap();
    let error = driver.attach_volume(sr(), vdi(1), Access::Rw).await.unwrap_err();
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_place_is_an_absolute_path_or_the_default() {
    let place = Place::new();
    let driver = DirDriver::new("dir", host(), place.path());
    for bad in ["", "sr", "./sr", "/a/../b", "/a\0b"] {
        let config = Config::from([(LOCATION.to_owned(), bad.to_owned())]);
        for outcome in
            [driver.create(sr(), &config).await, driver.attach(sr(), &config).await.map(drop)]
        {
            let refused = matches!(&outcome, Err(SrError::Config { key, .. }) if key == LOCATION);
            assert!(refused, "{bad:?}: {outcome:?}");
        }
    }
    driver.create(sr(), &Config::new()).await.unwrap();
    driver.attach(sr(), &Config::new()).await.unwrap();
    driver.attach(sr(), &place.config()).await.unwrap();
    let error = driver.attach(sr(), &at(Path::new("/"))).await.unwrap_err();
    assert!(error.to_string().contains(place.path().to_str().unwrap()), "{error}");
}
