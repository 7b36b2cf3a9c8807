//! Settings of VIFs.

use std::collections::BTreeMap;

use model::nic::NicLimits;
use model::vif::{FLOOD_LIMIT, LockingMode, QUEUES, VifSettings, check_limits, limits};
use xenapi::table::{FieldIx, network, vif};
use xenapi::{ApiError, Value, codes};

use super::fields::{pairs, reference, text};
use crate::db::{Ref, View};

/// Fields that determine the limits of a VIF.
struct Fields<'a> {
    algorithm: &'a str,
    params: BTreeMap<String, String>,
    mode: LockingMode,
    closed: bool,
    ipv4: Vec<String>,
    ipv6: Vec<String>,
    flood: Option<String>,
    queues: Option<String>,
}

impl<'a> Fields<'a> {
    fn read(view: &View<'a>, device: &Ref) -> Result<Self, ApiError> {
        let mode = LockingMode::parse(text(view, device, vif::Field::locking_mode)?);
        let net = reference(view, device, vif::Field::network)?;
        let mut other_config = pairs(view, device, vif::Field::other_config)?;
        // A VIF without its network cannot be plugged, so the default does not matter.
        let default = text(view, &net, network::Field::default_locking_mode).unwrap_or_default();
        Ok(Self {
            algorithm: text(view, device, vif::Field::qos_algorithm_type)?,
            params: pairs(view, device, vif::Field::qos_algorithm_params)?,
            // The class table allows no other value.
            mode: mode.unwrap_or(LockingMode::NetworkDefault),
            closed: default == LockingMode::Disabled.name(),
            ipv4: texts(view, device, vif::Field::ipv4_allowed)?,
            ipv6: texts(view, device, vif::Field::ipv6_allowed)?,
            flood: other_config.remove(FLOOD_LIMIT),
            queues: other_config.remove(QUEUES),
        })
    }

    fn asked(&self) -> VifSettings<'_> {
        let Self { algorithm, params, mode, closed, ipv4, ipv6, flood, queues } = self;
        let (flood, queues) = (flood.as_deref(), queues.as_deref());
        VifSettings {
            algorithm,
            params,
            mode: *mode,
            network_default_disabled: *closed,
            ipv4,
            ipv6,
            flood,
            queues,
        }
    }
}

fn texts(view: &View<'_>, of: &Ref, field: impl Into<FieldIx>) -> Result<Vec<String>, ApiError> {
    let Value::Set(members) = view.get(of, field)? else { return Ok(Vec::new()) };
    let text = |member: &Value| match member {
        Value::Str(text) => Some(text.clone()),
        _ => None,
    };
    Ok(members.iter().filter_map(text).collect())
}

/// Returns the limits of a VIF. Invalid settings, stored before calls checked them, allow no
/// traffic.
///
/// # Errors
/// `HANDLE_INVALID` if the VIF does not exist.
pub(crate) fn may(view: &View<'_>, device: &Ref) -> Result<NicLimits, ApiError> {
    Fields::read(view, device).map(|fields| limits(&fields.asked()))
}

/// Checks that all settings of a VIF are valid.
///
/// # Errors
/// `VALUE_NOT_SUPPORTED` for the first invalid field.
pub(crate) fn check(view: &View<'_>, device: &Ref) -> Result<(), ApiError> {
    let fields = Fields::read(view, device)?;
    check_limits(&fields.asked()).map_err(|error| {
        let value = if error.field == "qos_algorithm_type" { fields.algorithm } else { "" };
        codes::value_not_supported(error.field, value, error.problem)
    })
}
