//! Calls and their parameters.

use std::path::Path;

use serde_json::Value;

use super::{
    Detach, DiskRef, GoldenClean, GoldenImport, GoldenRef, GoldenWarm, KnownFull, NicRef, Replace,
    Resize, RpcError, SetCaps, SetLimits, SetPoll, SetWeight, Snapshot, StatsQuery, Unexport,
    Upgrade, code,
};
use crate::calibration::{Calibrate, ProfileQuery};
use crate::export::ExportSpec;
use crate::image::{
    ImageCheck, ImageCommit, ImageConvert, ImageCreate, ImageMap, ImageQuery, ImageResize,
    ImageSnapshotCall, MAX_IMAGE_DEADLINE_S, MAX_MAP_EXTENTS,
};
use crate::image_stream::{ImageCopy, ImageExport, ImageImport};
use crate::nic::{NicSpec, UplinkSpec};
use crate::poll::PollChange;
use crate::spec::{Backend, DiskSpec, FileRef, MIN_GOLDEN_RATE};

/// A call with checked parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// `disk.attach`: open, report geometry, listen. Also serve, unless `"activate":false`.
    DiskAttach(DiskSpec),
    /// `disk.activate`: take the lock, serve.
    DiskActivate(DiskRef),
    /// `disk.deactivate`: drain, flush, release the lock.
    DiskDeactivate(DiskRef),
    /// `disk.pause`: drain and stop serving. The lock and the front-end's connection stay.
    DiskPause(DiskRef),
    /// `disk.resume`: serve again.
    DiskResume(DiskRef),
    /// `disk.detach`: deactivate, close the socket, remove the disk. With `"force":false`, only if no
    /// front-end is connected.
    DiskDetach(Detach),
    /// `disk.export`: offer the disk over NBD on a socket.
    DiskExport(ExportSpec),
    /// `disk.unexport`: end one export, or all exports of a disk.
    DiskUnexport(Unexport),
    /// `disk.resize`: apply a new size and notify the guest.
    DiskResize(Resize),
    /// `disk.replace`: replace the backend by another one with the same content.
    DiskReplace(Box<Replace>),
    /// `disk.snapshot`: put a new image over each disk, all at one instant.
    DiskSnapshot(Snapshot),
    /// `disk.reset`: discard all writes of an overlay.
    DiskReset(DiskRef),
    /// `disk.caps`: replace all caps.
    DiskCaps(SetCaps),
    /// `disk.weight`: replace the share of the storage.
    DiskWeight(SetWeight),
    /// `disk.poll`: change polling settings.
    DiskPoll(SetPoll),
    /// `disk.wait_full`: wait until other disks than those in `known` wait for space.
    DiskWaitFull(KnownFull),
    /// `poll.defaults`: change the default polling settings of disks and NICs. Absent fields stay;
    /// `null` restores the value of the command line.
    PollDefaults(PollChange),
    /// `nic.attach`: listen, and join a network as a port.
    NicAttach(NicSpec),
    /// `nic.detach`: disconnect the front-end, close the socket, remove the NIC.
    NicDetach(NicRef),
    /// `nic.poll`: change polling settings.
    NicPoll(SetPoll),
    /// `nic.limits`: replace all limits.
    NicLimits(SetLimits),
    /// `network.uplink`: connect the host to a network, or disconnect it.
    NetworkUplink(UplinkSpec),
    /// `image.info`: report the properties of an image file.
    ImageInfo(ImageQuery),
    /// `image.check`: compare references and refcounts of an image file.
    ImageCheck(ImageCheck),
    /// `image.map`: report where the bytes of the disk are in an image file.
    ImageMap(ImageMap),
    /// `image.create`: create an empty image file.
    ImageCreate(ImageCreate),
    /// `image.commit`: write what the guest of an overlay has written to a new image.
    ImageCommit(ImageCommit),
    /// `image.convert`: copy a disk to a new image file.
    ImageConvert(ImageConvert),
    /// `image.snapshot`: create an image over one that no program writes.
    ImageSnapshot(ImageSnapshotCall),
    /// `image.resize`: make the disk of an image larger.
    ImageResize(ImageResize),
    /// `image.export`: send a disk as a stream.
    ImageExport(Box<ImageExport>),
    /// `image.import`: make an image of a stream.
    ImageImport(Box<ImageImport>),
    /// `image.copy`: make an image of another disk, for a disk that exists.
    ImageCopy(Box<ImageCopy>),
    /// `image.progress`: report how far the running conversions are.
    ImageProgress,
    /// `storage.calibrate`: measure a storage.
    StorageCalibrate(Calibrate),
    /// `storage.profile`: use the profile in a folder.
    StorageProfile(ProfileQuery),
    /// `storage.progress`: report how far the running measurements are.
    StorageProgress,
    /// `golden.warm`: fetch a whole golden image into its cache file, in the background.
    GoldenWarm(GoldenWarm),
    /// `golden.cancel`: end the fetching of a whole golden image.
    GoldenCancel(GoldenRef),
    /// `golden.export_boot_set`: report the boot set of a golden image.
    GoldenExport(GoldenRef),
    /// `golden.import_boot_set`: store a boot set in a cache directory.
    GoldenImport(GoldenImport),
    /// `golden.clean`: remove cache files that no process uses.
    GoldenClean(GoldenClean),
    /// `stats`: report everything, or one disk or NIC.
    Stats(StatsQuery),
    /// `metrics`: report everything in the OpenMetrics text format.
    Metrics,
    /// `upgrade`: hand everything over to another program; connections stay.
    Upgrade(Upgrade),
    /// `shutdown`: detach everything and exit.
    Shutdown,
    /// `keeper.adopt`: a `ringway-io` that finds this worker without a keeper becomes its keeper.
    /// The answer carries a descriptor.
    KeeperAdopt,
}

/// All methods that [`Call::parse`] knows.
pub const METHODS: [&str; 47] = [
    "disk.attach",
    "disk.activate",
    "disk.deactivate",
    "disk.pause",
    "disk.resume",
    "disk.detach",
    "disk.export",
    "disk.unexport",
    "disk.resize",
    "disk.replace",
    "disk.snapshot",
    "disk.reset",
    "disk.caps",
    "disk.weight",
    "disk.poll",
    "disk.wait_full",
    "poll.defaults",
    "nic.attach",
    "nic.detach",
    "nic.poll",
    "nic.limits",
    "network.uplink",
    "image.info",
    "image.check",
    "image.map",
    "image.create",
    "image.commit",
    "image.convert",
    "image.snapshot",
    "image.resize",
    "image.export",
    "image.import",
    "image.copy",
    "image.progress",
    "storage.calibrate",
    "storage.profile",
    "storage.progress",
    "golden.warm",
    "golden.cancel",
    "golden.export_boot_set",
    "golden.import_boot_set",
    "golden.clean",
    "stats",
    "metrics",
    "upgrade",
    "shutdown",
    "keeper.adopt",
];

impl Call {
    /// Parses a method and its parameters into a checked call.
    ///
    /// # Errors
    /// [`code::METHOD_NOT_FOUND`] or [`code::INVALID_PARAMS`].
    pub fn parse(method: &str, params: Value) -> Result<Self, RpcError> {
        let params = if params.is_null() { Value::Object(Default::default()) } else { params };
        match method {
            method if method.starts_with("disk.") => Self::parse_disk(method, params),
            "poll.defaults" => Ok(Self::PollDefaults(typed(params)?)),
            "nic.attach" => {
                let spec: NicSpec = typed(params)?;
                spec.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::NicAttach(spec))
            }
            "nic.detach" => Ok(Self::NicDetach(typed(params)?)),
            "nic.poll" => Ok(Self::NicPoll(typed(params)?)),
            "nic.limits" => {
                let set: SetLimits = typed(params)?;
                set.limits.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::NicLimits(set))
            }
            "network.uplink" => {
                let spec: UplinkSpec = typed(params)?;
                spec.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::NetworkUplink(spec))
            }
            method if method.starts_with("image.") => Self::parse_image(method, params),
            method if method.starts_with("storage.") => Self::parse_storage(method, params),
            method if method.starts_with("golden.") => Self::parse_golden(method, params),
            "stats" => Ok(Self::Stats(typed(params)?)),
            "metrics" => Ok(Self::Metrics),
            "upgrade" => {
                let upgrade: Upgrade = typed(params)?;
                if upgrade.binary.as_ref().is_some_and(|path| !path.is_absolute()) {
                    return Err(invalid("binary must be an absolute path".into()));
                }
                Ok(Self::Upgrade(upgrade))
            }
            "shutdown" => Ok(Self::Shutdown),
            "keeper.adopt" => Ok(Self::KeeperAdopt),
            other => Err(unknown(other)),
        }
    }

    /// Parses a call on a disk.
    fn parse_disk(method: &str, params: Value) -> Result<Self, RpcError> {
        match method {
            "disk.attach" => {
                let spec: DiskSpec = typed(params)?;
                spec.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::DiskAttach(spec))
            }
            "disk.activate" => Ok(Self::DiskActivate(typed(params)?)),
            "disk.deactivate" => Ok(Self::DiskDeactivate(typed(params)?)),
            "disk.pause" => Ok(Self::DiskPause(typed(params)?)),
            "disk.resume" => Ok(Self::DiskResume(typed(params)?)),
            "disk.detach" => Ok(Self::DiskDetach(typed(params)?)),
            "disk.export" => {
                let spec: ExportSpec = typed(params)?;
                spec.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::DiskExport(spec))
            }
            "disk.unexport" => Ok(Self::DiskUnexport(typed(params)?)),
            "disk.resize" => Ok(Self::DiskResize(typed(params)?)),
            "disk.replace" => Ok(Self::DiskReplace(Box::new(typed(params)?))),
            "disk.snapshot" => {
                let snapshot: Snapshot = typed(params)?;
                snapshot.check().map_err(invalid)?;
                Ok(Self::DiskSnapshot(snapshot))
            }
            "disk.reset" => Ok(Self::DiskReset(typed(params)?)),
            "disk.caps" => {
                let set: SetCaps = typed(params)?;
                let checked = set.caps.map_or(Ok(()), |caps| caps.validate());
                checked.map_err(|error| invalid(error.to_string()))?;
                Ok(Self::DiskCaps(set))
            }
            "disk.weight" => {
                let set: SetWeight = typed(params)?;
                set.share().validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::DiskWeight(set))
            }
            "disk.poll" => Ok(Self::DiskPoll(typed(params)?)),
            "disk.wait_full" => Ok(Self::DiskWaitFull(typed(params)?)),
            other => Err(unknown(other)),
        }
    }

    /// Parses a call on a storage.
    fn parse_storage(method: &str, params: Value) -> Result<Self, RpcError> {
        match method {
            "storage.calibrate" => {
                let calibrate: Calibrate = typed(params)?;
                calibrate.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::StorageCalibrate(calibrate))
            }
            "storage.profile" => {
                let query: ProfileQuery = typed(params)?;
                query.validate().map_err(|error| invalid(error.to_string()))?;
                Ok(Self::StorageProfile(query))
            }
            "storage.progress" => Ok(Self::StorageProgress),
            other => Err(unknown(other)),
        }
    }

    /// Parses a call on a golden image.
    fn parse_golden(method: &str, params: Value) -> Result<Self, RpcError> {
        match method {
            "golden.warm" => {
                let warm: GoldenWarm = typed(params)?;
                if warm.rate.is_some_and(|rate| rate < MIN_GOLDEN_RATE) {
                    return Err(invalid(format!("rate must be at least {MIN_GOLDEN_RATE}")));
                }
                Ok(Self::GoldenWarm(warm))
            }
            "golden.cancel" => Ok(Self::GoldenCancel(typed(params)?)),
            "golden.export_boot_set" => Ok(Self::GoldenExport(typed(params)?)),
            "golden.import_boot_set" => {
                let import: GoldenImport = typed(params)?;
                if !import.cache.is_absolute() {
                    return Err(invalid("cache must be an absolute path".into()));
                }
                import.boot_set.validate().map_err(invalid)?;
                Ok(Self::GoldenImport(import))
            }
            "golden.clean" => {
                let clean: GoldenClean = typed(params)?;
                if !clean.cache.is_absolute() {
                    return Err(invalid("cache must be an absolute path".into()));
                }
                Ok(Self::GoldenClean(clean))
            }
            other => Err(unknown(other)),
        }
    }

    /// Parses a call on an image file.
    fn parse_image(method: &str, params: Value) -> Result<Self, RpcError> {
        match method {
            "image.info" => {
                let query: ImageQuery = typed(params)?;
                check_image(&query.path, query.deadline_s)?;
                Ok(Self::ImageInfo(query))
            }
            "image.check" => {
                let check: ImageCheck = typed(params)?;
                check_image(&check.path, check.deadline_s)?;
                Ok(Self::ImageCheck(check))
            }
            "image.map" => {
                let map: ImageMap = typed(params)?;
                check_image(&map.path, map.deadline_s)?;
                if !(1..=MAX_MAP_EXTENTS).contains(&map.limit) {
                    return Err(invalid(format!("limit must be 1 to {MAX_MAP_EXTENTS}")));
                }
                Ok(Self::ImageMap(map))
            }
            "image.create" => {
                let create: ImageCreate = typed(params)?;
                check_image(&create.path, 1)?;
                Ok(Self::ImageCreate(create))
            }
            "image.commit" => {
                let commit: ImageCommit = typed(params)?;
                check_image(&commit.path, commit.deadline_s)?;
                Ok(Self::ImageCommit(commit))
            }
            "image.convert" => {
                let convert: ImageConvert = typed(params)?;
                check_image(&convert.path, convert.deadline_s)?;
                check_source(&convert.source)?;
                if convert.layers == Some(0) {
                    return Err(invalid("layers must be at least 1".into()));
                }
                Ok(Self::ImageConvert(convert))
            }
            "image.snapshot" => {
                let snapshot: ImageSnapshotCall = typed(params)?;
                check_image(&snapshot.path, 1)?;
                check_image(&snapshot.base, 1)?;
                Ok(Self::ImageSnapshot(snapshot))
            }
            "image.resize" => {
                let resize: ImageResize = typed(params)?;
                let top = resize.image.image().and_then(|(top, _)| top.path());
                let none = || invalid("image must be a file, or a qcow2 or VHD tree".into());
                check_image(top.ok_or_else(none)?, resize.deadline_s)?;
                check_source(&resize.image)?;
                Ok(Self::ImageResize(resize))
            }
            "image.progress" => Ok(Self::ImageProgress),
            other => Self::parse_stream(other, params),
        }
    }

    /// Parses a call that makes an image of a stream or of another disk, or a stream of a disk.
    fn parse_stream(method: &str, params: Value) -> Result<Self, RpcError> {
        match method {
            "image.export" => {
                let export: Box<ImageExport> = typed(params)?;
                check_image(&export.stream, export.deadline_s)?;
                check_source(&export.source)?;
                export.base.as_ref().map_or(Ok(()), |base| check_source(&base.source))?;
                Ok(Self::ImageExport(export))
            }
            "image.import" => {
                let import: Box<ImageImport> = typed(params)?;
                check_image(&import.path, import.deadline_s)?;
                check_image(&import.stream, import.deadline_s)?;
                check_source(&import.present)?;
                Ok(Self::ImageImport(import))
            }
            "image.copy" => {
                let copy: Box<ImageCopy> = typed(params)?;
                check_image(&copy.path, copy.deadline_s)?;
                check_source(&copy.source)?;
                check_source(&copy.present)?;
                copy.base.as_ref().map_or(Ok(()), check_source)?;
                Ok(Self::ImageCopy(copy))
            }
            other => Err(unknown(other)),
        }
    }
}

fn unknown(method: &str) -> RpcError {
    RpcError {
        code: code::METHOD_NOT_FOUND,
        message: format!("unknown method {method:?}; known: {}", METHODS.join(", ")),
    }
}

fn typed<T: serde::de::DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params.clone()).map_err(|error| {
        let why = error.to_string();
        match culprit::<T>(&params, &why).as_slice() {
            [] => invalid(why),
            path => invalid(format!("{}: {why}", path.join("."))),
        }
    })
}

/// Returns the path of the field with this error. The parser does not know it, but without the field
/// the error is another one, or none.
fn culprit<T: serde::de::DeserializeOwned>(params: &Value, why: &str) -> Vec<String> {
    fn without(params: &Value, path: &[String]) -> Option<Value> {
        let mut params = params.clone();
        let (last, before) = path.split_last()?;
        let mut place = &mut params;
        for name in before {
            place = place.get_mut(name)?;
        }
        place.as_object_mut()?.remove(last)?;
        Some(params)
    }
    let mut path: Vec<String> = Vec::new();
    loop {
        let place = path.iter().try_fold(params, |place, name| place.get(name));
        let names = place.and_then(Value::as_object).into_iter().flat_map(|fields| fields.keys());
        let mut deeper = names.map(|name| [path.clone(), vec![name.clone()]].concat());
        let is_it = |path: &Vec<String>| {
            let parsed = without(params, path).map(serde_json::from_value::<T>);
            parsed.is_some_and(|parsed| parsed.err().is_none_or(|error| error.to_string() != why))
        };
        match deeper.find(is_it) {
            Some(longer) => path = longer,
            None => return path,
        }
    }
}

/// Checks what all calls on image files have in common.
fn check_image(path: &Path, deadline_s: u32) -> Result<(), RpcError> {
    if !path.is_absolute() {
        return Err(invalid("path must be absolute".into()));
    }
    if !(1..=MAX_IMAGE_DEADLINE_S).contains(&deadline_s) {
        return Err(invalid(format!("deadline_s must be 1 to {MAX_IMAGE_DEADLINE_S}")));
    }
    Ok(())
}

/// Checks that a tree consists of files that are named by absolute paths.
fn check_source(source: &Backend) -> Result<(), RpcError> {
    let mut paths = source.files().map(FileRef::path);
    if paths.any(|path| path.is_none_or(|path| !path.is_absolute())) {
        return Err(invalid("the files of a tree must be absolute paths".into()));
    }
    Ok(())
}

fn invalid(message: String) -> RpcError {
    RpcError { code: code::INVALID_PARAMS, message }
}
