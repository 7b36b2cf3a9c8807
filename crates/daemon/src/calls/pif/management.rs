//! Record of the device by which the host is reached.
//!
//! The host's own tools set its address, so the toolstack brings this device neither up nor down.
//! If the address is on a bridge, machines on the bridge's network reach the network behind it.

use std::net::IpAddr;
use std::sync::Arc;

use error_causes::error_chain;
use toolstack::net::HostAddress;
use xenapi::table::{host, network, pif};
use xenapi::{ApiError, Date, Value};

use super::record::{found, known, make};
use crate::app::AppState;
use crate::calls::network::with_bridge;
use crate::db::{Ref, Tx, View};
use crate::records::fields::{flag, reference, references, text};

/// Makes the records show by which device the host is reached. A device that cannot be found is
/// logged.
pub(crate) async fn refresh(app: &Arc<AppState>) {
    let host = app.db.read(|view| {
        let host = view.all(&host::CLASS).next()?.reference().clone();
        let address: IpAddr = text(view, &host, host::Field::address).ok()?.parse().ok()?;
        Some((host, address))
    });
    let Some((host, address)) = host else { return };
    let host_address = match app.drivers.net.with_address(address).await {
        Ok(host_address) => host_address,
        Err(error) => {
            tracing::warn!("no management interface: {}", error_chain(&error));
            return;
        }
    };
    let now = app.clock.date();
    let recorded = app.db.write_observed(|tx| match &host_address {
        Some(host_address) => record(tx, &host, address, host_address, now),
        None => others(tx, &host, None),
    });
    if let Err(error) = recorded {
        tracing::error!("the management interface is not recorded: {error}");
    }
}

fn record(
    tx: &mut Tx<'_>,
    host: &Ref,
    address: IpAddr,
    host_address: &HostAddress,
    now: Date,
) -> Result<(), ApiError> {
    let HostAddress { host_nic, bridge, netmask, gateway, name_servers } = host_address;
    let pif = match existing(&tx.view(), host, host_address)? {
        Some(pif) => pif,
        None => {
            let with = with_bridge(&tx.view(), &host_nic.name).filter(|_| *bridge);
            let pif = make(tx, host, host_nic, (false, with.as_ref()), now)?;
            tx.set(&pif, pif::Field::currently_attached, Value::Bool(true))?;
            if *bridge {
                let net = reference(&tx.view(), &pif, pif::Field::network)?;
                tx.set(&net, network::Field::bridge, Value::text(&host_nic.name))?;
            }
            pif
        }
    };
    others(tx, host, Some(&pif))?;
    if text(&tx.view(), &pif, pif::Field::device)? == host_nic.name {
        found(tx, &pif, host_nic, now)?;
    }
    if !flag(&tx.view(), &pif, pif::Field::managed)? {
        tx.set(&pif, pif::Field::currently_attached, Value::Bool(true))?;
    }
    let v4 = address.is_ipv4();
    let only = |is: bool, text: &str| if is { Value::text(text) } else { Value::text("") };
    let v6 = Some(Value::text(address.to_string())).filter(|_| !v4);
    for (field, value) in [
        (pif::Field::management, Value::Bool(true)),
        (pif::Field::IP, only(v4, &address.to_string())),
        (pif::Field::netmask, only(v4, netmask)),
        (pif::Field::gateway, only(v4, gateway)),
        (pif::Field::DNS, Value::Str(name_servers.join(","))),
        (pif::Field::ip_configuration_mode, Value::text(if v4 { "Static" } else { "None" })),
        (pif::Field::IPv6, Value::Set(v6.into_iter().collect())),
        (pif::Field::ipv6_configuration_mode, Value::text(if v4 { "None" } else { "Static" })),
        (pif::Field::primary_address_type, Value::text(if v4 { "IPv4" } else { "IPv6" })),
    ] {
        tx.set(&pif, field, value)?;
    }
    Ok(())
}

/// Returns the PIF that already stands for the device: that of its name, or the NIC in the bridge of
/// its name.
fn existing(
    view: &View<'_>,
    host: &Ref,
    host_address: &HostAddress,
) -> Result<Option<Ref>, ApiError> {
    let device = &host_address.host_nic.name;
    if let Some(pif) = known(view, host, device) {
        return Ok(Some(pif));
    }
    let Some(net) = with_bridge(view, device) else { return Ok(None) };
    Ok(references(view, &net, network::Field::PIFs)?.into_iter().next())
}

/// Removes the mark from all PIFs of the host except this one.
fn others(tx: &mut Tx<'_>, host: &Ref, but: Option<&Ref>) -> Result<(), ApiError> {
    for pif in references(&tx.view(), host, host::Field::PIFs)? {
        if Some(&pif) == but || !flag(&tx.view(), &pif, pif::Field::management)? {
            continue;
        }
        let empty = || Value::text("");
        for (field, value) in [
            (pif::Field::management, Value::Bool(false)),
            (pif::Field::IP, empty()),
            (pif::Field::netmask, empty()),
            (pif::Field::gateway, empty()),
            (pif::Field::DNS, empty()),
            (pif::Field::ip_configuration_mode, Value::text("None")),
            (pif::Field::IPv6, Value::Set(Vec::new())),
            (pif::Field::ipv6_configuration_mode, Value::text("None")),
        ] {
            tx.set(&pif, field, value)?;
        }
        if !flag(&tx.view(), &pif, pif::Field::managed)? {
            // Its record may be forgotten from now on.
            tx.set(&pif, pif::Field::currently_attached, Value::Bool(false))?;
        }
    }
    Ok(())
}
