//! Starts QEMU with the test guest.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Artifacts, Console, Guest, Image, KERNEL_ARGS, Kind, Machine, Monitor, VhostDisk};
use super::{accept, artifacts, spawner, temporary_dir};
use crate::error::{Error, Result};
use crate::process::{Process, find_tool};

/// Serial of the disk with the script.
pub(crate) const SCRIPT_SERIAL: &str = "ringway-script";
/// Bytes of a sector. Disks are whole sectors; NUL bytes fill the last one.
const SECTOR_BYTES: usize = 512;

/// Starts a guest. Without a script it runs a shell.
pub(super) fn start(machine: &Machine, script: Option<&str>) -> Result<Guest> {
    let dir = temporary_dir()?;
    let console = listen(&dir.path().join("console.sock"))?;
    let monitor = listen(&dir.path().join("qmp.sock"))?;
    let mut images = machine.images.clone();
    if let Some(script) = script {
        let path = write_script(dir.path(), script)?;
        images.push(Image { path, serial: SCRIPT_SERIAL.to_owned(), read_only: true });
    }
    // The kernel kills QEMU when the test process dies.
    let mut command = Command::new(find_tool("setpriv", "util-linux")?);
    command.args(["--pdeathsig", "KILL", "--"]);
    command.arg(find_tool("qemu-system-x86_64", "qemu-system-x86")?);
    command.args(arguments(machine, &images, dir.path(), &artifacts()?, script.is_some()));
    command.stdout(Stdio::null());
    let mut process = spawner::start(move || Process::start(&mut command))?;
    let stream = accept(&console, &mut process)?;
    let input = stream.try_clone().map_err(|e| Error::io("cannot share the console", e))?;
    Ok(Guest {
        kind: Kind::Qemu,
        process,
        console: Console::new(stream, Some(input)),
        monitor: Some(Monitor::Waiting(monitor)),
        dir,
    })
}

/// Listens on a socket to which QEMU connects. So the test need not guess when QEMU is ready.
fn listen(path: &Path) -> Result<UnixListener> {
    UnixListener::bind(path)
        .map_err(|e| Error::io(format!("cannot listen on {}", path.display()), e))
}

fn write_script(dir: &Path, script: &str) -> Result<PathBuf> {
    let path = dir.join("script.raw");
    fs::write(&path, whole_sectors(script))
        .map_err(|e| Error::io("cannot write the script's disk", e))?;
    Ok(path)
}

/// Returns a script as the content of a disk.
pub(crate) fn whole_sectors(script: &str) -> Vec<u8> {
    let mut bytes = script.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(SECTOR_BYTES).max(SECTOR_BYTES), 0);
    bytes
}

fn arguments(
    machine: &Machine,
    images: &[Image],
    dir: &Path,
    boot: &Artifacts,
    has_script: bool,
) -> Vec<String> {
    let mut append = KERNEL_ARGS.to_owned();
    if has_script {
        append += &format!(" ringway.script={SCRIPT_SERIAL}");
    }
    if !machine.append.is_empty() {
        append = format!("{append} {}", machine.append);
    }
    let socket = |name: &str| format!("socket,id={name},path={}", value(&dir.join(name)));
    let fixed = [
        ["-machine", "q35,memory-backend=memory"],
        // Before version 8.1, CPUs that translate concurrently may leave a kernel for ever at a
        // breakpoint that it has removed.
        ["-accel", "tcg,thread=single"],
        ["-m", &format!("{}M", machine.memory_mib)],
        ["-smp", &machine.cpus.to_string()],
        // vhost-user backends map the guest's memory, so it must be a file and shared.
        [
            "-object",
            &format!("memory-backend-memfd,id=memory,size={}M,share=on", machine.memory_mib),
        ],
        ["-kernel", &boot.kernel.display().to_string()],
        ["-initrd", &boot.initramfs.display().to_string()],
        ["-append", &append],
        ["-chardev", &(socket("console") + ".sock")],
        ["-serial", "chardev:console"],
        ["-chardev", &(socket("qmp") + ".sock")],
        ["-mon", "chardev=qmp,mode=control"],
        ["-display", "none"],
    ];
    let mut args: Vec<String> = fixed.iter().flatten().map(|&arg| arg.to_owned()).collect();
    args.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
    args.extend(machine.disks.iter().enumerate().flat_map(|(at, disk)| vhost_disk(at, disk)));
    args.extend(images.iter().enumerate().flat_map(|(at, image)| plain_disk(at, image)));
    args.extend(machine.args.iter().cloned());
    args
}

fn vhost_disk(at: usize, disk: &VhostDisk) -> [String; 4] {
    let device = format!("vhost-user-blk-pci,chardev=vhost{at},num-queues={}", disk.queues);
    // QEMU reconnects to a lost backend every second, the shortest interval that it accepts.
    let chardev = format!("socket,id=vhost{at},path={},reconnect=1", value(&disk.socket));
    ["-chardev".to_owned(), chardev, "-device".to_owned(), device]
}

fn plain_disk(at: usize, image: &Image) -> [String; 4] {
    let read_only = if image.read_only { "on" } else { "off" };
    let node = format!(
        "driver=raw,node-name=image{at},read-only={read_only},file.driver=file,file.filename={}",
        value(&image.path)
    );
    let device = format!("virtio-blk-pci,drive=image{at},serial={}", image.serial);
    ["-blockdev".to_owned(), node, "-device".to_owned(), device]
}

/// Escapes a path as a value of QEMU's options, where a comma is written twice.
fn value(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_whole_sectors() {
        let dir = tempfile::tempdir().unwrap();
        for (script, sectors) in [("", 1), ("x", 1), (&"y".repeat(512), 1), (&"z".repeat(513), 2)] {
            let path = write_script(dir.path(), script).unwrap();
            let bytes = fs::read(path).unwrap();
            assert_eq!(bytes.len(), sectors * SECTOR_BYTES);
            assert_eq!(bytes.split(|b| *b == 0).next().unwrap(), script.as_bytes());
        }
    }

    #[test]
    fn commas_in_paths_are_doubled() {
        let disk = VhostDisk { socket: "/a,b".into(), queues: 2 };
        let args = vhost_disk(0, &disk);
        assert_eq!(args[1], "socket,id=vhost0,path=/a,,b,reconnect=1");
        assert!(args[3].ends_with("num-queues=2"));
    }
}
