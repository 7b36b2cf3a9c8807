//! A client of the API: blocking, one connection, no runtime.
//!
//! # Model
//! A [`Client`] speaks to one [`Address`] and puts its session in front of every call that takes
//! one. Results are of the types that the [table](crate::table) says. A connection is kept from
//! call to call and made anew when the server has closed it meanwhile. A session outlives it, but
//! that of who [is root](Client::use_connection_session), which is another one then.
//!
//! A call that may take long is [run](Client::run) as a task, whose end is an event: nothing is
//! asked again and again.
//!
//! # Limits
//! An answer is at most [`Limits::ANSWER`](crate::limits::Limits::ANSWER), its head
//! [`HEAD_BYTES_MAX`]. A call is answered within [`ANSWER_DEADLINE`], a connection is there within
//! [`CONNECT_DEADLINE`].
//!
//! # Errors
//! [`ClientError`]. One that the API itself answers is [`ClientError::Api`]. A call whose answer got
//! lost is never sent again: it may have been done.
//!
//! # How to test
//! Against a server in the same process, made of [`envelope`].

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
mod trust;
mod tunnel;

use std::time::{Duration, Instant};

pub use address::Address;
pub use error::ClientError;
pub use events::{Batch, Event};
pub use http::HEAD_BYTES_MAX;
pub use pending_call::PendingCall;
pub use record::Record;
pub use trust::{Fingerprint, KnownServers};
pub use tunnel::Tunnel;

use crate::body::Encoding;
use crate::envelope::{self, Call, Dialect, Id, Version};
use crate::table::Type;
use crate::table::resolve::{Method, resolve};
use crate::{Value, coerce};
use stream::Link;

/// How long a server may take to answer: longer than any call waits that makes no task.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(300);
/// How long a connection may take, TLS included.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Which version of this program's API is asked for at a login.
const API_VERSION: &str = "2.5";

/// Somebody who calls the API.
#[derive(Debug)]
pub struct Client {
    address: Address,
    encoding: Encoding,
    link: Option<Link>,
    session: Option<String>,
    /// Calls need no session of their own; a server that wants one gets this originator.
    own: Option<String>,
    calls: u64,
}

impl Client {
    /// Of the server at this address, to which it connects.
    ///
    /// # Errors
    /// Nobody is there, or the server is not the one that is trusted.
    pub fn connect(address: Address, encoding: Encoding) -> Result<Self, ClientError> {
        let link = Link::open(&address, Instant::now() + CONNECT_DEADLINE)?;
        Ok(Self { address, encoding, link: Some(link), session: None, own: None, calls: 0 })
    }

    /// Of the server of this host, at its socket; it speaks JSON.
    ///
    /// # Errors
    /// Nobody is there.
    pub fn unix(socket: impl Into<std::path::PathBuf>) -> Result<Self, ClientError> {
        Self::connect(Address::Unix(socket.into()), Encoding::Json)
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What the server's certificate is remembered by, if this connection was the first to see it.
    pub fn newly_trusted(&self) -> Option<&Fingerprint> {
        self.link.as_ref().and_then(Link::newly_trusted)
    }

    /// Begins a session. At a socket of the host name and password say nothing and may be empty.
    ///
    /// # Errors
    /// `SESSION_AUTHENTICATION_FAILED`, and as for every call.
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

    /// Lets the connection be the session: at a socket of the host, where the server knows who calls,
    /// nobody need log in or out. At a server that wants a session all the same, root logs in with
    /// the first call. Nothing happens at another address.
    pub fn use_connection_session(&mut self, originator: &str) {
        if matches!(self.address, Address::Unix(_)) {
            self.own = Some(originator.to_owned());
        }
    }

    /// The session, once there is one. None of a connection that is one.
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Ends the session, if there is one: that of a connection ends with it.
    ///
    /// # Errors
    /// As for every call.
    pub fn logout(&mut self) -> Result<(), ClientError> {
        if self.session.is_some() {
            self.call("session.logout", &[])?;
            self.session = None;
        }
        Ok(())
    }

    /// Calls, and waits for the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn call(&mut self, method: &str, params: &[Value]) -> Result<Value, ClientError> {
        self.call_within(method, params, ANSWER_DEADLINE)
    }

    /// The record of this reference.
    ///
    /// # Errors
    /// `HANDLE_INVALID`, and as for every call.
    pub fn record(&mut self, class: &str, reference: &str) -> Result<Record, ClientError> {
        let method = format!("{class}.get_record");
        let record = self.call(&method, &[Value::text(reference)])?;
        Record::of(record).ok_or_else(|| self.nonsense(&method, "a record is no map"))
    }

    /// All records of a class with their references.
    ///
    /// # Errors
    /// As for every call.
    pub fn records(&mut self, class: &str) -> Result<Vec<(String, Record)>, ClientError> {
        self.listed(&format!("{class}.get_all_records"), &[])
    }

    /// Those of them for which an [expression](crate::filter) is true.
    ///
    /// # Errors
    /// As for every call.
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
            return Err(self.nonsense(method, "the records are no map"));
        };
        let all = records.into_iter().map(|(name, value)| Some((name, Record::of(value)?)));
        all.collect::<Option<_>>().ok_or_else(|| self.nonsense(method, "a record is no map"))
    }

    /// Calls; the answer may take this long.
    fn call_within(
        &mut self,
        method: &str,
        params: &[Value],
        within: Duration,
    ) -> Result<Value, ClientError> {
        match self.call_once(method, params, within) {
            // It was not carried out, or only waited.
            Err(ClientError::Api(error))
                if error.code == "SESSION_INVALID" && self.own.is_some() =>
            {
                self.login_as_root()?;
                self.call_once(method, params, within)
            }
            told => told,
        }
    }

    /// At a server that does not take a connection for a session.
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
            .map_err(|_| self.nonsense(method, "its type is another"))
    }

    fn dialect(&mut self) -> Dialect {
        self.calls += 1;
        match self.encoding {
            Encoding::Xml => Dialect::Xml,
            Encoding::Json => Dialect::Json(Version::V2, Id::from(self.calls)),
        }
    }

    /// Sends a call and reads its answer, on the connection that there is or on a new one.
    fn exchange(&mut self, call: &Call, within: Duration) -> Result<Value, ClientError> {
        let kept = self.link.take().filter(Link::is_open);
        let mut link = match kept {
            Some(link) => link,
            None => Link::open(&self.address, Instant::now() + CONNECT_DEADLINE)?,
        };
        link.set_deadline(Some(Instant::now() + within));
        let told = http::exchange(&mut link, &self.address, call);
        let answer = told.map_err(|http_error| self.failed(&call.method, http_error, within))?;
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
                ClientError::Nonsense { at, method, why: why.to_owned() }
            }
        }
    }

    fn nonsense(&self, method: &str, why: &str) -> ClientError {
        let (at, method) = (self.address.to_string(), method.to_owned());
        ClientError::Nonsense { at, method, why: why.to_owned() }
    }
}

/// What is answered: by a task, its reference.
fn type_of(means: &Method, by_task: bool) -> Type {
    if by_task { Type::Ref("task") } else { means.result() }
}
