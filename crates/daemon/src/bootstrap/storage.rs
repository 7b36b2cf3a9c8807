//! Default SR of the first start, and records of the available SR types.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::id::{SrId, Uuid};
use model::sr::SrFeature;
use toolstack::machines::Drivers;
use toolstack::sr::delay::{DELAY_MS, SLOW_DIR, SLOW_EVERY, SLOW_MS};
use toolstack::sr::dir::LOCATION;
use toolstack::sr::golden::{self, GOLDEN};
use toolstack::sr::iso::ISO;
use toolstack::sr::{Config, SrDriver, SrError};
use xenapi::table::{FieldIx, pbd, sm, sr};
use xenapi::{ApiError, Value};

use super::{all_pairs, path};
use crate::db::{Ref, Tx};
use crate::random;

/// SR that the first start creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultSr {
    /// UUID of the SR.
    pub id: SrId,
    /// Type of the SR.
    pub kind: &'static str,
    /// Directory of the SR.
    pub location: PathBuf,
}

/// Creates the storage of the SR before its record exists. The directory is named after the UUID. A
/// start that is interrupted here leaves an empty directory, which does not disturb the next start.
///
/// # Errors
/// The driver's error.
pub async fn make_sr(
    drivers: &Drivers,
    kind: &'static str,
    state: &Path,
) -> Result<DefaultSr, SrError> {
    let id = SrId(Uuid::from_random(random::bytes()));
    let location = state.join("sr").join(id.to_string());
    let config = Config::from([(LOCATION.to_owned(), location.to_string_lossy().into_owned())]);
    let why = || format!("`{kind}` is no type of storage that there is a driver for");
    let driver =
        drivers.sr(kind).ok_or_else(|| SrError::Config { key: "type".to_owned(), why: why() })?;
    driver.create(id, &config).await?;
    Ok(DefaultSr { id, kind, location })
}

/// Creates the records of the SR and its PBD. The PBD is attached elsewhere.
pub(super) fn record(tx: &mut Tx<'_>, host: &Ref, made: &DefaultSr) -> Result<Ref, ApiError> {
    let what = "Disks of machines, on this host alone";
    let fields = vec![
        (sr::Field::uuid.into(), Value::text(made.id.to_string())),
        (sr::Field::name_label.into(), Value::text("Local storage")),
        (sr::Field::name_description.into(), Value::text(what)),
        (sr::Field::r#type.into(), Value::text(made.kind)),
        (sr::Field::content_type.into(), Value::text("user")),
    ];
    let place = tx.create(&sr::CLASS, fields)?;
    let config = Value::Map([(LOCATION.to_owned(), path(&made.location))].into());
    let fields = vec![
        (pbd::Field::host.into(), host.value()),
        (pbd::Field::SR.into(), place.value()),
        (pbd::Field::device_config.into(), config),
    ];
    tx.create(&pbd::CLASS, fields)?;
    Ok(place)
}

/// Makes the SM records match the available SR types, one record for each.
pub(super) fn kinds(
    tx: &mut Tx<'_>,
    kinds: &[Arc<dyn SrDriver>],
    version: &str,
) -> Result<(), ApiError> {
    let view = tx.view();
    let known: Vec<(Ref, String)> = view
        .all(&sm::CLASS)
        .map(|kind| {
            let name = kind.get(sm::Field::r#type.into()).map(crate::dispatch::text);
            (kind.reference().clone(), name.unwrap_or_default().to_owned())
        })
        .collect();
    for (it, name) in &known {
        match kinds.iter().find(|driver| driver.kind() == name) {
            Some(driver) => {
                for (field, value) in fields(&**driver, version) {
                    tx.set(it, field, value)?;
                }
            }
            None => tx.destroy(&sm::CLASS, it)?,
        }
    }
    for driver in kinds {
        if !known.iter().any(|(_, name)| name == driver.kind()) {
            tx.create(&sm::CLASS, fields(&**driver, version))?;
        }
    }
    Ok(())
}

fn fields(driver: &dyn SrDriver, version: &str) -> Vec<(FieldIx, Value)> {
    let kind = driver.kind();
    let (name, what) = match kind {
        "dir" => ("Directory", "Files for each disk, in a directory of the host"),
        "ext" | "file" => (kind, "As `dir`, by the name that XenServer has"),
        SLOW_DIR => ("Slow directory", "As `dir`; attach and detach take longer, for trials"),
        ISO => ("ISO", "CDs: the ISO files of a directory of the host, which is only read"),
        GOLDEN => ("Golden image", "An image that many machines boot from, through a cache"),
        _ => (kind, ""),
    };
    let mut configuration = vec![(LOCATION, "the directory, from the root on")];
    if kind == GOLDEN {
        configuration = vec![
            (golden::SOURCE, "address of the image: a path, nbd://, nbd+unix:// or http://"),
            (LOCATION, "the directory of the cache and of what machines write"),
            (golden::RAM, "memory for blocks of the image, in bytes"),
            (golden::CACHE_SIZE, "most bytes of the cache file"),
            (golden::RATE, "most bytes a second from the source"),
            (golden::IDENTITY, "identity that the image must have"),
            (golden::WRITE_CACHE_RAM, "memory for the writes of a disk, in bytes"),
            (golden::WRITE_CACHE_OVERFLOW, "most bytes of the file for the writes of a disk"),
        ];
    }
    if kind == SLOW_DIR {
        configuration.extend([
            (DELAY_MS, "how much longer attach and detach take, in milliseconds"),
            (SLOW_MS, "the same for a slow disk"),
            (SLOW_EVERY, "every how many disks one is slow"),
        ]);
    }
    let version_of = |feature: &SrFeature| Value::Int(feature.version().into());
    let features = driver.features();
    let by_version = features.iter().map(|one| (one.name().to_owned(), version_of(one)));
    let capabilities = features.iter().map(|one| Value::text(one.capability()));
    vec![
        (sm::Field::name_label.into(), Value::text(name)),
        (sm::Field::name_description.into(), Value::text(what)),
        (sm::Field::r#type.into(), Value::text(kind)),
        (sm::Field::vendor.into(), Value::text("Ringway")),
        (sm::Field::version.into(), Value::text(version)),
        (sm::Field::required_api_version.into(), Value::text("2.5")),
        (sm::Field::configuration.into(), all_pairs(&configuration)),
        (sm::Field::capabilities.into(), Value::Set(capabilities.collect())),
        (sm::Field::features.into(), Value::Map(by_version.collect())),
    ]
}
