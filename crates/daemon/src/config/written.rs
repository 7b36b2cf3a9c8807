//! Syntax of the configuration file.

use std::path::PathBuf;

use serde::Deserialize;

use crate::options::{CalibrateMode, HypervisorKind, Listen, SlicesMode};

/// The whole configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct ConfigFile {
    pub(super) state: Option<PathBuf>,
    pub(super) run: Option<PathBuf>,
    pub(super) listen: Option<Vec<Listen>>,
    pub(super) socket: Option<PathBuf>,
    pub(super) hypervisor: Option<HypervisorKind>,
    pub(super) password_file: Option<PathBuf>,
    pub(super) boot: WrittenBoot,
    pub(super) limits: WrittenLimits,
    pub(super) identity: WrittenIdentity,
    pub(super) slices: WrittenSlices,
    pub(super) storage: WrittenStorage,
    pub(super) web: WrittenWeb,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WrittenWeb {
    pub(super) directory: Option<PathBuf>,
    pub(super) origins: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WrittenStorage {
    pub(super) calibrate: Option<CalibrateMode>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WrittenBoot {
    pub(super) directories: Option<Vec<PathBuf>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct WrittenLimits {
    pub(super) worker_pool_size: Option<u16>,
    pub(super) machine: Option<u16>,
    pub(super) sr: Option<u16>,
    pub(super) stuck_ms: Option<u64>,
    pub(super) boots: Option<u16>,
    pub(super) attach_deadline_s: Option<u64>,
    pub(super) queue_deadline_s: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct WrittenIdentity {
    pub(super) product_brand: Option<String>,
    pub(super) product_version: Option<String>,
    pub(super) platform_version: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct WrittenSlices {
    pub(super) mode: Option<SlicesMode>,
    pub(super) name: Option<String>,
    pub(super) control_weight: Option<u32>,
    pub(super) datapath_weight: Option<u32>,
    pub(super) guests_weight: Option<u32>,
}
