//! Blocking client of the API: one connection, no runtime.
//!
//! # Model
//! A [`Client`] talks to one [`Address`] and puts its session before the parameters of every call
//! that takes one. Results have the types of the [table](crate::table). The connection is reused
//! for the next call, and made anew if the server has closed it. A session outlives its connection.
//! The exception is a session that [is the connection](Client::use_connection_session): a new
//! connection is a new session.
//!
//! A call that may take long [runs](Client::run) as a task. An event reports its end, so the client
//! does not poll.
//!
//! # Limits
//! A response has at most [`Limits::ANSWER`](crate::limits::Limits::ANSWER), and its head at most
//! [`HEAD_BYTES_MAX`]. The response to a call must arrive within [`ANSWER_DEADLINE`], and a
//! connection within [`CONNECT_DEADLINE`].
//!
//! # Errors
//! [`ClientError`]. Errors of the API itself are [`ClientError::Api`]. A call whose response was
//! lost is never sent again, because the server may have carried it out.
//!
//! # How to test
//! Against a server in the same process, which uses [`envelope`].

mod address;
mod error;
mod events;
mod http;
mod pending_call;
mod record;
mod stream;
#[cfg(test)]
mod tests;
mod tls;
mod transfer;
mod trust;
mod tunnel;

use std::time::{Duration, Instant};

pub use address::Address;
pub use error::ClientError;
pub use events::{Batch, Event};
pub use http::HEAD_BYTES_MAX;
pub use pending_call::PendingCall;
pub use record::Record;
pub use transfer::Download;
pub use trust::{Fingerprint, KnownServers};
pub use tunnel::Tunnel;

use crate::body::Encoding;
use crate::envelope::{self, Call, Dialect, Id, Version};
use crate::table::Type;
use crate::table::resolve::{Method, resolve};
use crate::{Value, coerce};
use stream::Link;

/// Longest time for a response, above the waiting time of any call without a task.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(300);
/// Longest time for a connection, including the TLS handshake.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// API version that the client requests at login.
const API_VERSION: &str = "2.5";

/// Client of the API.
#[derive(Debug)]
pub struct Client {
    address: Address,
    encoding: Encoding,
    link: Option<Link>,
    session: Option<String>,
    /// Originator for a login as root. Set if calls use the session of the connection. The client
    /// logs in only if the server requires a session.
    own: Option<String>,
    calls: u64,
}

impl Client {
    /// Connects to the server at this address.
    ///
    /// # Errors
    /// The server cannot be reached, or it is not the trusted one.
    pub fn connect(address: Address, encoding: Encoding) -> Result<Self, ClientError> {
        let link = Link::open(&address, Instant::now() + CONNECT_DEADLINE)?;
        Ok(Self { address, encoding, link: Some(link), session: None, own: None, calls: 0 })
    }

    /// Connects to the server of this host through its socket, with JSON.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn unix(socket: impl Into<std::path::PathBuf>) -> Result<Self, ClientError> {
        Self::connect(Address::Unix(socket.into()), Encoding::Json)
    }

    /// Returns the address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the fingerprint of the server's certificate if this connection was the first to see
    /// it.
    pub fn newly_trusted(&self) -> Option<&Fingerprint> {
        self.link.as_ref().and_then(Link::newly_trusted)
    }

    /// Starts a session. On a Unix socket, name and password are ignored and may be empty.
    ///
    /// # Errors
    /// `SESSION_AUTHENTICATION_FAILED`, and those of [`call`](Self::call).
    pub fn login(
        &mut self,
        user: &str,
        password: &str,
        originator: &str,
    ) -> Result<(), ClientError> {
        let params = [user, password, API_VERSION, originator].map(Value::text);
        match self.call("session.login_with_password", &params)? {
            Value::Str(session) => self.session = Some(session),
            _ => return Err(self.nonsense("session.login_with_password", "a session is no text")),
        }
        Ok(())
    }

    /// Uses the connection as the session. On a Unix socket the server knows the caller, so no
    /// login or logout is needed. If the server still requires a session, the first call logs in as
    /// root. At other addresses, this method does nothing.
    pub fn use_connection_session(&mut self, originator: &str) {
        if matches!(self.address, Address::Unix(_)) {
            self.own = Some(originator.to_owned());
        }
    }

    /// Returns the session, once there is one. Returns `None` if the connection is the session.
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Ends the session, if there is one. A session that is the connection ends with the
    /// connection.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn logout(&mut self) -> Result<(), ClientError> {
        if self.session.is_some() {
            self.call("session.logout", &[])?;
            self.session = None;
        }
        Ok(())
    }

    /// Calls a method and waits for the response.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call(&mut self, method: &str, params: &[Value]) -> Result<Value, ClientError> {
        self.call_within(method, params, ANSWER_DEADLINE)
    }

    /// Returns the record of this reference.
    ///
    /// # Errors
    /// `HANDLE_INVALID`, and those of [`call`](Self::call).
    pub fn record(&mut self, class: &str, reference: &str) -> Result<Record, ClientError> {
        let method = format!("{class}.get_record");
        let record = self.call(&method, &[Value::text(reference)])?;
        Record::of(record).ok_or_else(|| self.nonsense(&method, "a record is not a map"))
    }

    /// Returns all records of a class with their references.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn records(&mut self, class: &str) -> Result<Vec<(String, Record)>, ClientError> {
        self.listed(&format!("{class}.get_all_records"), &[])
    }

    /// Returns the records of a class for which an [expression](crate::filter) is true.
    ///
    /// # Errors
    /// Those of [`call`](Self::call).
    pub fn records_where(
        &mut self,
        class: &str,
        expression: &str,
    ) -> Result<Vec<(String, Record)>, ClientError> {
        let method = format!("{class}.get_all_records_where");
        self.listed(&method, &[Value::text(expression)])
    }

    fn listed(
        &mut self,
        method: &str,
        params: &[Value],
    ) -> Result<Vec<(String, Record)>, ClientError> {
        let Value::Map(records) = self.call(method, params)? else {
            return Err(self.nonsense(method, "the records are not a map"));
        };
        let all = records.into_iter().map(|(name, value)| Some((name, Record::of(value)?)));
        all.collect::<Option<_>>().ok_or_else(|| self.nonsense(method, "a record is not a map"))
    }

    /// Calls a method. The response may take this long.
    fn call_within(
        &mut self,
        method: &str,
        params: &[Value],
        within: Duration,
    ) -> Result<Value, ClientError> {
        match self.call_once(method, params, within) {
            // The call was not carried out, or only waited.
            Err(ClientError::Api(error))
                if error.code == "SESSION_INVALID" && self.own.is_some() =>
            {
                self.login_as_root()?;
                self.call_once(method, params, within)
            }
            result => result,
        }
    }

    /// Logs in as root at a server that requires a session on the connection.
    fn login_as_root(&mut self) -> Result<(), ClientError> {
        let Some(originator) = self.own.take() else { return Ok(()) };
        let outcome = self.login("root", "", &originator);
        if outcome.is_err() {
            self.own = Some(originator);
        }
        outcome
    }

    fn call_once(
        &mut self,
        method: &str,
        params: &[Value],
        within: Duration,
    ) -> Result<Value, ClientError> {
        let means = resolve(method);
        let mut all = Vec::with_capacity(params.len() + 1);
        if means.is_none_or(|(means, _)| means.needs_session()) {
            all.push(Value::text(self.session.as_deref().unwrap_or_default()));
        }
        all.extend_from_slice(params);
        let call = Call { method: method.to_owned(), params: all, dialect: self.dialect() };
        let result = self.exchange(&call, within)?;
        let Some((means, by_task)) = means else { return Ok(result) };
        coerce::coerce(result, &type_of(&means, by_task), "the result")
            .map_err(|_| self.nonsense(method, "the result has another type"))
    }

    fn dialect(&mut self) -> Dialect {
        self.calls += 1;
        match self.encoding {
            Encoding::Xml => Dialect::Xml,
            Encoding::Json => Dialect::Json(Version::V2, Id::from(self.calls)),
        }
    }

    /// Sends a call and reads its response, on the existing connection or a new one.
    fn exchange(&mut self, call: &Call, within: Duration) -> Result<Value, ClientError> {
        let kept = self.link.take().filter(Link::is_open);
        let mut link = match kept {
            Some(link) => link,
            None => Link::open(&self.address, Instant::now() + CONNECT_DEADLINE)?,
        };
        link.set_deadline(Some(Instant::now() + within));
        let result = http::exchange(&mut link, &self.address, call);
        let answer = result.map_err(|http_error| self.failed(&call.method, http_error, within))?;
        if answer.keep {
            self.link = Some(link);
        }
        let outcome = envelope::outcome(call, &answer.body)
            .map_err(|bad| self.nonsense(&call.method, &bad.to_string()))?;
        outcome.map_err(ClientError::Api)
    }

    fn failed(&self, method: &str, http_error: http::HttpError, within: Duration) -> ClientError {
        let (at, method) = (self.address.to_string(), method.to_owned());
        match http_error {
            http::HttpError::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                ClientError::Late { what: method, after: within }
            }
            http::HttpError::Io(source) => ClientError::Lost { at, method, source },
            http::HttpError::Refused(_, why) => ClientError::Refused { at, why },
            http::HttpError::Status(status) => ClientError::Http { at, status },
            http::HttpError::Malformed(why) => {
                ClientError::InvalidResponse { at, method, why: why.to_owned() }
            }
        }
    }

    fn nonsense(&self, method: &str, why: &str) -> ClientError {
        let (at, method) = (self.address.to_string(), method.to_owned());
        ClientError::InvalidResponse { at, method, why: why.to_owned() }
    }
}

/// Returns the type of the response. For a task, this is a reference.
fn type_of(means: &Method, by_task: bool) -> Type {
    if by_task { Type::Ref("task") } else { means.result() }
}
