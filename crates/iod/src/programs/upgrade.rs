//! The command `ringway-io upgrade`, which asks a running `ringway-io` to hand over to another
//! program.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use anyhow::Context;
use model::rpc::{MAX_LINE_BYTES, Request, Response, Upgrade, UpgradeReply};

use crate::connect::dial;
use crate::options::io::UpgradeOptions;

/// Longest wait for the answer: twice the time that the server allows for.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// Requests the upgrade and prints the result.
///
/// # Errors
/// No process listens, or the upgrade was cancelled and the running program continues.
pub(crate) fn run(options: &UpgradeOptions) -> anyhow::Result<()> {
    let reply = ask(options)?;
    let UpgradeReply { pid, version, disks, nics, paused_ms } = reply;
    let nics = if nics > 0 { format!(" and {nics} NICs") } else { String::new() };
    Ok(writeln!(
        std::io::stdout(),
        "process {pid} of version {version} took over {disks} disks{nics}; pause {paused_ms:.1} ms"
    )?)
}

fn ask(options: &UpgradeOptions) -> anyhow::Result<UpgradeReply> {
    let control = &options.control;
    // Make the path absolute, because the server opens it in another directory.
    let binary = options.binary.as_ref().map(std::path::absolute).transpose()?;
    let stream = dial(control, ANSWER_DEADLINE).with_context(|| {
        format!(
            "no ringway-io answers at {0}; start one with `ringway-io --control {0}`",
            control.display()
        )
    })?;
    let params = serde_json::to_value(Upgrade { binary })?;
    let mut line = serde_json::to_vec(&Request::new(1, "upgrade", params))?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream)
        .take(MAX_LINE_BYTES as u64)
        .read_until(b'\n', &mut answer)
        .context("no reply arrived; `ringway io stats` shows which process serves")?;
    let answer: Response =
        serde_json::from_slice(&answer).context("the reply is not valid JSON-RPC")?;
    Ok(serde_json::from_value(answer.outcome()?)?)
}
