//! Commands that write disks to files, and files to disks.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use model::signature::{HEAD_BYTES, Signature};
use xenapi::Value;
use xenapi::client::ClientError;

use super::Command;
use crate::error::XeError;
use crate::params::Params;
use crate::printer::Printed;
use crate::xe::{XeSession, text_of};

/// Name that stands for standard input or output.
const STANDARD: &str = "-";
/// Longest wait for the end of a task whose transfer has ended.
const TASK_DEADLINE: Duration = Duration::from_secs(30);
/// Bytes that are copied together.
const PIECE_BYTES: usize = 256 << 10;

pub(super) const COMMANDS: &[Command] = &[
    Command::own("vdi-import", "Replaces the contents of a disk by an image in a file.", import)
        .required(&["uuid", "filename"])
        .optional(&["format", "progress"]),
    Command::own("vdi-export", "Writes a disk to a new file, as an image.", export)
        .required(&["uuid", "filename"])
        .optional(&["format", "base", "progress"]),
];

fn export(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let name = params.required("filename")?;
    let mut progress = Progress::new(params.flag("progress")?);
    let disk = xe.by_uuid("VDI", params.required("uuid")?)?;
    let mut path = query("/export_raw_vdi/", params, &disk);
    if let Some(base) = params.get("base") {
        path.push_str(&format!("&base={}", text_of(&xe.by_uuid("VDI", base)?)));
    }
    if name == STANDARD || name.is_empty() {
        transfer(xe, "VDI export", &path, |xe, path| {
            download(xe, path, &mut io::stdout().lock(), &mut progress)
        })?;
        return Ok(Printed::nothing());
    }
    let made = OpenOptions::new().write(true).create_new(true).open(name);
    let mut file = made.map_err(|error| {
        let next = match error.kind() {
            ErrorKind::AlreadyExists => ": name a new file",
            _ => "",
        };
        XeError::error(format!("cannot make {name}: {error}{next}"))
    })?;
    let exported =
        transfer(xe, "VDI export", &path, |xe, path| download(xe, path, &mut file, &mut progress));
    if exported.is_err() {
        // A part of an image would look like an image.
        let _gone = std::fs::remove_file(name);
    }
    exported?;
    Ok(Printed::Text("VDI export succeeded\n".to_owned()))
}

fn import(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let name = params.required("filename")?;
    let mut progress = Progress::new(params.flag("progress")?);
    let disk = xe.by_uuid("VDI", params.required("uuid")?)?;
    let path = query("/import_raw_vdi/", params, &disk);
    let (mut file, length): (Box<dyn Read>, _) = match name {
        STANDARD => (Box::new(io::stdin().lock()), None),
        name => {
            let failed = |error| XeError::error(format!("cannot read {name}: {error}"));
            let file = File::open(Path::new(name)).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            if params.get("format").is_none() {
                refuse_other_image(name, &file)?;
            }
            (Box::new(file), metadata.is_file().then_some(metadata.len()))
        }
    };
    transfer(xe, "VDI import", &path, |xe, path| {
        let mut sent = |bytes| progress.report(bytes, length);
        Ok(xe.client().put(path, length, &mut file, &mut sent)?)
    })?;
    Ok(Printed::Text("VDI import succeeded\n".to_owned()))
}

/// Refuses a file that begins like an image with metadata, if its format is not stated: the disk
/// would have the bytes of the file, and not those of the image.
fn refuse_other_image(name: &str, file: &File) -> Result<(), XeError> {
    let mut head = [0; HEAD_BYTES];
    // A pipe has no place to read at. Other errors come back when the file is sent.
    let read = file.read_at(&mut head, 0).unwrap_or_default();
    let found = head.get(..read).and_then(Signature::of);
    let Some(signature) = found.filter(|found| found.is_image()) else { return Ok(()) };
    let next = match signature {
        Signature::Image(format) => format!("give format={}", format.name()),
        other => format!("convert it first: `{}`", other.to_raw(&name).unwrap_or_default()),
    };
    Err(XeError::error(format!(
        "{name} begins like {}: {next}. If these are the bytes of a raw disk, give format=raw",
        signature.title()
    )))
}

/// Returns the path of a transfer of a disk.
fn query(path: &str, params: &Params, disk: &Value) -> String {
    let format = params.get("format").map(|format| format!("&format={format}"));
    format!("{path}?vdi={}{}", text_of(disk), format.unwrap_or_default())
}

/// Runs a transfer under a task of the server, which has the reason if it fails.
fn transfer(
    xe: &mut XeSession,
    label: &str,
    path: &str,
    run: impl FnOnce(&mut XeSession, &str) -> Result<(), XeError>,
) -> Result<(), XeError> {
    let names = [Value::text(label), Value::text("")];
    let task = text_of(&xe.run("task.create", &names)?);
    let ran = run(xe, &format!("{path}&task_id={task}"));
    let outcome = finish(xe, &task, ran);
    // The outcome is known, so a failure to destroy the task does not matter.
    let _stays = xe.run("task.destroy", &[Value::text(task)]);
    outcome
}

/// Returns the outcome of a transfer: the error of its task, if that has one.
fn finish(xe: &mut XeSession, task: &str, ran: Result<(), XeError>) -> Result<(), XeError> {
    let deadline = match &ran {
        Ok(()) | Err(XeError::Server(ClientError::Lost { .. })) => TASK_DEADLINE,
        // The server has not begun, or has told the task before.
        Err(_) => Duration::ZERO,
    };
    match (xe.client().wait_task(task, deadline), ran) {
        (Ok(Some(Err(error))), Ok(()) | Err(XeError::Server(_))) => {
            Err(ClientError::Api(error).into())
        }
        (Ok(None), Ok(())) => {
            let what = format!("the task {task}");
            Err(ClientError::Late { what, after: deadline }.into())
        }
        (Err(error), Ok(())) => Err(error.into()),
        (_, ran) => ran,
    }
}

fn download(
    xe: &mut XeSession,
    path: &str,
    to: &mut dyn Write,
    progress: &mut Progress,
) -> Result<(), XeError> {
    let mut image = xe.client().get(path)?;
    let total = image.left();
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    loop {
        let found = image.read(&mut piece).map_err(|source| ClientError::Lost {
            at: "the server".to_owned(),
            method: "the export".to_owned(),
            source,
        })?;
        let written = match found {
            0 => to.flush(),
            _ => to.write_all(piece.get(..found).unwrap_or_default()),
        };
        written.map_err(|error| XeError::error(format!("cannot write the image: {error}")))?;
        done += found as u64;
        progress.report(done, total);
        if found == 0 {
            return Ok(());
        }
    }
}

/// Progress on standard error, if it is wanted.
#[derive(Debug)]
struct Progress {
    is_wanted: bool,
    shown: String,
}

impl Progress {
    fn new(is_wanted: bool) -> Self {
        Self { is_wanted, shown: String::new() }
    }

    /// Shows a part in percent, or the bytes of a transfer whose length is not known.
    fn report(&mut self, done: u64, total: Option<u64>) {
        let text = match total.filter(|total| *total > 0) {
            Some(total) => format!("\r{} %", done.saturating_mul(100) / total),
            None => format!("\r{} MiB", done >> 20),
        };
        if self.is_wanted && text != self.shown {
            // Without a reader, the transfer goes on.
            let _unread = io::stderr().write_all(text.as_bytes());
            self.shown = text;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if !self.shown.is_empty() {
            let _unread = io::stderr().write_all(b"\n");
        }
    }
}
