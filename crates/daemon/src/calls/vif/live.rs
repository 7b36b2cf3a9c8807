//! Settings of network interfaces, which act on those that are plugged.

use std::sync::Arc;
use std::time::Duration;

use model::id::VifId;
use model::nic::NicLimits;
use tokio::time::timeout;
use toolstack::io::IoError;
use xenapi::table::vif;
use xenapi::{ApiError, Value};

use crate::db::{Db, Ref, Tx};
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

/// Most time for the switch to take other limits.
const TELL_DEADLINE: Duration = Duration::from_secs(30);

fn kept(_: &Ctx, tx: &mut Tx<'_>, device: &Ref) -> Result<(), ApiError> {
    interface::check(&tx.view(), device)
}

/// Tells the switch, whether it has the interface yet or not: the plug of one may be under way.
fn follow(ctx: &Ctx, device: &Ref) {
    let (house, device) = (ctx.house.clone(), device.clone());
    tokio::spawn(async move { apply(&house, &device).await });
}

async fn apply(house: &House, device: &Ref) {
    let mut told = None;
    loop {
        // Two changes may have come at once: the last one that is recorded is the last one told.
        let Ok((vif, now)) = limits(&house.db, device) else { return };
        if told.as_ref() == Some(&now) {
            return;
        }
        let failure = tell(house, vif, &now).await.err();
        let detail = failure.as_ref().map_or_else(String::new, |error| sentence(error));
        let code = i64::from(failure.is_some());
        let noted = house.db.note(|tx| {
            tx.set(device, vif::Field::status_code, Value::Int(code))?;
            tx.set(device, vif::Field::status_detail, Value::Str(detail))
        });
        if noted.is_err() || failure.is_some() {
            return;
        }
        told = Some(now);
    }
}

/// Tells the switch what a daemon before this one has stored and may not have told any more. Nobody
/// waits for that.
pub(crate) fn agree(house: &Arc<House>) {
    let house = house.clone();
    tokio::spawn(async move {
        let devices: Vec<Ref> = house.db.read(|view| view.attached(&vif::CLASS).cloned().collect());
        for device in devices {
            apply(&house, &device).await;
        }
    });
}

fn limits(db: &Db, device: &Ref) -> Result<(VifId, NicLimits), ApiError> {
    db.read(|view| {
        let vif = VifId(uuid(view, device, vif::Field::uuid)?);
        Ok((vif, interface::may(view, device)?))
    })
}

/// In time, or not at all.
async fn tell(house: &House, vif: VifId, limits: &NicLimits) -> Result<(), IoError> {
    let (what, deadline) = ("its limits".to_owned(), TELL_DEADLINE);
    let told = timeout(deadline, house.drivers.limit_vif(vif, limits)).await;
    told.unwrap_or(Err(IoError::Late { what, deadline }))
}
