//! `ringway confined PARENT PROGRAM...`: executes a program that reads an untrusted file, without any
//! privilege: it may open its own files and libraries, and the files at its standard input and output.
//!
//! The program keeps its user, because a file of mode 0600 must be opened again. It has no capability,
//! so root's rights end at the files that Landlock allows.

use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath,
    Ruleset, RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetStatus,
    path_beneath_rules,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// Folders with programs and libraries.
const LIBRARIES: [&str; 6] = ["/usr", "/lib", "/lib64", "/bin", "/nix/store", "/etc/ld.so.cache"];
/// Most memory of the program, in bytes.
const MEMORY_BYTES: u64 = 4 << 30;

/// Options of `ringway confined`.
#[derive(Debug, Args)]
pub(crate) struct Confined {
    /// Process id that the parent must have
    parent: u32,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Confined {
    pub(super) fn execute(self) -> anyhow::Result<ExitCode> {
        let program = self.command.first().cloned().unwrap_or_default();
        confine(&program).context("cannot confine a program that reads an untrusted file")?;
        let error = toolstack::process_group::become_bound(self.parent, &self.command);
        Err(error).with_context(|| format!("cannot start {}", program.display()))
    }
}

/// Gives up the rights of this thread, and of the program that it executes.
fn confine(program: &OsStr) -> anyhow::Result<()> {
    for (resource, most) in [(Resource::As, MEMORY_BYTES), (Resource::Core, 0)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // Without this, a program that root executes has all capabilities again.
    set_no_new_privs(true)?;
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V5))?
        .handle_access(AccessNet::from_all(ABI::V5))?
        .create()?
        .add_rules(path_beneath_rules(LIBRARIES, AccessFs::from_read(ABI::V1)))?
        .add_rules(path_beneath_rules([program], AccessFs::from_read(ABI::V1)))?;
    let input = AccessFs::ReadFile.into();
    let rules = allow(rules, rustix::stdio::stdin(), input)?;
    let output = AccessFs::from_file(ABI::V5) & !AccessFs::Execute;
    let rules = allow(rules, rustix::stdio::stdout(), output)?;
    let status = rules.restrict_self()?;
    anyhow::ensure!(
        status.ruleset != RulesetStatus::NotEnforced,
        "this kernel has no Landlock (Linux 5.13, boot parameter lsm=landlock,...)"
    );
    Ok(())
}

/// Allows access to an open file. Pipes and terminals need no rule.
fn allow(
    rules: RulesetCreated,
    file: BorrowedFd<'_>,
    access: BitFlags<AccessFs>,
) -> anyhow::Result<RulesetCreated> {
    let is_file = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode).is_file();
    if !is_file {
        return Ok(rules);
    }
    Ok(rules.add_rule(PathBeneath::new(file, access))?)
}
