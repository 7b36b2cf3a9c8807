//! Paths of the server.

use std::fmt;

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use xenapi::envelope::Encoding;

use super::connection::{Caller, ServerContext};
use super::console;
use super::database;
use super::disks::{self, Direction};
use super::response::{ResponseBody, last, text};
use super::rpc::{rpc, waste};
use crate::peer::Origin;

/// Path of the metrics for Prometheus.
pub(super) const METRICS: &str = "/metrics";
/// Content type of the metrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The connection ends without a response.
#[derive(Debug)]
pub(super) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection was closed instead of an answer")
    }
}

impl std::error::Error for Closed {}

/// Answers a request.
pub(super) async fn answer(
    request: Request<Incoming>,
    caller: Caller,
    server_context: ServerContext,
) -> Result<Response<ResponseBody>, Closed> {
    let ServerContext { api_handler, consoles, stop, .. } = server_context;
    if caller.from == Origin::Unix && request.headers().contains_key(header::ORIGIN) {
        return Ok(refused(request, page()).await);
    }
    let path = request.uri().path();
    match (request.method(), Encoding::of_path(path)) {
        (&Method::POST, Some(encoding)) => {
            rpc(encoding, request, &*api_handler, caller, stop).await
        }
        (_, Some(_)) => Ok(refused(request, other_method("POST")).await),
        (&Method::GET, None) if path == METRICS => {
            Ok(text(StatusCode::OK, OPENMETRICS, api_handler.metrics()))
        }
        (_, None) if path == METRICS => Ok(refused(request, other_method("GET")).await),
        (&Method::CONNECT, None) if path == console::PATH => {
            Ok(console::console(request, caller, &*api_handler, &consoles, stop).await)
        }
        (&Method::GET, None) if path == console::PATH => {
            Ok(console::socket(request, caller, &*api_handler, &consoles, stop).await)
        }
        (_, None) if path == console::PATH => {
            Ok(refused(request, other_method("CONNECT, GET")).await)
        }
        (method, None) if path == database::PATH && method.as_str() == database::METHOD => {
            Ok(database::restore(request, caller, &*api_handler).await)
        }
        (_, None) if path == database::PATH => {
            Ok(refused(request, other_method(database::METHOD)).await)
        }
        (method, None) => match Direction::of_path(path) {
            Some(direction) if direction.method() == method.as_str() => {
                Ok(disks::answer(direction, request, caller, &*api_handler).await)
            }
            Some(direction) => Ok(refused(request, other_method(direction.method())).await),
            None => Ok(refused(request, absent()).await),
        },
    }
}

/// Discards a part of the body of a refused request, then answers.
async fn refused(
    request: Request<Incoming>,
    response: Response<ResponseBody>,
) -> Response<ResponseBody> {
    waste(request).await;
    response
}

/// Refuses requests of web pages at the Unix socket. If the socket is forwarded to a TCP port, any
/// web page could reach it and would be root. Browsers mark such requests with `Origin` (Fetch,
/// 3.2).
fn page() -> Response<ResponseBody> {
    let why = "A page in a browser is not served at this socket. Use a port of the server.\n";
    last(text(StatusCode::FORBIDDEN, "text/plain", why.to_owned()))
}

/// Answers an unknown path. A long body stays unread, so the connection ends.
fn absent() -> Response<ResponseBody> {
    let why = "There is nothing at this path. Calls go to /jsonrpc or, in XML-RPC, to /.\n";
    last(text(StatusCode::NOT_FOUND, "text/plain", why.to_owned()))
}

fn other_method(allowed: &'static str) -> Response<ResponseBody> {
    let why = format!("Only {allowed} is taken at this path.\n");
    let mut response = last(text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", why));
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}
