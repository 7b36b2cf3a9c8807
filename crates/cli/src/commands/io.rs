//! `ringway io METHOD [PARAMETERS]`: one call to a running `ringway-io`.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use model::rpc::{METHODS, code};
use serde_json::Value;
use toolstack::ringway_io::{ATTACH_DEADLINE, DatapathError, RpcConnection, USUAL_CONTROL, params};

/// Error codes of an invalid call, independent of the disks.
const NOT_A_CALL: [i64; 2] = [code::METHOD_NOT_FOUND, code::INVALID_PARAMS];

/// Reason why a `ringway-io` of an earlier version refuses a detach.
const OLDER: &str = "this ringway-io is older than the client and does not check whether a \
    front-end is connected; see `ringway io stats`, then detach the disk with force=true";

/// Error: the command line is not a valid call.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct NotACall(DatapathError);

/// Options of `ringway io`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  ringway io stats
  ringway io --control /run/x/io.sock disk.attach id=d1 socket=/run/x/d1.sock \\
      backend.file=/img/a.raw queues=4
  ringway io disk.resize id=d1 size=20G
  ringway io disk.pause id=d1
  ringway io disk.caps id=d1 caps.iops=500 caps.iops_burst=2000 caps.burst_seconds=30
  ringway io disk.caps id=d1 caps.bytes_per_second=100M
  ringway io disk.caps id=d1                     (no caps)
  ringway io disk.weight id=d1 weight=400 floor_iops=50   (share of calibrated storage)
  ringway io disk.poll id=d1 poll=always poll_max_us=50 poll_idle_threshold=25
  ringway io disk.poll id=d1 poll=null poll_max_us=null poll_idle_threshold=null   (the defaults)
  ringway io poll.defaults poll=off
  ringway io metrics
  ringway io disk.export id=d1 socket=/run/x/d1.nbd read_only=true
  ringway io disk.attach id=d2 backend.file=/img/b.raw   (without a socket: for disk.export alone)
  ringway io disk.detach '{\"id\":\"d1\"}'        (refused while a front-end is connected)
  ringway io disk.detach id=d1 force=true        (even then; the guest waits for the disk)
  ringway io nic.attach id=n1 socket=/run/x/n1.sock network=lan mac=02:00:00:00:00:01 queues=4
  ringway io network.uplink network=lan tap=rwt0   (without tap: removes the uplink)
  ringway io nic.poll id=n1 poll=always poll_max_us=50   (null: the default)
  ringway io nic.detach id=n1
  ringway io upgrade                             (to the file at the running program's path)
  ringway io upgrade binary=/opt/ringway/ringway-io

The result is printed as JSON, indented on a terminal; the result of metrics as plain text. Notes
of disk.attach are also printed on standard error. Exit code 1, with the reason on standard error,
if the call is refused or not answered; 2 if the method is unknown or the parameters are wrong.")]
pub(crate) struct Io {
    /// Control socket of the ringway-io
    #[arg(long, value_name = "SOCKET", env = "RINGWAY_CONTROL", default_value = USUAL_CONTROL)]
    control: PathBuf,
    #[arg(help = format!("One of {}", METHODS.join(", ")))]
    method: String,
    /// One JSON object, or key=value pairs; a dot in a key makes nested objects (backend.null=1G).
    /// Relative paths of files and sockets begin at the working directory of this program
    #[arg(value_name = "PARAMETERS")]
    parameters: Vec<String>,
}

impl Io {
    pub(super) async fn execute(self) -> anyhow::Result<ExitCode> {
        let mut parameters = params(&self.parameters)?;
        make_absolute(&mut parameters);
        let parameters = checked_detach(&self.method, parameters);
        if !METHODS.contains(&self.method.as_str()) {
            // A newer ringway-io may know the method, so send the call.
            tracing::debug!(method = self.method, "not a method that this client knows");
        }
        let mut client = RpcConnection::connect(&self.control).await?;
        let asks_to_check = parameters.get("force") == Some(&Value::Bool(false));
        let result = client.call(&self.method, parameters, ATTACH_DEADLINE).await;
        let result = result.map_err(|error| match error {
            DatapathError::Refused { ref source, .. } if NOT_A_CALL.contains(&source.code) => {
                let is_older = asks_to_check && source.message.contains("unknown field `force`");
                let error = anyhow::Error::new(NotACall(error));
                if is_older { error.context(OLDER) } else { error }
            }
            error => error.into(),
        })?;
        let mut output = std::io::stdout().lock();
        if let Some(text) = result.get("openmetrics").and_then(|text| text.as_str()) {
            output.write_all(text.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        if output.is_terminal() {
            serde_json::to_writer_pretty(&mut output, &result)?;
        } else {
            serde_json::to_writer(&mut output, &result)?;
        }
        writeln!(output)?;
        let notes = result.get("notes").and_then(|notes| notes.as_array()).into_iter().flatten();
        for note in notes.filter_map(|note| note.as_str()) {
            writeln!(std::io::stderr(), "note: {note}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Fields with the path of a file or socket, in any call.
const PATHS: [&str; 5] = ["file", "socket", "path", "base", "binary"];

/// Makes relative paths absolute, because ringway-io has another working directory.
fn make_absolute(parameters: &mut Value) {
    match parameters {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(path) if PATHS.contains(&name.as_str()) && !path.is_empty() => {
                        let absolute = std::path::absolute(&path);
                        // The text stays as it is if the working directory is gone.
                        if let Some(text) = absolute.ok().as_deref().and_then(Path::to_str) {
                            *path = text.to_owned();
                        }
                    }
                    value => make_absolute(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(make_absolute),
        _ => {}
    }
}

/// Asks for the check that no front-end is connected, unless the caller forces a detach. A detach
/// without `force` is a forced one for every version of `ringway-io`; earlier ones reject the field.
fn checked_detach(method: &str, mut parameters: Value) -> Value {
    if method == "disk.detach"
        && let Some(fields) = parameters.as_object_mut()
        && fields.entry("force").or_insert(Value::Bool(false)) == &Value::Bool(true)
    {
        fields.remove("force");
    }
    parameters
}
