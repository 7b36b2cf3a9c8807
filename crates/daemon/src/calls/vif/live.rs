//! Settings of network interfaces, which act on those that are plugged.

use std::sync::Arc;

use model::id::VifId;
use model::nic::NicLimits;
use xenapi::table::vif;
use xenapi::{ApiError, Value, codes};

use crate::db::{Db, Ref, Tx, View};
use crate::dispatch::{Ctx, Hook};
use crate::errors::sentence;
use crate::house::House;
use crate::records::fields::uuid;
use crate::records::interface;

pub(in crate::calls) const HOOKS: &[Hook] = &[
    Hook { field: "VIF.locking_mode", check: kept, follow: Some(follow) },
    Hook { field: "VIF.ipv4_allowed", check: kept, follow: Some(follow) },
    Hook { field: "VIF.ipv6_allowed", check: kept, follow: Some(follow) },
    Hook { field: "VIF.qos_algorithm_type", check: kept, follow: Some(follow) },
    Hook { field: "VIF.qos_algorithm_params", check: kept, follow: Some(follow) },
];

fn kept(_: &Ctx, tx: &mut Tx<'_>, device: &Ref) -> Result<(), ApiError> {
    interface::check(&tx.view(), device)
}

/// Tells the switch, whether it has the interface yet or not: the plug of one may be under way. A call
/// is answered when what it has set is in force: who locks a guest in must not have to ask since when.
fn follow(ctx: &Ctx, device: &Ref) {
    let (house, device) = (ctx.house.clone(), device.clone());
    ctx.after(async move { apply(&house, &device).await });
}

async fn apply(house: &House, device: &Ref) -> Result<(), ApiError> {
    // One that is gone has nothing to do.
    let Ok(VifId(id)) = house.db.read(|view| id(view, device)) else { return Ok(()) };
    let _teller = house.machines.teller(&id.to_string()).await;
    let Ok((vif, now)) = limits(&house.db, device) else { return Ok(()) };
    let failure = house.drivers.limit_vif(vif, &now).await.err();
    let detail = failure.as_ref().map_or_else(String::new, |error| sentence(error));
    let code = i64::from(failure.is_some());
    let noted = house.db.note(|tx| {
        tx.set(device, vif::Field::status_code, Value::Int(code))?;
        tx.set(device, vif::Field::status_detail, Value::Str(detail.clone()))
    });
    // A device that is gone by now has no state.
    drop(noted);
    match failure {
        None => Ok(()),
        Some(_) => Err(codes::internal(format!("it is recorded, and not in force: {detail}"))),
    }
}

/// Tells the switch what a daemon before this one has stored and may not have told any more. Nobody
/// waits for that.
pub(crate) fn agree(house: &Arc<House>) {
    let house = house.clone();
    tokio::spawn(async move {
        let devices: Vec<Ref> = house.db.read(|view| view.attached(&vif::CLASS).cloned().collect());
        for device in devices {
            // The device tells of a failure.
            let _noted = apply(&house, &device).await;
        }
    });
}

fn limits(db: &Db, device: &Ref) -> Result<(VifId, NicLimits), ApiError> {
    db.read(|view| Ok((id(view, device)?, interface::may(view, device)?)))
}

fn id(view: &View<'_>, device: &Ref) -> Result<VifId, ApiError> {
    Ok(VifId(uuid(view, device, vif::Field::uuid)?))
}
