//! DPDK's testpmd, controlled by commands at its prompt. Its virtio-user NICs are an independent
//! front-end.
//!
//! One thread serves all NICs of a testpmd. On a host with few CPUs, a sender and a receiver that
//! poll on a CPU each would alternate and lose frames.

mod counts;
mod huge_pages;
mod nics;

use std::io::Write;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cpus;
use crate::error::Result;
use crate::guest::console::{Console, Seen};
use crate::process::{PROCESS_DEADLINE, Process, find_tool};

pub use counts::Counts;
pub use huge_pages::{
    Reserved as ReservedHugePages, allow as allow_huge_pages, reserve as reserve_huge_pages,
};
pub use nics::{Memory, Nics};

/// Prompt for the next command.
const PROMPT: &str = "testpmd> ";
/// Deadline for the start: testpmd touches all of its memory.
const SET_UP: Duration = Duration::from_secs(60);

/// Output of a testpmd that finds too few huge pages. If the host has free ones, it counts these
/// alone, and not those that the kernel would provide. Other programs leave a few for moments.
const NO_MEMORY: &str = "Not enough memory available";
/// Pause before the next start without memory. No event tells when others release pages.
const MEMORY_PAUSE: Duration = Duration::from_millis(100);

/// A running testpmd.
#[derive(Debug)]
pub struct Testpmd {
    process: Process,
    console: Console,
    input: ChildStdin,
}

impl Testpmd {
    /// Starts a testpmd with these arguments for its environment and for itself. It runs on one CPU
    /// of the host, or on all that this process may use. Returns when it accepts commands. Waits for
    /// memory if other programs use it.
    ///
    /// # Errors
    /// [`crate::Error::Missing`] if it is not installed, [`crate::Error::Process`] with its output
    /// if it ends or does not become ready.
    pub fn start(cpu: Option<usize>, environment: &[String], own: &[String]) -> Result<Self> {
        let until = Instant::now() + SET_UP;
        loop {
            match Self::start_once(cpu, environment, own) {
                Err(error) if error.to_string().contains(NO_MEMORY) && Instant::now() < until => {
                    std::thread::sleep(MEMORY_PAUSE);
                }
                started => return started,
            }
        }
    }

    fn start_once(cpu: Option<usize>, environment: &[String], own: &[String]) -> Result<Self> {
        let mut command = Command::new(find_tool("stdbuf", "coreutils")?);
        // Without line buffering, its output would follow the next prompt.
        command.arg("--output=L").arg(find_tool("dpdk-testpmd", "dpdk-dev")?);
        let mine = cpu.map_or_else(cpus::mine, |cpu| Ok(vec![cpu]))?;
        let mine = mine.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        command.arg("--lcores").arg(format!("0@({mine}),1@({mine})"));
        command.args(["--no-pci", "--no-telemetry"]).args(environment);
        command.args(["--", "--interactive", "--nb-cores=1", "--disable-link-check"]).args(own);
        command.stdout(Stdio::piped());
        let mut process = Process::start_typed(&mut command)?;
        let child = process.child();
        let (Some(output), Some(input)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(process.error("was started without pipes"));
        };
        let mut testpmd = Self { process, console: Console::new(output, None), input };
        testpmd.wait_for_prompt("set up", SET_UP)?;
        Ok(testpmd)
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Runs one command and returns its output.
    ///
    /// # Errors
    /// [`crate::Error::Process`] if testpmd has ended, or the command does not end.
    pub fn command(&mut self, words: &str) -> Result<String> {
        let before = self.console.text().len();
        if let Err(error) = writeln!(self.input, "{words}") {
            return Err(self.process.error(format!("takes no commands: {error}")));
        }
        self.wait_for_prompt(words, PROCESS_DEADLINE)?;
        Ok(self.console.text().get(before..).unwrap_or_default().to_owned())
    }

    /// Returns the counters of one of its ports.
    ///
    /// # Errors
    /// As [`Testpmd::command`], and [`crate::Error::Reply`] if there is no such port.
    pub fn counts(&mut self, port: usize) -> Result<Counts> {
        let output = self.command(&format!("show port stats {port}"))?;
        Counts::parse(&output)
    }

    /// Returns the number of frames that each receive queue of a port has received so far.
    ///
    /// # Errors
    /// As [`Testpmd::command`].
    pub fn received_by_queue(&mut self, port: usize) -> Result<Vec<u64>> {
        let output = self.command(&format!("show port xstats {port}"))?;
        Ok(counts::by_queue(&output))
    }

    /// Ends testpmd with its own command.
    ///
    /// # Errors
    /// [`crate::Error::Process`] with its output if it does not end well.
    pub fn quit(mut self) -> Result<()> {
        if let Err(error) = writeln!(self.input, "quit") {
            return Err(self.process.error(format!("takes no commands: {error}")));
        }
        let status = self.process.wait(PROCESS_DEADLINE)?;
        if status.success() { Ok(()) } else { Err(self.error(&format!("ended with {status}"))) }
    }

    /// Kills testpmd with SIGKILL.
    ///
    /// # Errors
    /// [`crate::Error::Process`] if it survives.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill().map(drop)
    }

    fn wait_for_prompt(&mut self, what: &str, deadline: Duration) -> Result<()> {
        match self.console.wait_for(PROMPT, deadline) {
            Seen::Yes => Ok(()),
            Seen::Closed => Err(self.error(&format!("ended during: {what}"))),
            Seen::Late => Err(self.error(&format!("did not complete: {what}"))),
        }
    }

    /// Returns an error with the end of its output, which ends with the reason.
    fn error(&mut self, what: &str) -> crate::Error {
        let tail = self.console.tail();
        self.process.error(format!("{what}\n{tail}"))
    }
}
