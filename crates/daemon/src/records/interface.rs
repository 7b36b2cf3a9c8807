//! What is set of a network interface.

use std::collections::BTreeMap;

use model::nic::NicLimits;
use model::vif::{FLOOD_LIMIT, LockingMode, VifSettings, check_limits, limits};
use xenapi::table::{FieldIx, network, vif};
use xenapi::{ApiError, Value, codes};

use super::fields::{pairs, reference, text};
use crate::db::{Ref, View};

/// Fields that say what an interface may do.
struct Fields<'a> {
    algorithm: &'a str,
    params: BTreeMap<String, String>,
    mode: LockingMode,
    closed: bool,
    ipv4: Vec<String>,
    ipv6: Vec<String>,
    flood: Option<String>,
}

impl<'a> Fields<'a> {
    fn read(view: &View<'a>, device: &Ref) -> Result<Self, ApiError> {
        let mode = LockingMode::parse(text(view, device, vif::Field::locking_mode)?);
        let net = reference(view, device, vif::Field::network)?;
        // One whose network is gone cannot be plugged.
        let default = text(view, &net, network::Field::default_locking_mode).unwrap_or_default();
        Ok(Self {
            algorithm: text(view, device, vif::Field::qos_algorithm_type)?,
            params: pairs(view, device, vif::Field::qos_algorithm_params)?,
            // The table lets no other word in.
            mode: mode.unwrap_or(LockingMode::NetworkDefault),
            closed: default == LockingMode::Disabled.name(),
            ipv4: texts(view, device, vif::Field::ipv4_allowed)?,
            ipv6: texts(view, device, vif::Field::ipv6_allowed)?,
            flood: pairs(view, device, vif::Field::other_config)?.remove(FLOOD_LIMIT),
        })
    }

    fn asked(&self) -> VifSettings<'_> {
        let Self { algorithm, params, mode, closed, ipv4, ipv6, flood } = self;
        let flood = flood.as_deref();
        VifSettings { algorithm, params, mode: *mode, closed: *closed, ipv4, ipv6, flood }
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

/// What an interface may do. What makes no sense got in before calls refused it, and allows nothing.
///
/// # Errors
/// There is no such interface.
pub(crate) fn may(view: &View<'_>, device: &Ref) -> Result<NicLimits, ApiError> {
    Fields::read(view, device).map(|fields| limits(&fields.asked()))
}

/// Whether everything that is set of an interface can be kept.
///
/// # Errors
/// `VALUE_NOT_SUPPORTED`: the first field that cannot.
pub(crate) fn check(view: &View<'_>, device: &Ref) -> Result<(), ApiError> {
    let fields = Fields::read(view, device)?;
    check_limits(&fields.asked()).map_err(|error| {
        let value = if error.field == "qos_algorithm_type" { fields.algorithm } else { "" };
        codes::value_not_supported(error.field, value, error.problem)
    })
}
