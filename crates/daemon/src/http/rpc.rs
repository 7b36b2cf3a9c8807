//! One call: reads its body, runs it, sends the response.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response};
use tokio::sync::watch;
use tokio::time::timeout;
use xenapi::envelope::{self, BadBody, Call, Encoding};
use xenapi::limits::Limits;
use xenapi::table::MessageKind;
use xenapi::table::resolve::resolve;
use xenapi::{ApiError, Value, codes};

use super::connection::Caller;
use super::response::{ResponseBody, bad};
use super::routes::Closed;
use super::{ApiHandler, stopped};
use crate::peer::Peer;

/// Time limit for the body of a call.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// Most bytes of an oversized body that are discarded, so that its sender reads the response.
const WASTE_BYTES_MAX: usize = 1 << 20;
/// Time limit for discarding.
const WASTE_DEADLINE: Duration = Duration::from_secs(2);
/// Header with the time that the server took, for measurements.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Reads a call, carries it out and answers.
pub(super) async fn rpc(
    encoding: Encoding,
    request: Request<Incoming>,
    api_handler: &dyn ApiHandler,
    caller: Caller,
    stop: watch::Receiver<bool>,
) -> Result<Response<ResponseBody>, Closed> {
    let (head, body) = request.into_parts();
    let expects = head.headers.contains_key(header::EXPECT);
    let body = match timeout(BODY_DEADLINE, read(body, expects)).await {
        Ok(Ok(body)) => body,
        Ok(Err(BodyError::Bad(why))) => return Ok(bad(&why)),
        Ok(Err(BodyError::Gone)) => return Err(Closed),
        Err(_late) => return Ok(bad(&late())),
    };
    let began = Instant::now();
    let call = match envelope::parse(encoding, &body) {
        Ok(call) => call,
        Err(why) => return Ok(bad(&why)),
    };
    drop(body);
    let peer = caller.asks(&head.headers);
    let frame =
        Call { method: call.method.clone(), params: Vec::new(), dialect: call.dialect.clone() };
    let outcome = outcome(api_handler, call, peer, stop).await?;
    let response_body = ResponseBody::of(envelope::answer(&frame, &outcome));
    let mut response = Response::new(response_body);
    let kind = HeaderValue::from_static(frame.dialect.encoding().content_type());
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    let took = format!("call;dur={:.3}", began.elapsed().as_secs_f64() * 1e3);
    if let Ok(took) = HeaderValue::try_from(took) {
        response.headers_mut().insert(SERVER_TIMING, took);
    }
    Ok(response)
}

/// Runs a call. A call that only waits ends when the server stops. A panic ends only its own call.
async fn outcome(
    api_handler: &dyn ApiHandler,
    call: Call,
    peer: Peer,
    mut stop: watch::Receiver<bool>,
) -> Result<Result<Value, ApiError>, Closed> {
    let waits =
        resolve(&call.method).is_some_and(|(method, _)| method.kind() == MessageKind::Waits);
    let mut call = api_handler.call(call, peer);
    let ended = poll_fn(move |context| {
        let polled = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)));
        polled.unwrap_or_else(|_panic| {
            tracing::error!("a call panicked, by a bug in this program");
            let why = "the call panicked; see the server log";
            Poll::Ready(Err(codes::internal(why)))
        })
    });
    if !waits {
        return Ok(ended.await);
    }
    tokio::select! {
        ended = ended => Ok(ended),
        () = stopped(&mut stop) => Err(Closed),
    }
}

/// Reason why a body cannot be read.
enum BodyError {
    Bad(BadBody),
    /// The client has disconnected.
    Gone,
}

/// Reads a whole body. Bytes past the limit are not stored.
async fn read(mut body: Incoming, expects: bool) -> Result<Vec<u8>, BodyError> {
    let limit = Limits::CALL.bytes;
    let size_hint = body.size_hint().lower();
    if size_hint > limit as u64 {
        // A client that sent `Expect: 100-continue` has not sent its body.
        if !expects {
            discard(&mut body).await;
        }
        return Err(BodyError::Bad(BadBody::TooLarge { limit }));
    }
    let mut all = Vec::with_capacity(size_hint as usize);
    while let Some(frame) = next(&mut body).await {
        let Ok(frame) = frame else { return Err(BodyError::Gone) };
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > limit {
            discard(&mut body).await;
            return Err(BodyError::Bad(BadBody::TooLarge { limit }));
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// Discards a part of the body of a request that is refused, so that its sender reads the response.
pub(super) async fn waste(request: Request<Incoming>) {
    if !request.headers().contains_key(header::EXPECT) {
        discard(&mut request.into_body()).await;
    }
}

/// Discards the rest of a body for a while. If the connection closed while data arrives, TCP would
/// reset it and the response would be lost.
pub(super) async fn discard(body: &mut Incoming) {
    let wasting = async {
        let mut wasted = 0;
        while let Some(Ok(frame)) = next(body).await {
            wasted += frame.data_ref().map_or(0, |data| data.len());
            if wasted > WASTE_BYTES_MAX {
                break;
            }
        }
    };
    // The response is sent even if the deadline passed.
    let _late = timeout(WASTE_DEADLINE, wasting).await;
}

async fn next(body: &mut Incoming) -> Option<hyper::Result<hyper::body::Frame<bytes::Bytes>>> {
    poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

fn late() -> BadBody {
    let seconds = BODY_DEADLINE.as_secs();
    BadBody::Malformed(format!("the body was not complete after {seconds} s"))
}
