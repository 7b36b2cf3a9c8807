//! One call: its body comes in, its answer goes out.

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
use crate::dispatch::Peer;

/// How long a body may take to come in.
const BODY_DEADLINE: Duration = Duration::from_secs(30);
/// How much of a body that is too long is thrown away so that its sender comes to read the answer...
const WASTE_BYTES_MAX: usize = 1 << 20;
/// ...and how long.
const WASTE_DEADLINE: Duration = Duration::from_secs(2);
/// How long the server took, for those who measure.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Reads a call, has it carried out, and answers.
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

/// How a call ends. What only waits is cut off when the server stops; a mistake in a call ends it
/// alone.
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
            tracing::error!("a call was not carried out, by a mistake in this program");
            let why = "the call was not carried out: the log of the server says where";
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

/// Why there is no body.
enum BodyError {
    Bad(BadBody),
    /// Its sender has left.
    Gone,
}

/// All of a body. Nothing past the limit is kept.
async fn read(mut body: Incoming, expects: bool) -> Result<Vec<u8>, BodyError> {
    let limit = Limits::CALL.bytes;
    let told = body.size_hint().lower();
    if told > limit as u64 {
        // Who asked first whether to send it has not sent it.
        if !expects {
            waste(&mut body).await;
        }
        return Err(BodyError::Bad(BadBody::TooLarge { limit }));
    }
    let mut all = Vec::with_capacity(told as usize);
    while let Some(frame) = next(&mut body).await {
        let Ok(frame) = frame else { return Err(BodyError::Gone) };
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > limit {
            waste(&mut body).await;
            return Err(BodyError::Bad(BadBody::TooLarge { limit }));
        }
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// Throws away what comes, for a while: a connection that ends before its sender has sent everything
/// is reset, and the answer is lost with it.
async fn waste(body: &mut Incoming) {
    let wasting = async {
        let mut wasted = 0;
        while let Some(Ok(frame)) = next(body).await {
            wasted += frame.data_ref().map_or(0, |data| data.len());
            if wasted > WASTE_BYTES_MAX {
                break;
            }
        }
    };
    // Late or not, it is answered now.
    let _late = timeout(WASTE_DEADLINE, wasting).await;
}

async fn next(body: &mut Incoming) -> Option<hyper::Result<hyper::body::Frame<bytes::Bytes>>> {
    poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

fn late() -> BadBody {
    let seconds = BODY_DEADLINE.as_secs();
    BadBody::Malformed(format!("it was not all there after {seconds} s"))
}
