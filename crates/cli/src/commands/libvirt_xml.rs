//! `ringway libvirt-xml DISK...`: prints the definitions that connect a VM to a disk.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use model::machine::{Accel, AccelChoice};
use model::recipe::{Guest, Kernel, RecipeDiskArg, RecipeDisks, flags, libvirt};
use model::spec::{SpecError, parse_size};
use toolstack::accel::{self, ProbeCache};
use toolstack::binaries::{self, QEMU};
use toolstack::recipe_disks::{only_for_root, resolve};
use toolstack::ringway_io::USUAL_CONTROL;

/// Device file of KVM.
const KVM: &str = "/dev/kvm";

/// Options of `ringway libvirt-xml`.
#[derive(Debug, Args)]
#[command(
    after_help = "DISK is the path of a socket, which holds a slash, or the id of a disk of a \
running ringway-io, with the options queues=N, target=vdb and boot=N after commas; double a comma \
in a path. By default a disk of ringway-io gets all queues that it offers, a socket gets one.

Serial, block size, cache mode, limits: libvirt refuses them on such a disk. Set them on the \
process that serves the disk (docs/why-not-qemu-block.md has the whole list).

Examples:
  ringway libvirt-xml /run/vm1/d1.sock,queues=2
  ringway libvirt-xml --attach d2,target=vdb >d2.xml && virsh attach-device vm1 d2.xml --live
  ringway libvirt-xml --domain vm1 --memory 4G --vcpus 4 d1,boot=1 d2 | virsh define /dev/stdin
  ringway libvirt-xml --qemu --memory 2G d1

Exit code 1, with the reason on standard error, if a disk is not available, 2 if no machine can \
use these disks together."
)]
pub(crate) struct LibvirtXml {
    /// Disk; may be repeated (see below)
    #[arg(required = true, value_name = "DISK")]
    disks: Vec<RecipeDiskArg>,
    /// Control socket of the ringway-io, for disks given by id
    #[arg(long, value_name = "SOCKET", env = "RINGWAY_CONTROL", default_value = USUAL_CONTROL)]
    control: PathBuf,
    /// Print only one `<disk>` element, for virsh attach-device
    #[arg(long, conflicts_with_all = ["domain", "qemu", "cloud_hypervisor"])]
    attach: bool,
    /// Print a complete machine of this name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["qemu", "cloud_hypervisor"])]
    domain: Option<String>,
    /// Print QEMU arguments
    #[arg(long, conflicts_with = "cloud_hypervisor")]
    qemu: bool,
    /// Print Cloud Hypervisor arguments
    #[arg(long)]
    cloud_hypervisor: bool,
    /// Do not check whether the sockets exist
    #[arg(long)]
    no_check: bool,
    /// Memory of the machine
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse_size)]
    memory: u64,
    /// Number of virtual CPUs of the machine
    #[arg(long, value_name = "N", default_value_t = 2, requires = "domain")]
    vcpus: u16,
    /// Accelerator of the machine; auto takes kvm unless this user cannot open /dev/kvm, or a trial
    /// boot of `ringway doctor` failed
    #[arg(long, value_name = "auto|kvm|tcg", default_value = "auto", requires = "domain")]
    accel: AccelChoice,
    /// Kernel to boot instead of the disks
    #[arg(long, value_name = "FILE", requires = "domain")]
    kernel: Option<PathBuf>,
    /// Initial RAM disk
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// Kernel command line
    #[arg(long, value_name = "TEXT", default_value = "console=ttyS0", requires = "kernel")]
    #[arg(allow_hyphen_values = true)]
    append: String,
}

impl LibvirtXml {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let recipe_disks = resolve(&self.disks, &self.control, !self.no_check).await?;
        let accel = if self.domain.is_some() { accelerator(self.accel).await } else { Accel::Kvm };
        let text = self.text(&recipe_disks, accel)?;
        std::io::stdout().lock().write_all(text.as_bytes())?;
        if !self.qemu && !self.cloud_hypervisor {
            for socket in only_for_root(&recipe_disks) {
                logging::write_line(&format!(
                    "ringway: only root may connect to {socket}, and libvirt's QEMU usually runs \
                     as another user: serve it with --socket-group kvm --socket-mode 660"
                ));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self, recipe_disks: &RecipeDisks, accel: Accel) -> anyhow::Result<String> {
        model::machine::validate_memory(self.memory)?;
        if self.qemu {
            return Ok(flags::for_shell(&flags::qemu(recipe_disks, self.memory)));
        }
        if self.cloud_hypervisor {
            return Ok(flags::for_shell(&flags::cloud_hypervisor(recipe_disks, self.memory)));
        }
        if self.attach {
            let [recipe_disk] = recipe_disks.all() else {
                let problem = "virsh attach-device takes one disk at a time; give --attach one";
                return Err(SpecError { field: "--attach", problem: problem.into() }.into());
            };
            return Ok(libvirt::device(recipe_disk)?);
        }
        match &self.domain {
            None => Ok(libvirt::snippet(recipe_disks)?),
            Some(name) => Ok(libvirt::domain(&self.guest(name, accel)?, recipe_disks)?),
        }
    }

    fn guest(&self, name: &str, accel: Accel) -> anyhow::Result<Guest> {
        let kernel = match &self.kernel {
            None => None,
            Some(image) => Some(Kernel {
                image: readable("kernel", image)?,
                initrd: self.initrd.as_deref().map(|path| readable("initrd", path)).transpose()?,
                append: self.append.clone(),
            }),
        };
        Ok(Guest { name: name.into(), memory_bytes: self.memory, vcpus: self.vcpus, accel, kernel })
    }
}

/// Returns the absolute path of a file that another program will open.
fn readable(what: &str, path: &Path) -> anyhow::Result<String> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    ensure!(absolute.is_file(), "there is no {what} {}", path.display());
    let text = absolute.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.to_owned())
}

/// Returns the accelerator, and prints why it is not KVM. Boots no guest: without an earlier trial
/// boot, a device that opens is taken for KVM that works.
async fn accelerator(choice: AccelChoice) -> Accel {
    let device = Path::new(KVM);
    let why = match choice {
        AccelChoice::Fixed(accel) => return accel,
        AccelChoice::Auto => match binaries::in_path(QEMU) {
            // Libvirt may use a QEMU that is not in this user's PATH.
            None => accel::openable(device).err(),
            Some(qemu) => {
                let cache = ProbeCache::of_user();
                let known = accel::decide_without_boot(device, &qemu, &cache).await;
                let known = known.ok().flatten();
                known.filter(|decision| decision.accel == Accel::Tcg).map(|decision| decision.why)
            }
        },
    };
    let Some(why) = why else { return Accel::Kvm };
    logging::write_line(&format!(
        "ringway: the machine will run without KVM, which is slow: {why}. If KVM works for \
         libvirt's QEMU, give --accel kvm"
    ));
    Accel::Tcg
}
