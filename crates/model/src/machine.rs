//! Specification of a machine that `ringway run` starts once.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::disk_arg::DiskArg;
use crate::spec::{SpecError, refuse};
use crate::topology::MAX_DISKS;

/// Minimum guest memory in bytes: a Linux kernel with an initramfs does not start with less.
pub const MIN_MEMORY_BYTES: u64 = 32 << 20;
/// Maximum guest memory in bytes: more than any host with one QEMU per machine has.
pub const MAX_MEMORY_BYTES: u64 = 16 << 40;
/// Maximum number of virtual CPUs: q35's limit without an interrupt remapper.
pub const MAX_VCPUS: u16 = 255;

/// Accelerator that executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accel {
    /// The host's CPU, through /dev/kvm.
    Kvm,
    /// QEMU's translator: slow, but works everywhere.
    Tcg,
}

impl Accel {
    /// Returns the name for QEMU's `-accel`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// Requested accelerator: a fixed one, or the better one that works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccelChoice {
    /// KVM if a short boot under it succeeds, otherwise TCG.
    #[default]
    Auto,
    /// A fixed accelerator.
    Fixed(Accel),
}

impl FromStr for AccelChoice {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "auto" => Ok(Self::Auto),
            "kvm" => Ok(Self::Fixed(Accel::Kvm)),
            "tcg" => Ok(Self::Fixed(Accel::Tcg)),
            _ => Err(SpecError {
                field: "accel",
                problem: format!("{text:?} is not auto, kvm or tcg"),
            }),
        }
    }
}

/// A machine: a kernel, memory, CPUs, and disks in order of their position.
#[derive(Clone, Debug)]
pub struct MachineSpec {
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Kernel command line.
    pub append: String,
    /// Disks; the position determines the PCI address.
    pub disks: Vec<DiskArg>,
    /// Guest memory in bytes.
    pub memory_bytes: u64,
    /// Number of virtual CPUs.
    pub vcpus: u16,
    /// Requested accelerator.
    pub accel: AccelChoice,
    /// Time after the start at which the machine is stopped.
    pub timeout: Option<Duration>,
}

impl MachineSpec {
    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), SpecError> {
        let refuse = |field, problem| Err(SpecError { field, problem });
        validate_memory(self.memory_bytes)?;
        validate_vcpus(self.vcpus)?;
        if self.disks.len() > MAX_DISKS {
            let problem = format!("{} disks, a machine has {MAX_DISKS}", self.disks.len());
            return refuse("disk", problem);
        }
        if self.append.contains('\0') {
            return refuse("append", "holds a NUL byte".into());
        }
        Ok(())
    }
}

/// Checks the size of a guest's memory.
///
/// # Errors
/// Field `memory`.
pub fn validate_memory(bytes: u64) -> Result<(), SpecError> {
    if (MIN_MEMORY_BYTES..=MAX_MEMORY_BYTES).contains(&bytes) && bytes.is_multiple_of(1 << 20) {
        return Ok(());
    }
    let (least, most) = (MIN_MEMORY_BYTES >> 20, MAX_MEMORY_BYTES >> 40);
    refuse("memory", format!("{bytes} bytes is not whole MiB in {least} MiB to {most} TiB"))
}

/// Checks a number of virtual CPUs.
///
/// # Errors
/// Field `vcpus`.
pub fn validate_vcpus(vcpus: u16) -> Result<(), SpecError> {
    if (1..=MAX_VCPUS).contains(&vcpus) {
        return Ok(());
    }
    refuse("vcpus", format!("{vcpus} is not in 1 to {MAX_VCPUS}"))
}

/// Parses a duration: whole seconds, or a number with `ms`, `s`, `m` or `h`.
///
/// # Errors
/// Field `timeout`: not a number, an unknown unit, zero, or more than a year.
pub fn parse_timeout(text: &str) -> Result<Duration, SpecError> {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let refuse = |why: &str| {
        Err(SpecError {
            field: "timeout",
            problem: format!("{text:?} {why}; write for example 60s or 5m"),
        })
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let Ok(number) = number.parse::<u64>() else { return refuse("is not a duration") };
    let millis = match unit {
        "ms" => Some(number),
        "" | "s" => number.checked_mul(1_000),
        "m" => number.checked_mul(60_000),
        "h" => number.checked_mul(3_600_000),
        _ => return refuse("has an unknown unit"),
    };
    match millis.map(Duration::from_millis) {
        Some(duration) if !duration.is_zero() && duration <= YEAR => Ok(duration),
        _ => refuse("is zero or more than a year"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> MachineSpec {
        MachineSpec {
            kernel: "/k".into(),
            initrd: None,
            append: String::new(),
            disks: vec!["null:1M".parse().unwrap()],
            memory_bytes: 512 << 20,
            vcpus: 2,
            accel: AccelChoice::Auto,
            timeout: None,
        }
    }

    #[test]
    fn each_bad_field_is_named() {
        type Break = fn(&mut MachineSpec);
        let cases: [(&str, Break); 6] = [
            ("memory", |m| m.memory_bytes = 1 << 20),
            ("memory", |m| m.memory_bytes = (512 << 20) + 1),
            ("vcpus", |m| m.vcpus = 0),
            ("vcpus", |m| m.vcpus = 256),
            ("disk", |m| m.disks = vec![m.disks[0].clone(); MAX_DISKS + 1]),
            ("append", |m| m.append = "a\0b".into()),
        ];
        for (field, break_it) in cases {
            let mut broken = machine();
            break_it(&mut broken);
            assert_eq!(broken.validate().unwrap_err().field, field);
        }
        assert_eq!(machine().validate(), Ok(()));
    }

    #[test]
    fn durations() {
        assert_eq!(parse_timeout("60"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_timeout("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_timeout("2h"), Ok(Duration::from_secs(7200)));
        for bad in ["", "s", "0", "5d", "-1s", "1.5s", "99999999999999999999h", "9000h"] {
            assert_eq!(parse_timeout(bad).unwrap_err().field, "timeout", "{bad}");
        }
    }

    #[test]
    fn accelerators() {
        assert_eq!("auto".parse(), Ok(AccelChoice::Auto));
        assert_eq!("tcg".parse(), Ok(AccelChoice::Fixed(Accel::Tcg)));
        assert_eq!("hvf".parse::<AccelChoice>().unwrap_err().field, "accel");
    }
}
