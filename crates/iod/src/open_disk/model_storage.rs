//! Models of storage devices, which disks for tests and measurements are on.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use disk::{DiskError, FileDisk, ModelDevice, Storage};
use memory::Mapping;
use model::spec::{DeviceModel, DeviceSpeed, DiskSpec, FlashModel, ModelDisk, PipeModel};
use share::device::{Connections, DeviceConfig, Flash, Model, Pipe, Spindle, calibrate};

use super::{OpenError, options};

/// Models of this process by their names.
static MODELS: Mutex<BTreeMap<String, Weak<ModelStorage>>> = Mutex::new(BTreeMap::new());

/// Model of a storage device that disks are on.
#[derive(Debug)]
pub(crate) struct ModelStorage {
    /// Parameters of the first disk. All others have the same.
    device_model: DeviceModel,
    speeds: Vec<DeviceSpeed>,
    profile: bool,
    pub(super) device: Arc<ModelDevice>,
    /// Scheduler of the device. `None` without a profile.
    pub(super) storage: Option<Arc<Storage>>,
}

impl ModelStorage {
    /// Returns the model of a disk, which lasts as long as its disks.
    ///
    /// # Errors
    /// Another disk has a model of this name with other numbers, or a profile cannot be made.
    pub(super) fn find(disk: &ModelDisk) -> Result<Arc<Self>, OpenError> {
        let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
        models.retain(|_, model| model.strong_count() > 0);
        let error = |problem| OpenError::Model { name: disk.name.clone(), problem };
        if let Some(present) = models.get(&disk.name).and_then(Weak::upgrade) {
            let same = present.device_model == disk.device
                && present.speeds == disk.speeds
                && present.profile == disk.profile;
            let other =
                "another disk has it with other numbers; give both the same, or another name";
            return if same { Ok(present) } else { Err(error(other.into())) };
        }
        let model = to_model(disk.device);
        let speed = |speed: &DeviceSpeed| (speed.from_ms * 1_000_000, speed.percent);
        let config = DeviceConfig { model, speeds: disk.speeds.iter().map(speed).collect() };
        let storage = match disk.profile {
            true => {
                let profile = calibrate(model).map_err(|cause| error(no_profile(&cause)))?;
                Some(Storage::new(&profile).map_err(|cause| error(no_profile(&cause)))?)
            }
            false => None,
        };
        let made = Arc::new(Self {
            device_model: disk.device,
            speeds: disk.speeds.clone(),
            profile: disk.profile,
            device: ModelDevice::new(config),
            storage,
        });
        models.insert(disk.name.clone(), Arc::downgrade(&made));
        Ok(made)
    }
}

fn no_profile(cause: &dyn std::error::Error) -> String {
    format!("it has no profile: {cause}; change its numbers, or give \"profile\":false")
}

/// Opens the bytes of a disk on a model: those that a former process preserved, or zeroes.
pub(super) fn open_bytes(
    spec: &DiskSpec,
    disk: &ModelDisk,
    preserved: Option<OwnedFd>,
) -> Result<FileDisk, DiskError> {
    let size = disk.size;
    let failed = |source| DiskError::Memory { size, source };
    let (fd, size) = match preserved {
        Some(fd) => {
            let found = rustix::fs::fstat(&fd).map_err(DiskError::os("measure", &disk.name))?;
            (fd, u64::try_from(found.st_size).unwrap_or(0))
        }
        None => {
            let memory = Mapping::memfd("ringway-model", size).map_err(failed)?;
            let fd = memory.fd().map(|fd| fd.as_fd().try_clone_to_owned()).transpose();
            let fd = fd.map_err(DiskError::os("duplicate the memory of", &disk.name))?;
            let missing = memory::MemoryError::BadRange { start: 0, len: size };
            (fd.ok_or_else(|| failed(missing))?, size)
        }
    };
    let mut options = options(spec, format!("model {}", disk.name).into(), spec.read_only);
    // The model stands for the device: memory has no direct I/O of its own.
    options.direct = false;
    FileDisk::adopt(options, fd, size, false)
}

/// Converts a model to the device's form. Numbers that are absent are those of the default device.
fn to_model(device: DeviceModel) -> Model {
    let count = |value: Option<u64>, default| {
        value.map_or(default, |value| usize::try_from(value).unwrap_or(default))
    };
    match device {
        DeviceModel::Pipe(PipeModel {
            bytes_per_second,
            request_ns,
            latency_ns,
            queue,
            connections,
            connection_bytes_per_second,
        }) => {
            let default = Pipe::ARRAY;
            let rate = connection_bytes_per_second;
            Model::Pipe(Pipe {
                bytes_per_second: bytes_per_second.unwrap_or(default.bytes_per_second),
                request_ns: request_ns.unwrap_or(default.request_ns),
                latency_ns: latency_ns.unwrap_or(default.latency_ns),
                queue: count(queue, default.queue),
                connections: Connections {
                    count: count(connections, default.connections.count),
                    bytes_per_second: rate.unwrap_or(default.connections.bytes_per_second),
                },
            })
        }
        DeviceModel::Flash(flash) => Model::Flash(to_flash(&flash)),
        DeviceModel::Spindle(spindle) => {
            let default = Spindle::DISK;
            Model::Spindle(Spindle {
                bytes_per_second: spindle.bytes_per_second.unwrap_or(default.bytes_per_second),
                size: spindle.size.unwrap_or(default.size),
                seek_ns: (
                    spindle.seek_min_ns.unwrap_or(default.seek_ns.0),
                    spindle.seek_max_ns.unwrap_or(default.seek_ns.1),
                ),
                rotation_ns: spindle.rotation_ns.unwrap_or(default.rotation_ns),
            })
        }
    }
}

fn to_flash(flash: &FlashModel) -> Flash {
    let default = Flash::STRIPED;
    let command_rate = flash.request_bytes_per_second;
    Flash {
        channels: flash.channels.map_or(default.channels, |it| it as usize),
        bytes_per_second: flash.bytes_per_second.unwrap_or(default.bytes_per_second),
        latency_ns: flash.latency_ns.unwrap_or(default.latency_ns),
        stripe: flash.stripe.unwrap_or(default.stripe),
        command_bytes_per_second: command_rate.unwrap_or(default.command_bytes_per_second),
        write_percent: flash.write_percent.unwrap_or(default.write_percent),
        stall: (
            flash.stall_every_ns.unwrap_or(default.stall.0),
            flash.stall_ns.unwrap_or(default.stall.1),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn find(name: &str, device: Value, profile: bool) -> Result<Arc<ModelStorage>, String> {
        let disk = json!({"name": name, "size": 4096, "device": device, "profile": profile});
        let disk: ModelDisk = serde_json::from_value(disk).unwrap();
        ModelStorage::find(&disk).map_err(|error| error.to_string())
    }

    #[test]
    fn disks_of_one_name_are_on_one_device() {
        let pipe = || json!({"pipe": {"queue": 4}});
        let one = find("shared", pipe(), true).unwrap();
        assert!(Arc::ptr_eq(&one, &find("shared", pipe(), true).unwrap()));
        assert!(!Arc::ptr_eq(&one.device, &find("other", pipe(), true).unwrap().device));
        for (device, profile) in [(pipe(), false), (json!({"pipe": {}}), true)] {
            let error = find("shared", device, profile).unwrap_err();
            assert!(
                error.contains("the model shared") && error.contains("other numbers"),
                "{error}"
            );
        }
        drop(one);
        assert!(find("shared", pipe(), false).unwrap().storage.is_none());
    }

    #[test]
    fn extreme_models_have_a_profile_or_say_why_not() {
        for device in [
            json!({"pipe": {}}),
            json!({"spindle": {}}),
            json!({"flash": {}}),
            json!({"pipe": {"bytes_per_second": 1_000_000, "latency_ns": 10_000_000_000u64,
                            "queue": 1, "connection_bytes_per_second": 1_000_000}}),
            json!({"flash": {"channels": 1024, "stripe": 4096, "latency_ns": 0,
                             "write_percent": 10_000}}),
            json!({"spindle": {"bytes_per_second": 1_000_000, "seek_max_ns": 0}}),
        ] {
            if let Err(error) = find("extreme", device, true) {
                assert!(error.contains("it has no profile"), "{error}");
            }
        }
    }
}
