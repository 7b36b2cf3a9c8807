//! Messages of class `task`.

use xenapi::table::task;
use xenapi::{Value, codes};

use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, Handler, text};
use crate::tasks::{self, Status};

pub(super) const CALLS: super::Calls = &[
    ("task.create", Handler::Long(|ctx, args| Box::pin(create(ctx, args)))),
    ("task.destroy", Handler::Short(destroy)),
    ("task.cancel", Handler::Short(cancel)),
    ("task.set_progress", Handler::Short(set_progress)),
    ("task.set_status", Handler::Short(set_status)),
    ("task.set_result", Handler::Short(set_result)),
    ("task.set_error_info", Handler::Short(set_error_info)),
];

async fn create(ctx: Ctx, args: Args) -> CallResult {
    let made = tasks::create(&ctx, args.text("label"), args.text("description"));
    made.await.map(|it| it.value())
}

fn destroy(ctx: &Ctx, args: &Args) -> CallResult {
    tasks::destroy(ctx, &args.object()).map(|()| nothing())
}

fn cancel(ctx: &Ctx, args: &Args) -> CallResult {
    tasks::cancel(ctx, &args.object()).map(|()| nothing())
}

fn set_progress(ctx: &Ctx, args: &Args) -> CallResult {
    let part = args.float("value");
    if !(0.0..=1.0).contains(&part) {
        return Err(codes::invalid_value("value", part.to_string()));
    }
    write(ctx, args, task::Field::progress)
}

fn set_result(ctx: &Ctx, args: &Args) -> CallResult {
    write(ctx, args, task::Field::result)
}

fn set_error_info(ctx: &Ctx, args: &Args) -> CallResult {
    write(ctx, args, task::Field::error_info)
}

fn write(ctx: &Ctx, args: &Args, field: task::Field) -> CallResult {
    let it = args.object();
    let texts = std::iter::once(args.value("value")).chain(args.set("value"));
    tasks::check_text(ctx, "value", texts.map(|value| text(value).len()).sum())?;
    tasks::client_task(ctx, &it)?;
    ctx.change(|tx| tx.set(&it, field, args.value("value").clone()))?;
    Ok(nothing())
}

fn set_status(ctx: &Ctx, args: &Args) -> CallResult {
    let word: &Value = args.value("value");
    let status = Status::parse(text(word));
    let status = status.ok_or_else(|| codes::invalid_value("value", text(word)))?;
    tasks::set_status(ctx, &args.object(), status).map(|()| nothing())
}
