//! Messages: notes to administrators.

use xenapi::table::message;
use xenapi::{ApiError, Date, Value};

use crate::db::{Db, Object, Tx};
use crate::dispatch::generic::{self, nothing};
use crate::dispatch::{Args, CallResult, Ctx, Handler, text};

/// Most messages stored. The oldest are deleted first.
pub(crate) const MESSAGES_MAX: usize = 10_000;
/// Longest body of a message, in bytes.
const BODY_BYTES_MAX: usize = 16_384;

pub(crate) const CALLS: crate::calls::Calls = &[
    ("message.create", Handler::Short(create)),
    ("message.destroy", Handler::Short(generic::destroy)),
    ("message.destroy_many", Handler::Short(destroy_many)),
    ("message.get", Handler::Short(get)),
    ("message.get_since", Handler::Short(get_since)),
];

/// Content of a new message.
#[derive(Clone, Debug)]
pub(crate) struct MessageDraft<'a> {
    /// Name of the event.
    pub(crate) name: &'a str,
    /// Priority; 1 is the highest.
    pub(crate) priority: i64,
    /// Class of the object.
    pub(crate) cls: &'a str,
    /// UUID of the object.
    pub(crate) uuid: &'a str,
    /// Description of the event.
    pub(crate) body: &'a str,
}

/// Creates a message within a change.
///
/// # Errors
/// Those of the database.
pub(crate) fn write(
    tx: &mut Tx<'_>,
    message_draft: &MessageDraft<'_>,
    now: Date,
) -> Result<crate::db::Ref, ApiError> {
    let oldest = tx.view().all(&message::CLASS).next().map(|one| one.reference().clone());
    if let Some(oldest) = oldest.filter(|_| tx.view().count(&message::CLASS) >= MESSAGES_MAX) {
        tx.destroy(&message::CLASS, &oldest)?;
    }
    let mut body = message_draft.body.to_owned();
    body.truncate(body.floor_char_boundary(BODY_BYTES_MAX));
    tx.create(
        &message::CLASS,
        vec![
            (message::Field::name.into(), Value::text(message_draft.name)),
            (message::Field::priority.into(), Value::Int(message_draft.priority)),
            (message::Field::cls.into(), Value::text(message_draft.cls)),
            (message::Field::obj_uuid.into(), Value::text(message_draft.uuid)),
            (message::Field::timestamp.into(), Value::Date(now)),
            (message::Field::body.into(), Value::Str(body)),
        ],
    )
}

/// Creates a message about an event. If this fails, the message is lost.
pub(crate) fn create_message(db: &Db, message_draft: &MessageDraft<'_>, now: Date) {
    let _ = db.write_observed(|tx| write(tx, message_draft, now));
}

fn create(ctx: &Ctx, args: &Args) -> CallResult {
    let message_draft = MessageDraft {
        name: args.text("name"),
        priority: args.int("priority"),
        cls: args.text("cls"),
        uuid: args.text("obj_uuid"),
        body: args.text("body"),
    };
    let now = ctx.app.clock.date();
    ctx.change(|tx| write(tx, &message_draft, now)).map(|made| made.value())
}

fn destroy_many(ctx: &Ctx, args: &Args) -> CallResult {
    ctx.change(|tx| {
        args.set("messages")
            .iter()
            .try_for_each(|one| tx.destroy(&message::CLASS, &crate::db::Ref::from(text(one))))
    })?;
    Ok(nothing())
}

fn get(ctx: &Ctx, args: &Args) -> CallResult {
    let is =
        |one: &Object, field: message::Field, wanted: &Value| one.get(field.into()) == Some(wanted);
    since(ctx, args, |one| {
        is(one, message::Field::cls, args.value("cls"))
            && is(one, message::Field::obj_uuid, args.value("obj_uuid"))
    })
}

fn get_since(ctx: &Ctx, args: &Args) -> CallResult {
    since(ctx, args, |_| true)
}

/// Returns messages since a time, by reference.
fn since(ctx: &Ctx, args: &Args, wanted: impl Fn(&Object) -> bool) -> CallResult {
    let since = args.date("since");
    let later = |one: &Object| matches!(one.get(message::Field::timestamp.into()), Some(Value::Date(at)) if *at >= since);
    let found = ctx.read(|view| {
        let all = view.all(&message::CLASS).filter(|one| later(one) && wanted(one));
        let pair = |one: &Object| (one.reference().to_string(), Value::Encoded(one.record()));
        all.map(pair).collect()
    });
    Ok(Value::Map(found))
}
