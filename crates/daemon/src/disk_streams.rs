//! Exports and imports of disks over HTTP: who may, which task shows them, and their bytes.
//!
//! # Model
//! A request names its session, or brings a name and a password. It runs under the task that it
//! names, or one of its own, and continues to its end or its clean-up if the client disconnects.
//! What is wrong is told in the HTTP status and, once there is one, in the task.
//!
//! The daemon never touches the storage. It copies between HTTP and the `ringway-io` of the storage
//! repository, a piece at a time, so a slow side slows the other down.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use model::image::ImageFormat;
use tokio::sync::mpsc;
use xenapi::table::resolve::resolve;
use xenapi::table::{Role, vdi};
use xenapi::{ApiError, NULL_REF, Value, codes};

use crate::app::AppState;
use crate::calls::vdi::{self as vdi_calls, Export};
use crate::db::Ref;
use crate::dispatch::Ctx;
use crate::http::{DiskRequest, ExportBody, ImportAnswer, ImportBody};
use crate::ops::run::OpCaller;
use crate::peer::Peer;
use crate::records::fields::text;
use crate::request_session::RequestSession;
use crate::tasks;

/// Least role that may read or replace the content of disks.
const LEAST_ROLE: Role = Role::VmAdmin;
/// Method whose task an export or import shows.
const METHOD: &str = "VDI.copy";
/// Bytes of a piece of an export.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces of an export that wait for the client.
const PIECES: usize = 4;

/// Session and task of a request.
#[derive(Clone)]
struct Access {
    ctx: Ctx,
    request_session: RequestSession,
}

impl Access {
    /// Finds or begins the session of a request.
    ///
    /// # Errors
    /// Those of [`RequestSession::open`].
    async fn open(
        app: &Arc<AppState>,
        disk_request: &DiskRequest,
        peer: &Peer,
        permission: &str,
    ) -> Result<Self, ApiError> {
        let needs = (permission, LEAST_ROLE);
        let request_session = RequestSession::open(app, &disk_request.session, peer, needs).await?;
        let method = resolve(METHOD).map(|(method, _)| method);
        let method = method.ok_or_else(|| codes::method_unknown(METHOD))?;
        let ctx = Ctx::new(app, request_session.session.clone(), method);
        Ok(Self { ctx, request_session })
    }

    /// Ends a temporary session.
    fn close(&self) {
        self.request_session.close(&self.ctx.app);
    }

    /// Ends the task and the session of the request.
    fn end(&self, outcome: &Result<Value, ApiError>) {
        if let Some(task) = &self.ctx.task {
            // A client may have destroyed the task.
            let _gone = tasks::end(&self.ctx.app, task.reference(), outcome);
        }
        self.close();
    }

    /// Returns the VDI that a word names: a reference or a UUID.
    fn disk(&self, named: Option<&String>, what: &str) -> Result<Ref, ApiError> {
        let named = named.ok_or_else(|| codes::invalid_value(what, ""))?;
        self.ctx.read(|view| match view.by_uuid(&vdi::CLASS, named) {
            Ok(disk) => Ok(disk.clone()),
            Err(_) => {
                let disk = Ref::from(named.as_str());
                view.object(&vdi::CLASS, &disk).map(|_| disk)
            }
        })
    }

    /// Makes a task show the request.
    fn carry(&mut self, label: &str, named: Option<&String>) -> Result<String, ApiError> {
        let named = named.map(|named| Ref::from(named.as_str()));
        tasks::carry(&mut self.ctx, label, named.as_ref())?;
        let task = self.ctx.task.as_ref().map(|task| task.reference().to_string());
        Ok(task.unwrap_or_else(|| NULL_REF.to_owned()))
    }
}

/// Parses a format, which is raw unless the client names one. XenAdmin sends an empty one for raw.
fn format_of(named: Option<&String>) -> Result<ImageFormat, ApiError> {
    let named = named.filter(|named| !named.is_empty()).map_or("raw", String::as_str);
    named
        .to_ascii_lowercase()
        .parse()
        .map_err(|why: String| codes::value_not_supported("format", named, why))
}

/// Begins an export.
///
/// # Errors
/// Those of the session, the VDI and its SR.
pub(crate) async fn export(
    app: Arc<AppState>,
    disk_request: DiskRequest,
    peer: Peer,
) -> Result<ExportBody, ApiError> {
    let mut access = Access::open(&app, &disk_request, &peer, "http/get_export_raw_vdi").await?;
    let task = match access.carry("VDI.export_raw_vdi", disk_request.task.as_ref()) {
        Ok(task) => task,
        Err(error) => {
            access.close();
            return Err(error);
        }
    };
    let work = begin_sending(access.clone(), disk_request, task);
    detached(access, work).await
}

/// Runs work to its end, also if the client disconnects. An error or a panic ends the task of the
/// request.
async fn detached<T: Send + 'static>(
    access: Access,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    let panicked = |_| Err(codes::internal("the transfer panicked; see the server log"));
    let run = async move {
        let outcome = tokio::spawn(work).await.unwrap_or_else(panicked);
        if let Err(error) = &outcome {
            access.end(&Err(error.clone()));
        }
        outcome
    };
    tokio::spawn(run).await.unwrap_or_else(panicked)
}

/// Begins an export, and sends it from then on.
async fn begin_sending(
    access: Access,
    disk_request: DiskRequest,
    task: String,
) -> Result<ExportBody, ApiError> {
    let (export, format, name) = begin_export(&access, &disk_request).await?;
    let bytes = export.stream.bytes();
    let (sender, pieces) = mpsc::channel(PIECES);
    let sent = tokio::spawn(send(access.clone(), export, sender));
    tokio::spawn(async move {
        if sent.await.is_err() {
            access.end(&Err(codes::internal("the export panicked; see the server log")));
        }
    });
    let content_type = match format {
        ImageFormat::Raw => "application/octet-stream",
        ImageFormat::Vhd => "application/vhd",
        ImageFormat::Qcow2 => "application/x-qemu-disk",
    };
    let file_name = format!("{name}.{}", format.name());
    Ok(ExportBody { bytes, content_type, file_name, task, pieces })
}

async fn begin_export(
    access: &Access,
    disk_request: &DiskRequest,
) -> Result<(Export, ImageFormat, String), ApiError> {
    let format = format_of(disk_request.format.as_ref())?;
    let disk = access.disk(disk_request.vdi.as_ref(), "vdi")?;
    let base = disk_request.base.as_ref().map(|base| access.disk(Some(base), "base"));
    let base = base.transpose()?;
    let export = vdi_calls::begin_export(&access.ctx, &disk, base.as_ref(), format).await?;
    let name = access.ctx.read(|view| text(view, &disk, vdi::Field::uuid).map(str::to_owned))?;
    Ok((export, format, name))
}

/// Sends an export to its client. The last piece is sent when the VDI is free again and the task has
/// ended, so that a client that has all of it may destroy the VDI.
async fn send(access: Access, export: Export, sender: mpsc::Sender<io::Result<Bytes>>) {
    let (outcome, last) = carry_export(&access, export, &sender).await;
    access.end(&outcome);
    let piece = match outcome {
        Ok(_) => Ok(last),
        // The client notices that its connection is cut.
        Err(error) => Err(io::Error::other(error.to_string())),
    };
    // The client may have gone.
    let _gone = sender.send(piece).await;
}

/// Sends all but the last piece of an export, which is returned.
async fn carry_export(
    access: &Access,
    mut export: Export,
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> (Result<Value, ApiError>, Bytes) {
    let cancel = OpCaller::of(&access.ctx).cancel;
    let total = export.stream.bytes().max(1);
    let (mut sent, mut last) = (0_u64, Bytes::new());
    let mut meter = tasks::ProgressMeter::new(&access.ctx);
    let all = async {
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let read = export.stream.read(&mut piece).await;
            let found = read.map_err(|error| {
                let causes = error_causes::error_chain(&error);
                codes::sr_backend_failure("DATAPATH", "", causes)
            })?;
            if found == 0 {
                return Ok(Value::text(""));
            }
            piece.truncate(found);
            let former = std::mem::replace(&mut last, piece.into());
            // A client that goes away cancels its export.
            if !former.is_empty() && sender.send(Ok(former)).await.is_err() {
                return Err(codes::task_cancelled(NULL_REF));
            }
            sent = sent.saturating_add(found as u64);
            meter.report(sent as f64 / total as f64);
        }
    };
    let outcome = tokio::select! {
        () = cancel.cancelled() => Err(codes::task_cancelled(NULL_REF)),
        () = sender.closed() => Err(codes::task_cancelled(NULL_REF)),
        outcome = all => outcome,
    };
    drop(export);
    (outcome, last)
}

/// Carries out an import, and answers when it has ended. A request without a task and without a length
/// is answered at once, as XenServer answers: clients look for a redirection like this, before they
/// send a stream whose length they do not know.
///
/// # Errors
/// Those of the session, the VDI, its SR and the image.
pub(crate) async fn import(
    app: Arc<AppState>,
    disk_request: DiskRequest,
    import_body: ImportBody,
    peer: Peer,
) -> Result<ImportAnswer, ApiError> {
    let begun = begin_import(&app, &disk_request, &import_body, &peer).await;
    let (access, task) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            import_body.discard().await;
            return Err(error);
        }
    };
    if disk_request.task.is_none() && import_body.length() == Some(0) {
        // Clients look for a redirection like this, too.
        access.end(&Ok(Value::text("")));
        return Ok(ImportAnswer::Done(task));
    }
    let is_answered_now = disk_request.task.is_none() && import_body.has_open_end();
    let work = carry_import(access.clone(), disk_request, import_body);
    let carried = detached(access, work);
    if is_answered_now {
        let (sender, end) = mpsc::channel(1);
        tokio::spawn(async move {
            // The task of the API has the outcome.
            let _told = carried.await;
            drop(sender);
        });
        return Ok(ImportAnswer::Begun(task, end));
    }
    carried.await.map(|_| ImportAnswer::Done(task))
}

/// Checks who asks for an import to which VDI, and finds the task that shows it. A request that may
/// only look for a redirection has none before its first byte.
async fn begin_import(
    app: &Arc<AppState>,
    disk_request: &DiskRequest,
    import_body: &ImportBody,
    peer: &Peer,
) -> Result<(Access, String), ApiError> {
    let mut access = Access::open(app, disk_request, peer, "http/put_import_raw_vdi").await?;
    let is_probe = import_body.length() == Some(0) || import_body.has_open_end();
    let begun = match is_probe && disk_request.task.is_none() {
        true => {
            let disk = access.disk(disk_request.vdi.as_ref(), "vdi");
            disk.map(|_| NULL_REF.to_owned())
        }
        false => access.carry("VDI.import", disk_request.task.as_ref()),
    };
    match begun {
        Ok(task) => Ok((access, task)),
        Err(error) => {
            access.close();
            Err(error)
        }
    }
}

/// Carries out an import and ends its task.
async fn carry_import(
    mut access: Access,
    disk_request: DiskRequest,
    mut import_body: ImportBody,
) -> Result<Value, ApiError> {
    if access.ctx.task.is_none() {
        if !import_body.has_bytes().await {
            access.close();
            return Ok(Value::text(""));
        }
        if let Err(error) = access.carry("VDI.import", None) {
            access.close();
            return Err(error);
        }
    }
    let outcome = replace_content(&access, &disk_request, &mut import_body).await;
    access.end(&outcome);
    if !import_body.has_open_end() {
        import_body.discard().await;
    }
    outcome
}

async fn replace_content(
    access: &Access,
    disk_request: &DiskRequest,
    import_body: &mut ImportBody,
) -> Result<Value, ApiError> {
    let format = format_of(disk_request.format.as_ref())?;
    if disk_request.chunked && format == ImageFormat::Raw {
        let why = "raw images are sent as they are: leave chunked out";
        return Err(codes::value_not_supported("chunked", "true", why));
    }
    let disk = access.disk(disk_request.vdi.as_ref(), "vdi")?;
    vdi_calls::import(&access.ctx, &disk, format, import_body).await?;
    Ok(disk.value())
}
