//! Starts User-Mode Linux.
//!
//! It runs in its own process namespace. User-Mode Linux is a family of processes. Some of them
//! survive the death of the first, but none survives the namespace. A shell is the namespace's
//! first process: User-Mode Linux ends a panic by aborting, which the first process of a namespace
//! cannot.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Console, Guest, Kind, Machine, preload, qemu_only, spawner, temporary_dir};
use crate::error::{Error, Result};
use crate::process::{Process, find_tool};

const INIT: &str = include_str!("../../../../guest/uml-init");
const DISK: &str = include_str!("../../../../guest/root/usr/bin/disk");
/// Virtio device type of a disk.
const VIRTIO_BLOCK: u8 = 2;
/// Kernel argument that skips the choice of a RAID 6 algorithm. It measures five of them for 0.85 s
/// of CPU time, more than the rest of the kernel's boot, and no test uses RAID.
const NO_RAID6: &str = "initcall_blacklist=raid6_select_algo";

pub(super) fn start(machine: &Machine, script: &str) -> Result<Guest> {
    if !machine.images.is_empty() {
        return Err(qemu_only("a plain disk"));
    }
    let dir = temporary_dir()?;
    for (name, text) in [("init", INIT), ("disk", DISK), ("script", script)] {
        write_program(&dir.path().join(name), text)?;
    }
    find_tool("busybox", "busybox-static")?;
    let mut command = Command::new(find_tool("setpriv", "util-linux")?);
    command.args(["--pdeathsig", "KILL", "--"]).arg(find_tool("unshare", "util-linux")?);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--pid", "--fork", "--kill-child", "--"]);
    if let Some(cpu) = machine.cpu {
        command.arg(find_tool("taskset", "util-linux")?).arg("--cpu-list").arg(cpu.to_string());
    }
    command
        .args(["sh", "-c", r#""$@"; exit $?"#, "uml"])
        .arg(find_tool("linux.uml", "user-mode-linux")?);
    command.args(arguments(machine, dir.path())).stdout(Stdio::piped());
    command.env("LD_PRELOAD", preload::build(dir.path())?);
    let mut process = spawner::start(move || Process::start(&mut command))?;
    let Some(output) = process.child().stdout.take() else {
        return Err(process.error("was started without a pipe for its console"));
    };
    let console = Console::new(output, None);
    Ok(Guest { kind: Kind::Uml, process, console, monitor: None, dir })
}

fn write_program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(|e| Error::io(format!("cannot write {}", path.display()), e))
}

fn arguments(machine: &Machine, dir: &Path) -> Vec<String> {
    let dir = dir.display();
    let mut args = vec![
        format!("mem={}M", machine.memory_mib),
        "rootfstype=hostfs".to_owned(),
        "rootflags=/".to_owned(),
        "ro".to_owned(),
        format!("init={dir}/init"),
        format!("ringway.dir={dir}"),
        format!("uml_dir={dir}"),
        "umid=uml".to_owned(),
    ];
    args.extend(
        ["con=null", "con0=fd:0,fd:1", "con1=null", "quiet", "panic=-1", NO_RAID6]
            .map(str::to_owned),
    );
    args.extend(
        machine
            .disks
            .iter()
            .map(|disk| format!("virtio_uml.device={}:{VIRTIO_BLOCK}", disk.socket.display())),
    );
    args.extend(machine.append.split_whitespace().map(str::to_owned));
    args
}

/// Kills the first process of the namespace, and so all of them. Returns false if it has ended.
///
/// Call this before the parent dies: only the parent reaps the process.
pub(super) fn kill(unshare: &Process) -> bool {
    let id = unshare.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.unwrap_or_default();
    let ids = children.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
    ids.map(|id| kill_process(id, Signal::KILL)).filter(std::result::Result::is_ok).count() > 0
}
