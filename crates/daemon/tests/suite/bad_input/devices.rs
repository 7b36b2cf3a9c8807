//! Invalid device numbers, kernels and memory sizes.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use tempfile::TempDir;
use xenapi::{NULL_REF, Value};

use super::{ANY, World, map, none, row};

/// Memory of the simulated host in bytes. Each VM needs some in addition to its own.
const HOST_BYTES: i64 = 16 << 40;

fn disk(world: &mut World) -> String {
    let sr = Value::text(world.first("SR"));
    let disk = map([
        ("name_label", Value::text("d")),
        ("SR", sr),
        ("virtual_size", Value::Int(1 << 20)),
        ("type", Value::text("user")),
        ("sharable", Value::Bool(false)),
        ("read_only", Value::Bool(false)),
        ("other_config", none()),
    ]);
    world.made("VDI.create", &[disk])
}

fn slot(vm: &str, vdi: &str, device: &str, kind: &str, mode: &str) -> Value {
    map([
        ("VM", Value::text(vm)),
        ("VDI", Value::text(vdi)),
        ("userdevice", Value::text(device)),
        ("bootable", Value::Bool(false)),
        ("mode", Value::text(mode)),
        ("type", Value::text(kind)),
        ("empty", Value::Bool(false)),
        ("other_config", none()),
        ("qos_algorithm_type", Value::text("")),
        ("qos_algorithm_params", none()),
    ])
}

fn card(vm: &str, network: &str, device: &str, mac: &str) -> Value {
    map([
        ("VM", Value::text(vm)),
        ("network", Value::text(network)),
        ("device", Value::text(device)),
        ("MAC", Value::text(mac)),
        ("MTU", Value::Int(1500)),
        ("other_config", none()),
        ("qos_algorithm_type", Value::text("")),
        ("qos_algorithm_params", none()),
    ])
}

#[test]
fn devices_that_are_taken_or_not_there_are_told_by_their_numbers() {
    let mut world = World::new();
    let (vm, vdi, network) = (world.machine("m"), disk(&mut world), world.first("network"));
    let slot = |device: &str| slot(&vm, &vdi, device, "Disk", "RW");
    let card = |device: &str, mac: &str| card(&vm, &network, device, mac);
    let vbd = world.made("VBD.create", &[slot("0")]);
    world.made("VIF.create", &[card("0", "")]);
    let no = |device: &'static str| ["INVALID_DEVICE", device];
    world.refuses(&[
        row("VBD.create", [slot("0")], ["DEVICE_ALREADY_EXISTS", "0"]),
        row("VBD.create", [slot("xvda")], ["DEVICE_ALREADY_EXISTS", "0"]),
        row("VBD.create", [slot("255")], no("255")),
        row("VBD.create", [slot("-1")], no("-1")),
        row("VBD.create", [slot("x")], no("x")),
        row("VIF.create", [card("0", "")], ["DEVICE_ALREADY_EXISTS", "0"]),
        row("VIF.create", [card("7", "")], no("7")),
        row("VIF.create", [card("1", "01:00:00:00:00:00")], ["MAC_INVALID", "01:00:00:00:00:00"]),
        row("VIF.create", [card("1", "nonsense")], ["MAC_INVALID", "nonsense"]),
        row("VBD.set_userdevice", [Value::text(vbd.as_str()), Value::text("300")], no("300")),
    ]);
    let cd = super::devices::slot(&vm, &vdi, "3", "CD", "RW");
    world.refuses(&[row("VBD.create", [cd], ["VBD_CDS_MUST_BE_READONLY"])]);
    let it = || Value::text(vbd.as_str());
    let halted = ["VM_BAD_POWER_STATE", &vm, "running", "halted"];
    world.refuses(&[
        row("VBD.plug", [it()], halted),
        row("VBD.unplug", [it()], halted),
        row("VBD.eject", [it()], ["VBD_NOT_REMOVABLE_MEDIA", &vbd]),
    ]);
    let start = [Value::text(vm.as_str()), Value::Bool(false), Value::Bool(false)];
    world.call("VM.start", &start);
    world.refuses(&[
        row("VBD.plug", [it()], ["DEVICE_ALREADY_ATTACHED", &vbd]),
        row("VBD.destroy", [it()], ["OPERATION_NOT_ALLOWED", ANY]),
        row("VDI.destroy", [Value::text(vdi.as_str())], ["VDI_IN_USE", &vdi, "destroy"]),
        row(
            "VM.destroy",
            [Value::text(vm.as_str())],
            ["VM_BAD_POWER_STATE", &vm, "halted, suspended", "running"],
        ),
    ]);
}

#[test]
fn a_kernel_that_cannot_be_booted_is_never_opened() {
    let dir = TempDir::new().unwrap();
    let boot = dir.path().join("boot");
    fs::create_dir_all(boot.join("directory")).unwrap();
    fs::write(boot.join("kernel"), "k").unwrap();
    fs::write(dir.path().join("outside"), "k").unwrap();
    symlink(dir.path().join("outside"), boot.join("link")).unwrap();
    // An open of the pipe would block for ever.
    assert!(Command::new("mkfifo").arg(boot.join("pipe")).status().unwrap().success());
    let config = dir.path().join("ringwayd.toml");
    fs::write(&config, format!("[boot]\ndirectories = [{:?}]\n", boot.to_str().unwrap())).unwrap();
    let mut world = World::with(&["--config", config.to_str().unwrap()]);
    let template = world.named("VM", "Ringway test guest");
    let vm = world.made("VM.clone", &[Value::text(template), Value::text("m")]);
    let it = || Value::text(vm.as_str());
    world.call("VM.provision", &[it()]);
    let start = || [it(), Value::Bool(false), Value::Bool(false)];
    let mut refused = |field: &str, path: &str| {
        world.call(&format!("VM.set_PV_{field}"), &[it(), Value::text(path)]);
        for method in ["VM.start", "Async.VM.start"] {
            world.refuses(&[row(method, start(), ["BOOTLOADER_FAILED", &vm, ANY])]);
        }
        let why = world.refused("VM.start", &start()).pop().unwrap();
        assert!(why.contains(path) || path.is_empty(), "{path}: {why}");
    };
    let at = |name: &str| boot.join(name).to_str().unwrap().to_owned();
    let outside = dir.path().join("outside").to_str().unwrap().to_owned();
    for path in [
        "",
        "kernel",
        &outside,
        &at("none"),
        &at("../outside"),
        &at("link"),
        &at("directory"),
        &at("pipe"),
    ] {
        refused("kernel", path);
    }
    world.call("VM.set_PV_kernel", &[it(), Value::text(at("kernel"))]);
    let mut refused = |path: &str| {
        world.call("VM.set_PV_ramdisk", &[it(), Value::text(path)]);
        world.refuses(&[row("VM.start", start(), ["BOOTLOADER_FAILED", &vm, ANY])]);
    };
    refused(&at("none"));
    refused(&outside);
    world.call("VM.set_PV_ramdisk", &[it(), Value::text("")]);
    world.call("VM.start", &start());
}

#[test]
fn more_memory_than_the_host_has_is_refused() {
    let mut world = World::new();
    let vm = world.machine("m");
    let it = || Value::text(vm.as_str());
    world.call("VM.set_memory", &[it(), Value::Int(HOST_BYTES)]);
    let start = [it(), Value::Bool(false), Value::Bool(false)];
    let error = world.refused("VM.start", &start);
    assert_eq!(error[0], "HOST_NOT_ENOUGH_FREE_MEMORY");
    let number = |at: usize| error[at].parse::<u64>().unwrap();
    assert!(number(1) > number(2), "{error:?}");
    let record = world.root.record("VM", &vm).unwrap();
    assert_eq!((record.text("power_state"), record.text("resident_on")), ("Halted", NULL_REF));
    world.call("VM.set_memory", &[it(), Value::Int(1 << 30)]);
    world.call("VM.start", &start);
}
