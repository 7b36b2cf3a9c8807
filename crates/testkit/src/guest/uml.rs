//! Starts User-Mode Linux.
//!
//! It runs in a process namespace of its own: it is a family of processes, some of which survive the
//! death of the first, but none survives the namespace. A shell is the namespace's first process,
//! because User-Mode Linux ends a panic by aborting, which the first process cannot.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Console, Guest, Kind, Machine, lasting, qemu_only, temporary_dir};
use crate::error::{Error, Result};
use crate::process::{Process, find_tool};

const INIT: &str = include_str!("../../../../guest/uml-init");
const DISK: &str = include_str!("../../../../guest/root/usr/bin/disk");
const REGISTERS: &str = include_str!("../../../../guest/uml-registers.c");
/// What virtio calls a disk.
const VIRTIO_BLOCK: u8 = 2;

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
    if has_more_registers() {
        command.env("LD_PRELOAD", registers(dir.path())?);
    }
    let mut process = lasting::start(move || Process::start(&mut command))?;
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

/// This CPU's state is larger than Linux 6.1 can restore as User-Mode Linux: it has AMX.
fn has_more_registers() -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut flags = info.lines().filter(|line| line.starts_with("flags"));
    flags.next().is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "amx_tile"))
}

/// What is preloaded so that User-Mode Linux runs there.
fn registers(dir: &Path) -> Result<PathBuf> {
    let (source, library) = (dir.join("registers.c"), dir.join("registers.so"));
    fs::write(&source, REGISTERS)
        .map_err(|e| Error::io(format!("cannot write {}", source.display()), e))?;
    let mut compile = Command::new(find_tool("cc", "gcc")?);
    compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
    let output = compile.output().map_err(|e| Error::io("cannot run cc", e))?;
    if output.status.success() {
        return Ok(library);
    }
    Err(Error::Process {
        program: "cc".to_owned(),
        what: format!("ended with {}", output.status),
        stderr: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
    })
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
        ["con=null", "con0=fd:0,fd:1", "con1=null", "quiet", "panic=-1"].map(str::to_owned),
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

/// Kills the first process of the namespace, hence all. False if there is none any more.
///
/// The kernel must do it before the parent dies: only the parent reaps it.
pub(super) fn kill(unshare: &Process) -> bool {
    let id = unshare.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.unwrap_or_default();
    let ids = children.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?));
    ids.map(|id| kill_process(id, Signal::KILL)).filter(std::result::Result::is_ok).count() > 0
}
