//! Disks as streams between the daemon and a `ringway-io`.
//!
//! Each stream has a socket and a control connection of its own. The call ends with the connection,
//! so a stream that is dropped stops the work.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::image_stream::{ImageExport, ImageImport, ImageImported, MAX_FRAME_BYTES};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::rpc_client::typed;
use super::rpc_connection::written;
use super::{DatapathError, RpcConnection};

/// Longest wait until a `ringway-io` has opened the images of a disk and knows what it sends. With
/// many layers, or another base, it reads all of the disk first.
const BEGIN_DEADLINE: Duration = Duration::from_secs(3600);
/// Time between the deadline of a call and the latest arrival of its answer.
const ANSWER_GRACE: Duration = Duration::from_secs(5);
/// Longest wait for the end of an import that was cut.
const CUT_DEADLINE: Duration = Duration::from_secs(10);
/// Number of the next socket of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Call under way, which ends when it is dropped.
#[derive(Debug)]
struct StreamCall {
    method: &'static str,
    /// `None` once it has answered.
    task: Option<JoinHandle<Result<Value, DatapathError>>>,
}

impl Drop for StreamCall {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl StreamCall {
    /// Starts work that answers like the call `method`.
    fn begin(
        method: &'static str,
        work: impl Future<Output = Result<Value, DatapathError>> + Send + 'static,
    ) -> Self {
        Self { method, task: Some(tokio::spawn(work)) }
    }

    /// Waits for the answer. May be dropped and called again, but answers once.
    async fn answer<R: DeserializeOwned>(&mut self) -> Result<R, DatapathError> {
        let what = || self.method.to_owned();
        let Some(task) = &mut self.task else {
            return Err(DatapathError::Nonsense { what: what(), why: "it has answered".into() });
        };
        let ended = task.await;
        self.task = None;
        let broken = |error: tokio::task::JoinError| DatapathError::Nonsense {
            what: self.method.into(),
            why: error.to_string(),
        };
        typed(self.method, ended.map_err(broken)??)
    }
}

/// Image of a disk that arrives.
#[derive(Debug)]
pub struct ExportStream {
    bytes: u64,
    left: u64,
    stream: UnixStream,
    call: StreamCall,
}

impl ExportStream {
    /// Creates a stream of `bytes` from a socket. `work` ends when all has been sent.
    pub(super) fn new(
        bytes: u64,
        stream: UnixStream,
        work: impl Future<Output = Result<Value, DatapathError>> + Send + 'static,
    ) -> Self {
        Self { bytes, left: bytes, stream, call: StreamCall::begin("image.export", work) }
    }

    /// Calls the `ringway-io` behind a control socket.
    pub(super) async fn open(control: &Path, export: ImageExport) -> Result<Self, DatapathError> {
        let door = Door::open(control)?;
        let deadline = Duration::from_secs(export.deadline_s.into()) + ANSWER_GRACE;
        let params = written("image.export", &ImageExport { stream: door.path.clone(), ..export })?;
        let (mut stream, mut call) = door.call(control, "image.export", params, deadline).await?;
        let mut head = [0; 8];
        if let Err(source) = stream.read_exact(&mut head).await {
            call.answer::<()>().await?;
            return Err(lost(source));
        }
        let bytes = u64::from_be_bytes(head);
        Ok(Self { bytes, left: bytes, stream, call })
    }

    /// Returns the length of the image in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads the next bytes into `buffer`. Returns their number, and 0 after the end of a complete
    /// image.
    ///
    /// # Errors
    /// The image could not be read, so what has arrived is only a part of it.
    pub async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, DatapathError> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let part = buffer.get_mut(..most).unwrap_or_default();
        let found = match part.is_empty() {
            true => 0,
            false => self.stream.read(part).await.map_err(lost)?,
        };
        self.left -= found as u64;
        if found == 0 {
            self.call.answer::<()>().await?;
            if self.left > 0 {
                return Err(lost(std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(found)
    }
}

/// Image that is sent to a disk.
#[derive(Debug)]
pub struct ImportStream {
    stream: UnixStream,
    call: StreamCall,
    outcome: Option<Result<ImageImported, DatapathError>>,
}

impl ImportStream {
    /// Creates a stream to a socket. `work` reads it, and answers with the result.
    pub(super) fn new(
        stream: UnixStream,
        work: impl Future<Output = Result<Value, DatapathError>> + Send + 'static,
    ) -> Self {
        Self { stream, call: StreamCall::begin("image.import", work), outcome: None }
    }

    /// Calls the `ringway-io` behind a control socket.
    pub(super) async fn open(control: &Path, import: ImageImport) -> Result<Self, DatapathError> {
        let door = Door::open(control)?;
        let deadline = Duration::from_secs(import.deadline_s.into()) + ANSWER_GRACE;
        let params = written("image.import", &ImageImport { stream: door.path.clone(), ..import })?;
        let (stream, call) = door.call(control, "image.import", params, deadline).await?;
        Ok(Self { stream, call, outcome: None })
    }

    /// Sends bytes of the image. Returns false if no more are needed: the result is known.
    pub async fn write(&mut self, bytes: &[u8]) -> bool {
        for frame in bytes.chunks(MAX_FRAME_BYTES as usize) {
            if self.outcome.is_none() {
                self.write_frame(frame).await;
            }
        }
        self.outcome.is_none()
    }

    /// Waits until no more bytes are needed. May be dropped.
    pub async fn ended(&mut self) {
        if self.outcome.is_none() {
            self.outcome = Some(self.call.answer().await);
        }
    }

    async fn write_frame(&mut self, frame: &[u8]) {
        // At most `MAX_FRAME_BYTES`.
        let head = u32::try_from(frame.len()).unwrap_or(0).to_be_bytes();
        let Self { stream, call, outcome } = self;
        let sent = async {
            stream.write_all(&head).await?;
            stream.write_all(frame).await
        };
        let sent = tokio::select! {
            biased;
            answer = call.answer() => return *outcome = Some(answer),
            sent = sent => sent,
        };
        if sent.is_err() {
            // The answer says why the other side has closed.
            *outcome = Some(call.answer().await);
        }
    }

    /// Ends the image, and returns the result.
    ///
    /// # Errors
    /// The storage failed. Nothing was made.
    pub async fn finish(&mut self) -> Result<ImageImported, DatapathError> {
        if self.outcome.is_none() {
            self.write_frame(&[]).await;
        }
        match self.outcome.take() {
            Some(outcome) => outcome,
            None => self.call.answer().await,
        }
    }
}

impl ImportStream {
    /// Cuts the stream, and waits a while until the work has ended without a result.
    pub async fn cut(self) {
        let Self { stream, mut call, .. } = self;
        drop(stream);
        // Hung storage ends nothing.
        let _late = timeout(CUT_DEADLINE, call.answer::<ImageImported>()).await;
    }
}

/// Socket on which a `ringway-io` begins a stream. Its file goes when it is dropped.
struct Door {
    path: PathBuf,
    listener: UnixListener,
}

impl Drop for Door {
    fn drop(&mut self) {
        // A file that is left does no harm.
        let _gone = std::fs::remove_file(&self.path);
    }
}

impl Door {
    /// Listens beside a control socket, in a folder that only this user can open.
    fn open(control: &Path) -> Result<Self, DatapathError> {
        let folder = control.parent().unwrap_or(Path::new("."));
        let failed = |source| DatapathError::Folder { folder: folder.into(), source };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("s-{}-{number}", std::process::id()));
        // A former process with the same id may have left it.
        let _absent = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        Ok(Self { path, listener })
    }

    /// Sends a call that names this socket, and waits for its stream.
    async fn call(
        self,
        control: &Path,
        method: &'static str,
        params: Value,
        deadline: Duration,
    ) -> Result<(UnixStream, StreamCall), DatapathError> {
        let mut carrier = RpcConnection::connect(control).await?;
        let mut call =
            StreamCall::begin(method, async move { carrier.call(method, params, deadline).await });
        let accepted = async {
            let answer: Value = tokio::select! {
                biased;
                accepted = self.listener.accept() => return Ok(accepted.map_err(lost)?.0),
                answer = call.answer() => answer?,
            };
            // A short image has been sent before its stream is accepted here.
            let why = format!("{answer} without a stream");
            call = StreamCall::begin(method, async move { Ok(answer) });
            let accepted = timeout(ANSWER_GRACE, self.listener.accept()).await;
            let without = |_| DatapathError::Nonsense { what: method.into(), why };
            Ok(accepted.map_err(without)?.map_err(lost)?.0)
        };
        let late = |_| DatapathError::Late {
            what: format!("{method} with a stream"),
            deadline: BEGIN_DEADLINE,
        };
        let stream = timeout(BEGIN_DEADLINE, accepted).await.map_err(late)??;
        Ok((stream, call))
    }
}

fn lost(source: std::io::Error) -> DatapathError {
    DatapathError::Broken { what: "the stream of a disk".into(), source: source.into() }
}
