//! Commands for machines: power state, copies, removal.

use std::io::{BufRead, Write};

use model::plan::Deadlines;
use xenapi::Value;
use xenapi::client::Record;

use super::{Command, Run, named};
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::selector::{self, Selected, VM, VM_OR_TEMPLATE};
use crate::xe::{XeSession, pairs, text_of};

pub(super) const COMMANDS: &[Command] = &[
    Command::own("vm-start", "Starts machines.", start)
        .optional(&["on", "paused", "force"])
        .of(&VM)
        .common(),
    Command::own(
        "vm-shutdown",
        "Asks guests to power off and waits until they are off; with --force ends machines at \
         once.",
        shutdown,
    )
    .optional(&["force"])
    .of(&VM)
    .common(),
    Command::own(
        "vm-reboot",
        "Asks guests to reboot; with --force ends machines at once and starts them again.",
        reboot,
    )
    .optional(&["force"])
    .of(&VM)
    .common(),
    Command::on_selected("vm-pause", &VM, "VM.pause", "Stops the CPUs of machines.").common(),
    Command::on_selected("vm-unpause", &VM, "VM.unpause", "Lets the CPUs of machines run again.")
        .common(),
    Command::on_selected(
        "vm-suspend",
        &VM,
        "VM.suspend",
        "Writes the memory of machines to storage and ends them.",
    )
    .later(),
    Command::own("vm-resume", "Resumes suspended machines.", resume)
        .optional(&["on", "force"])
        .of(&VM)
        .later(),
    Command::own("vm-migrate", "Moves running machines to another host of the pool.", migrate)
        .optional(&["host", "host-uuid", "live"])
        .of(&VM)
        .later(),
    Command::own(
        "vm-reset-powerstate",
        "Records machines as halted, whatever their state; only with --force.",
        reset,
    )
    .optional(&["force"])
    .of(&VM),
    Command::on_uuid("vm-destroy", "VM.destroy", "Forgets a machine; its disks stay."),
    Command::own(
        "vm-uninstall",
        "Forgets machines and destroys the disks that only they use, after a question; with \
         --force ends them first and does not ask.",
        uninstall,
    )
    .optional(&["force"])
    .of(&VM)
    .common(),
    Command::new(
        "vm-clone",
        "Clones a machine; the disks share their common data.",
        Run::Naming(&VM_OR_TEMPLATE, "VM.clone"),
    )
    .required(&["new-name-label"])
    .optional(&["new-name-description"])
    .of(&VM_OR_TEMPLATE),
    Command::own("vm-copy", "Copies a machine and its disks.", copy)
        .required(&["new-name-label"])
        .optional(&["new-name-description", "sr-uuid"])
        .of(&VM_OR_TEMPLATE),
    Command::new(
        "vm-snapshot",
        "Takes a snapshot of a machine's disks, under a new name.",
        Run::Naming(&VM, "VM.snapshot"),
    )
    .required(&["new-name-label"])
    .optional(&["new-name-description"])
    .of(&VM),
    Command::new(
        "vm-snapshot-with-quiesce",
        "Takes a snapshot of a machine's disks while its agent keeps the file systems at rest.",
        Run::Naming(&VM, "VM.snapshot_with_quiesce"),
    )
    .required(&["new-name-label"])
    .optional(&["new-name-description"])
    .of(&VM),
    Command::new(
        "vm-checkpoint",
        "Takes a snapshot of a machine's disks and memory.",
        Run::Naming(&VM, "VM.checkpoint"),
    )
    .required(&["new-name-label"])
    .optional(&["new-name-description"])
    .of(&VM)
    .later(),
    Command::own("vm-vcpu-hotplug", "Changes the number of CPUs of running machines.", hotplug)
        .required(&["new-vcpus"])
        .of(&VM)
        .later(),
    Command::own("vm-call-plugin", "Calls a plugin about a machine.", call_plugin)
        .required(&["vm-uuid", "plugin", "fn"])
        .optional(&["args:"])
        .later(),
];

fn start(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let paused = Value::Bool(params.flag("paused")?);
    let force = Value::Bool(params.flag("force")?);
    let on = params.get("on").map(|host| host_named(xe, host)).transpose()?;
    let all = selector::some(xe, params, &VM, &["on", "paused", "force"])?;
    selector::together(xe, all, |xe, one| match &on {
        Some(host) => {
            xe.begin("VM.start_on", &[one.value(), host.clone(), paused.clone(), force.clone()])
        }
        None => xe.begin("VM.start", &[one.value(), paused.clone(), force.clone()]),
    })?;
    Ok(Printed::nothing())
}

fn resume(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let force = Value::Bool(params.flag("force")?);
    let on = params.get("on").map(|host| host_named(xe, host)).transpose()?;
    let all = selector::some(xe, params, &VM, &["on", "force"])?;
    let paused = Value::Bool(false);
    selector::together(xe, all, |xe, one| match &on {
        Some(host) => {
            xe.begin("VM.resume_on", &[one.value(), host.clone(), paused.clone(), force.clone()])
        }
        None => xe.begin("VM.resume", &[one.value(), paused.clone(), force.clone()]),
    })?;
    Ok(Printed::nothing())
}

/// Returns a host by its name or UUID.
fn host_named(xe: &mut XeSession, host: &str) -> Result<Value, XeError> {
    let mut found = xe.by_name("host", host)?;
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(Value::Str(one)),
        (Some(_), false) => Err(XeError::error(format!("Several hosts are called {host}"))),
        (None, _) => xe.by_uuid("host", host),
    }
}

fn shutdown(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    either(xe, params, "VM.clean_shutdown", "VM.hard_shutdown")
}

fn reboot(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    either(xe, params, "VM.clean_reboot", "VM.hard_reboot")
}

/// Runs the second call if `--force` is given, otherwise the first, which waits for guests.
fn either(
    xe: &mut XeSession,
    params: &Params,
    asking: &'static str,
    forcing: &'static str,
) -> Result<Printed, XeError> {
    let force = params.flag("force")?;
    let all = selector::some(xe, params, &VM, &["force"])?;
    for one in all.iter().filter(|one| !force && one.record.text("power_state") == "Running") {
        warn_without_agent(xe, &one.record)?;
    }
    let method = if force { forcing } else { asking };
    selector::together(xe, all, |xe, one| xe.begin(method, &[one.value()]))?;
    Ok(Printed::nothing())
}

/// Says on standard error why the wait may be long: a guest without an agent is asked by its power
/// button alone, which not every guest hears.
fn warn_without_agent(xe: &mut XeSession, vm: &Record) -> Result<(), XeError> {
    if let Some(metrics) = vm.reference("guest_metrics")
        && xe.client().record("VM_guest_metrics", metrics)?.flag("PV_drivers_detected")
    {
        return Ok(());
    }
    let (name, seconds) = (vm.text("name_label"), Deadlines::default().guest.as_secs());
    let line = format!(
        "{name}: no guest agent answers; its power button is pressed (ACPI); waiting {seconds} s at \
         most; --force ends it at once\n"
    );
    // The command goes on without its terminal.
    let _closed = std::io::stderr().write_all(line.as_bytes());
    Ok(())
}

fn migrate(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let host = match (params.get("host"), params.get("host-uuid")) {
        (_, Some(uuid)) => xe.by_uuid("host", uuid)?,
        (Some(name), None) => host_named(xe, name)?,
        (None, None) => return Err(XeError::missing("host")),
    };
    let live = params.flag("live")?.to_string();
    let options = pairs([("live".to_owned(), live)]);
    let all = selector::some(xe, params, &VM, &["host", "host-uuid", "live"])?;
    selector::together(xe, all, |xe, one| {
        xe.begin("VM.pool_migrate", &[one.value(), host.clone(), options.clone()])
    })?;
    Ok(Printed::nothing())
}

fn reset(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    if !params.flag("force")? {
        return Err(XeError::error(
            "a running machine would go unmanaged: --force confirms that none runs",
        ));
    }
    Run::OnSelected(&VM, "VM.power_state_reset").run(xe, params)
}

fn copy(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let name = Value::text(params.required("new-name-label")?);
    let sr = sr_of(xe, params)?;
    let own = ["new-name-label", "new-name-description", "sr-uuid"];
    let all = selector::some(xe, params, &VM_OR_TEMPLATE, &own)?;
    let made = selector::together(xe, all, |xe, one| {
        xe.begin("VM.copy", &[one.value(), name.clone(), sr.clone()])
    })?;
    named(xe, "VM", &made, params.get("new-name-description"))
}

/// Returns the storage repository for copies of disks. The null reference leaves each in its own.
pub(super) fn sr_of(xe: &mut XeSession, params: &Params) -> Result<Value, XeError> {
    match params.get("sr-uuid") {
        Some(uuid) => xe.by_uuid("SR", uuid),
        None => Ok(Value::text(xenapi::NULL_REF)),
    }
}

fn hotplug(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let cpus = Value::Int(params.int("new-vcpus")?);
    let all = selector::some(xe, params, &VM, &["new-vcpus"])?;
    selector::together(xe, all, |xe, one| {
        xe.begin("VM.set_VCPUs_number_live", &[one.value(), cpus.clone()])
    })?;
    Ok(Printed::nothing())
}

fn call_plugin(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let vm = xe.by_uuid("VM", params.required("vm-uuid")?)?;
    let [plugin, function] = [params.required("plugin")?, params.required("fn")?];
    let arguments = pairs(params.map("args"));
    let values = [vm, Value::text(plugin), Value::text(function), arguments];
    Ok(Printed::value(text_of(&xe.run("VM.call_plugin", &values)?)))
}

fn uninstall(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let force = params.flag("force")?;
    let all = selector::some(xe, params, &VM, &["force"])?;
    remove(xe, &all, force)
}

/// Destroys machines, and the disks that only they have. Without `force` asks before, and refuses
/// machines that are not halted.
pub(super) fn remove(
    xe: &mut XeSession,
    all: &[Selected],
    force: bool,
) -> Result<Printed, XeError> {
    let mut disks = Vec::new();
    for one in all {
        disks.push(own_disks(xe, &one.record)?);
    }
    if !force && !confirmed(all, &disks)? {
        return Err(XeError::error("nothing was done"));
    }
    let mut disks = disks.into_iter();
    selector::in_turn(xe, all, |xe, one| {
        let own = disks.next().unwrap_or_default();
        if force && one.record.text("power_state") != "Halted" {
            xe.run("VM.hard_shutdown", &[one.value()])?;
        }
        xe.run("VM.destroy", &[one.value()])?;
        own.into_iter().try_for_each(|(disk, _)| xe.run("VDI.destroy", &[disk]).map(|_| ()))
    })?;
    Ok(Printed::nothing())
}

/// Returns the disks of a machine that no other machine has, with their descriptions. Excludes CDs.
fn own_disks(xe: &mut XeSession, vm: &Record) -> Result<Vec<(Value, String)>, XeError> {
    let mut own = Vec::new();
    for device in vm.texts("VBDs") {
        let device = xe.client().record("VBD", device)?;
        let disk = device.reference("VDI").filter(|_| device.text("type") == "Disk");
        let Some(reference) = disk else { continue };
        let disk = xe.client().record("VDI", reference)?;
        if disk.texts("VBDs").len() == 1 {
            let description = format!("VDI: {} ({})", disk.text("uuid"), disk.text("name_label"));
            own.push((Value::text(reference), description));
        }
    }
    Ok(own)
}

/// Asks the user to confirm the removal.
fn confirmed(all: &[Selected], disks: &[Vec<(Value, String)>]) -> Result<bool, XeError> {
    let failed = |error| XeError::error(format!("cannot ask: {error}"));
    let mut question = String::from("This will be destroyed:\n");
    for (one, disks) in all.iter().zip(disks) {
        let (uuid, name) = (one.record.text("uuid"), one.record.text("name_label"));
        question.push_str(&format!("VM : {uuid} ({name})\n"));
        question.extend(disks.iter().map(|(_, description)| format!("{description}\n")));
    }
    question.push_str("Type 'yes' to continue\n");
    let mut output = std::io::stdout().lock();
    output.write_all(question.as_bytes()).and_then(|()| output.flush()).map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    Ok(answer.trim().eq_ignore_ascii_case("yes"))
}
