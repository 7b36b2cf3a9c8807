//! Records of host NICs.

use toolstack::net::HostNic;
use xenapi::table::{FieldIx, network, pif, pif_metrics};
use xenapi::{ApiError, Date, Value};

use crate::calls::network::bridge_of;
use crate::db::{Ref, Tx, View};
use crate::records::fields::{reference, text, uuid};

/// Returns the PIF of this device name, if there is one.
pub(super) fn known(view: &View<'_>, host: &Ref, device: &str) -> Option<Ref> {
    let is = |pif: &&Ref| {
        text(view, pif, pif::Field::device) == Ok(device)
            && reference(view, pif, pif::Field::host).as_ref() == Ok(host)
    };
    view.all(&pif::CLASS).map(crate::db::Object::reference).find(is).cloned()
}

/// Creates the record of a NIC, on this network or on one of its own, which is named as in XenServer.
pub(super) fn make(
    tx: &mut Tx<'_>,
    host: &Ref,
    host_nic: &HostNic,
    (managed, net): (bool, Option<&Ref>),
    now: Date,
) -> Result<Ref, ApiError> {
    let net = match net {
        Some(net) => net.clone(),
        None => own_network(tx, host_nic)?,
    };
    let metrics = tx.create(&pif_metrics::CLASS, shown(host_nic, now))?;
    let text = |text: &str| Value::text(text);
    tx.create(
        &pif::CLASS,
        vec![
            (pif::Field::device.into(), text(&host_nic.name)),
            (pif::Field::network.into(), net.value()),
            (pif::Field::host.into(), host.value()),
            (pif::Field::MAC.into(), text(&host_nic.mac)),
            (pif::Field::MTU.into(), Value::Int(i64::from(host_nic.mtu))),
            (pif::Field::VLAN.into(), Value::Int(-1)),
            (pif::Field::metrics.into(), metrics.value()),
            (pif::Field::physical.into(), Value::Bool(host_nic.physical)),
            (pif::Field::currently_attached.into(), Value::Bool(false)),
            (pif::Field::managed.into(), Value::Bool(managed)),
        ],
    )
}

fn own_network(tx: &mut Tx<'_>, host_nic: &HostNic) -> Result<Ref, ApiError> {
    let label = format!("Pool-wide network associated with {}", host_nic.name);
    let fields = vec![
        (network::Field::name_label.into(), Value::Str(label)),
        (network::Field::MTU.into(), Value::Int(i64::from(host_nic.mtu))),
    ];
    let net = tx.create(&network::CLASS, fields)?;
    let bridge = bridge_of(uuid(&tx.view(), &net, network::Field::uuid)?);
    tx.set(&net, network::Field::bridge, Value::Str(bridge))?;
    Ok(net)
}

/// Updates a record to the current state of the NIC.
pub(super) fn found(
    tx: &mut Tx<'_>,
    pif: &Ref,
    host_nic: &HostNic,
    now: Date,
) -> Result<(), ApiError> {
    tx.set(pif, pif::Field::MAC, Value::text(&host_nic.mac))?;
    tx.set(pif, pif::Field::MTU, Value::Int(i64::from(host_nic.mtu)))?;
    let metrics = reference(&tx.view(), pif, pif::Field::metrics)?;
    shown(host_nic, now).into_iter().try_for_each(|(field, value)| tx.set(&metrics, field, value))
}

fn shown(host_nic: &HostNic, now: Date) -> Vec<(FieldIx, Value)> {
    let [vendor, device, bus] = &host_nic.hardware;
    vec![
        (pif_metrics::Field::carrier.into(), Value::Bool(host_nic.carrier)),
        (pif_metrics::Field::speed.into(), Value::Int(i64::from(host_nic.speed))),
        (pif_metrics::Field::duplex.into(), Value::Bool(host_nic.full_duplex)),
        (pif_metrics::Field::vendor_id.into(), Value::text(vendor)),
        (pif_metrics::Field::device_id.into(), Value::text(device)),
        (pif_metrics::Field::pci_bus_path.into(), Value::text(bus)),
        (pif_metrics::Field::last_updated.into(), Value::Date(now)),
    ]
}
