//! Commands for hosts, the pool, tasks and secrets.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use xenapi::Value;

use super::Command;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::{Line, Printed};
use crate::selector::{self, HOST};
use crate::xe::{XeSession, pairs, record, text_of};

pub(super) const COMMANDS: &[Command] = &[
    Command::on_selected(
        "host-disable",
        &HOST,
        "host.disable",
        "Disables hosts: no more machines start there.",
    ),
    Command::on_selected(
        "host-enable",
        &HOST,
        "host.enable",
        "Enables hosts: machines can start there again.",
    ),
    Command::on_selected(
        "host-evacuate",
        &HOST,
        "host.evacuate",
        "Moves machines away from hosts.",
    ),
    Command::own(
        "pool-dump-database",
        "Writes all records of the pool to a new file, which `ringwayd --import` reads.",
        dump_database,
    )
    .required(&["file-name"]),
    Command::own(
        "pool-restore-database",
        "Replaces all records of the pool by a dump, at the next start of `ringwayd`. Machines must \
         be halted. With --dry-run the dump is only checked.",
        restore_database,
    )
    .required(&["file-name"])
    .optional(&["dry-run"]),
    Command::on_selected("host-reboot", &HOST, "host.reboot", "Reboots hosts.").later(),
    Command::on_selected("host-shutdown", &HOST, "host.shutdown", "Powers hosts off.").later(),
    Command::own("host-cpu-info", "Shows information about the CPUs of hosts.", cpu_info).of(&HOST),
    Command::own(
        "host-compute-free-memory",
        "Prints the memory of hosts that is free for machines, in bytes.",
        free_memory,
    )
    .of(&HOST),
    Command::own("host-call-plugin", "Calls a plugin of a host.", call_plugin)
        .required(&["host-uuid", "plugin", "fn"])
        .optional(&["args:"]),
    Command::own("pool-sync-database", "Writes the database to every host.", sync_database),
    Command::own("task-cancel", "Cancels a task.", cancel).required(&["uuid"]),
    Command::own("secret-create", "Stores a secret.", create_secret).required(&["value"]),
    Command::on_uuid("secret-destroy", "secret.destroy", "Forgets a secret."),
    Command::own("user-password-change", "Changes the password of the user.", change_password)
        .required(&["new"])
        .optional(&["old"]),
];

/// Mode of a new file with records: access for its owner only, because records contain secrets.
const OWNER: u32 = 0o600;

fn dump_database(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let path = params.required("file-name")?;
    let failed = |error: std::io::Error| {
        XeError::error(format!("cannot write {path}: {error}; name a new file"))
    };
    let text = text_of(&xe.run("pool.dump_database", &[])?);
    let file = OpenOptions::new().write(true).create_new(true).mode(OWNER).open(path);
    let mut file = file.map_err(failed)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // An incomplete file is useless.
        let _gone = std::fs::remove_file(path);
    }
    written.map_err(failed)?;
    Ok(Printed::nothing())
}

fn restore_database(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let path = params.required("file-name")?;
    let dry_run = params.flag("dry-run")?;
    let failed = |error| XeError::error(format!("cannot read {path}: {error}"));
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let length = metadata.is_file().then_some(metadata.len());
    let to = format!("/pool/xmldbdump?dry_run={dry_run}");
    xe.client().put(&to, length, &mut file, &mut |_| {})?;
    Ok(Printed::Text(match dry_run {
        true => "Dry-run restore was successful\n".to_owned(),
        false => "The database will be restored when ringwayd starts again \
                  (systemctl restart ringwayd)\n"
            .to_owned(),
    }))
}

fn cpu_info(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let all = selector::select(xe, params, &HOST, &[])?;
    let lines = |one: &selector::Selected| -> Vec<Line> {
        let pairs = one.record.pairs("cpu_info").into_iter();
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    Ok(Printed::Records(all.iter().map(lines).collect()))
}

fn free_memory(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let all = selector::some(xe, params, &HOST, &[])?;
    let bytes = selector::together(xe, all, |xe, one| {
        xe.begin("host.compute_free_memory", &[one.value()])
    })?;
    let text = |bytes: Value| match bytes {
        Value::Int(bytes) => bytes.to_string(),
        _ => String::new(),
    };
    Ok(Printed::Values(bytes.into_iter().map(text).collect()))
}

fn call_plugin(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let host = xe.by_uuid("host", params.required("host-uuid")?)?;
    let [plugin, function] = [params.required("plugin")?, params.required("fn")?];
    let arguments = pairs(params.map("args"));
    let values = [host, Value::text(plugin), Value::text(function), arguments];
    Ok(Printed::value(text_of(&xe.run("host.call_plugin", &values)?)))
}

fn sync_database(xe: &mut XeSession, _: &Params) -> Result<Printed, XeError> {
    xe.run("pool.sync_database", &[])?;
    Ok(Printed::nothing())
}

fn cancel(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let task = xe.by_uuid("task", params.required("uuid")?)?;
    xe.run("task.cancel", &[task])?;
    Ok(Printed::nothing())
}

fn create_secret(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let value = Value::text(params.required("value")?);
    let secret = record([("value", value), ("other_config", pairs([]))]);
    Ok(Printed::value(xe.make("secret.create", &[secret])?))
}

fn change_password(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let old = Value::text(params.get("old").unwrap_or_default());
    let new = Value::text(params.required("new")?);
    xe.run("session.change_password", &[old, new])?;
    Ok(Printed::nothing())
}
