//! Messages about VLANs, bonds and addresses of host NICs. The host's own tools manage all three, so
//! the messages are refused, with XenAPI's codes for wrong parameters first.

use std::ops::RangeInclusive;

use xenapi::table::pif;
use xenapi::{ApiError, Value, codes};

use super::managed;
use crate::db::Ref;
use crate::dispatch::{Args, CallResult, Ctx, Handler, text};
use crate::records::fields::flag;

/// Tags of VLANs. 0 is the untagged network, 4095 is reserved (IEEE 802.1Q).
const TAGS: RangeInclusive<i64> = 0..=4094;

pub(in crate::calls) const CALLS: crate::calls::Calls = &[
    ("Bond.create", Handler::Short(of_members)),
    ("PIF.create_VLAN", Handler::Short(of_tag)),
    ("PIF.destroy", Handler::Short(destroy)),
    ("PIF.reconfigure_ip", Handler::Short(of_pif)),
    ("PIF.reconfigure_ipv6", Handler::Short(of_pif)),
    ("VLAN.create", Handler::Short(of_tagged)),
    ("pool.create_VLAN", Handler::Short(of_tag)),
    ("pool.create_VLAN_from_PIF", Handler::Short(of_tagged)),
];

fn refused(ctx: &Ctx) -> CallResult {
    Err(codes::not_implemented(ctx.name()))
}

fn of_members(ctx: &Ctx, args: &Args) -> CallResult {
    let members = args.set("members").iter().map(|member| Ref::from(text(member)));
    ctx.read(|view| members.into_iter().try_for_each(|pif| managed(view, &pif)))?;
    refused(ctx)
}

fn of_pif(ctx: &Ctx, args: &Args) -> CallResult {
    ctx.read(|view| managed(view, &args.object()))?;
    refused(ctx)
}

fn of_tag(ctx: &Ctx, args: &Args) -> CallResult {
    tag(args)?;
    refused(ctx)
}

fn of_tagged(ctx: &Ctx, args: &Args) -> CallResult {
    tag(args)?;
    of_pif(ctx, args)
}

fn tag(args: &Args) -> Result<(), ApiError> {
    let tag = match args.value("tag") {
        Value::Int(tag) => *tag,
        _ => args.int("VLAN"),
    };
    if TAGS.contains(&tag) { Ok(()) } else { Err(codes::vlan_tag_invalid(tag.to_string())) }
}

/// Only PIFs of VLANs can be destroyed, and there are none.
fn destroy(ctx: &Ctx, args: &Args) -> CallResult {
    let pif = args.object();
    if ctx.read(|view| flag(view, &pif, pif::Field::physical))? {
        return Err(codes::pif_is_physical(pif.as_str()));
    }
    refused(ctx)
}
