//! Web pages: files of a directory, and calls of pages that other servers sent.
//!
//! The files are read once, at the start. So a request reads no path, and storage that hangs later
//! stops nothing.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use xenapi::envelope::Encoding;

use super::connection::{Caller, ServerContext};
use super::console;
use super::response::{ResponseBody, text};
use super::routes::{self, Closed, METRICS};
use crate::peer;

/// Most bytes of all files.
const BYTES_MAX: usize = 64 << 20;
/// Most files.
const FILES_MAX: usize = 4096;
/// Most nested directories.
const DEPTH_MAX: usize = 16;
/// File for the path `/`.
const INDEX: &str = "/index.html";
/// Time in seconds for which a browser remembers that a page may call.
const PREFLIGHT_S: &str = "600";

/// Files of the web pages, and pages that may call this server.
#[derive(Debug, Default)]
pub struct WebPages {
    /// Contents and types by path.
    files: BTreeMap<String, (Bytes, &'static str)>,
    /// Origins of pages that may call, such as `https://xo.example.com`.
    origins: Vec<String>,
}

/// Reason why the files cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// A file or directory cannot be read.
    #[error("web.directory: cannot read {}: check the path and its permissions", .path.display())]
    Os {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The directory has more than is kept in memory.
    #[error(
        "web.directory: {} has more than {FILES_MAX} files, {BYTES_MAX} bytes or {DEPTH_MAX} nested \
         directories: name the directory of the pages alone", .0.display()
    )]
    TooMuch(PathBuf),
}

impl WebPages {
    /// Reads the files of a directory. Hidden files and symbolic links are left out.
    ///
    /// # Errors
    /// [`WebError`] if something cannot be read or is too large.
    pub fn read(directory: Option<&Path>, origins: Vec<String>) -> Result<Self, WebError> {
        let mut pages = Self { files: BTreeMap::new(), origins };
        if let Some(directory) = directory {
            let mut bytes_left = BYTES_MAX;
            pages.add(directory, "", DEPTH_MAX, &mut bytes_left).map_err(|error| match error {
                WebError::TooMuch(_) => WebError::TooMuch(directory.to_owned()),
                other => other,
            })?;
        }
        Ok(pages)
    }

    fn add(
        &mut self,
        directory: &Path,
        url: &str,
        depth_left: usize,
        bytes_left: &mut usize,
    ) -> Result<(), WebError> {
        let to_error = |path: &Path| {
            let path = path.to_owned();
            move |source| WebError::Os { path, source }
        };
        for entry in fs::read_dir(directory).map_err(to_error(directory))? {
            let entry = entry.map_err(to_error(directory))?;
            let path = entry.path();
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let kind = entry.file_type().map_err(to_error(&path))?;
            if name.starts_with('.') {
                continue;
            }
            let url = format!("{url}/{name}");
            if kind.is_dir() {
                let too_deep = || WebError::TooMuch(path.clone());
                let depth_left = depth_left.checked_sub(1).ok_or_else(too_deep)?;
                self.add(&path, &url, depth_left, bytes_left)?;
            } else if kind.is_file() {
                let size = entry.metadata().map_err(to_error(&path))?.len();
                let left = usize::try_from(size).ok().and_then(|size| bytes_left.checked_sub(size));
                let Some(left) = left.filter(|_| self.files.len() < FILES_MAX) else {
                    return Err(WebError::TooMuch(path));
                };
                *bytes_left = left;
                let content = fs::read(&path).map_err(to_error(&path))?;
                self.files.insert(url, (content.into(), content_type(&path)));
            }
        }
        Ok(())
    }

    /// Returns the file for a request. Paths of the API have none.
    fn file(&self, request: &Request<Incoming>) -> Option<&(Bytes, &'static str)> {
        let path = match request.uri().path() {
            "/" => INDEX,
            path if Encoding::of_path(path).is_some() => return None,
            METRICS | console::PATH => return None,
            path => path,
        };
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        self.files.get(path).filter(|_| reads)
    }

    /// Returns the origin of the page that sends a request, if the page may call.
    fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let text = origin.to_str().ok()?;
        self.origins.iter().any(|one| one.eq_ignore_ascii_case(text)).then(|| origin.clone())
    }
}

fn content_type(path: &Path) -> &'static str {
    match path.extension().and_then(OsStr::to_str).unwrap_or_default() {
        "html" | "htm" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "txt" => "text/plain; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/x-icon",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "wasm" => "application/wasm",
        _ => "application/octet-stream",
    }
}

/// Answers a request: with a file, or as the API does. A page that may call can read the answer.
pub(super) async fn answer(
    request: Request<Incoming>,
    caller: Caller,
    server_context: ServerContext,
) -> Result<Response<ResponseBody>, Closed> {
    let pages = Arc::clone(&server_context.pages);
    // The Unix socket serves no page of a browser.
    let is_unix = caller.from == peer::Origin::Unix;
    let origin = pages.allowed(request.headers()).filter(|_| !is_unix);
    let asks_first = *request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let is_page = is_unix && request.headers().contains_key(header::ORIGIN);
    let mut response = match pages.file(&request).filter(|_| !is_page) {
        Some((content, kind)) => file(content, kind),
        None if asks_first && origin.is_some() => preflight(),
        None => routes::answer(request, caller, server_context).await?,
    };
    if let Some(origin) = origin {
        set(&mut response, header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        set(&mut response, header::VARY, HeaderValue::from_static("Origin"));
    }
    Ok(response)
}

fn file(content: &Bytes, kind: &'static str) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::of_bytes(content.clone()));
    set(&mut response, header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // A later version of the daemon may have other files at the same paths.
    set(&mut response, header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    set(&mut response, header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Answers a browser that asks whether a page may call (Fetch, 3.2).
fn preflight() -> Response<ResponseBody> {
    let mut response = text(StatusCode::NO_CONTENT, "text/plain", String::new());
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "content-type"),
        (header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_S),
    ] {
        set(&mut response, name, HeaderValue::from_static(value));
    }
    response
}

fn set(response: &mut Response<ResponseBody>, name: HeaderName, value: HeaderValue) {
    response.headers_mut().insert(name, value);
}
