//! Opens a session from the command line.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use toolstack::cgroup::client_access;
use xenapi::client::{Address, Client, ClientError, KnownServers};
use xenapi::envelope::Encoding;

use crate::arguments::Arguments;
use crate::error::{XeError, unexplained};

/// API sockets of this host: Ringway's daemon, and XenServer's.
const SOCKETS: [&str; 2] = ["/run/ringway/ringwayd.sock", "/var/lib/xcp/xapi"];
/// Names of this host. Without a port, they mean the socket.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Default ports of a server with TLS and without.
const PORTS: (u16, u16) = (443, 80);
/// Default user.
const USER: &str = "root";
/// Name of this program as the originator of a session.
const ORIGINATOR: &str = "xe";
/// Maximum size of a settings file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Environment of the program: the user's home directory and settings.
#[derive(Debug, Default)]
pub(crate) struct ClientEnv {
    file: String,
    extra: String,
}

impl ClientEnv {
    /// Reads the environment of the current user.
    pub(crate) fn of_user() -> Result<Self, XeError> {
        let file = home().map(|home| settings(&home.join(".xe"))).transpose()?;
        let extra = match std::env::var("XE_EXTRA_ARGS") {
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(XeError::error("XE_EXTRA_ARGS is not UTF-8: set it again"));
            }
            extra => extra.unwrap_or_default(),
        };
        Ok(Self { file: file.unwrap_or_default(), extra })
    }

    /// Creates an environment with these contents of `~/.xe` and `XE_EXTRA_ARGS`.
    #[cfg(test)]
    pub(crate) fn of_text(file: &str, extra: &str) -> Self {
        Self { file: file.to_owned(), extra: extra.to_owned() }
    }

    /// Returns the `name=value` lines of `~/.xe`.
    pub(crate) fn file_words(&self) -> Vec<String> {
        let lines = self.file.lines().map(str::trim);
        let pairs = lines.filter(|line| !line.starts_with('#')).filter_map(|l| l.split_once('='));
        pairs.map(|(name, value)| format!("{}={}", name.trim(), value.trim())).collect()
    }

    /// Returns the words of `XE_EXTRA_ARGS`. Commas separate them; a backslash escapes a comma.
    pub(crate) fn extra_words(&self) -> Vec<String> {
        let (mut words, mut word) = (Vec::new(), String::new());
        let mut chars = self.extra.chars();
        while let Some(c) = chars.next() {
            match c {
                ',' => words.push(std::mem::take(&mut word)),
                '\\' => word.extend(chars.next()),
                c => word.push(c),
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        words
    }
}

/// Joins the control slice of this host's daemon if permitted, so that this program is fast while
/// guests are busy. Without permission it works as well.
pub(crate) fn join_control(arguments: &Arguments) {
    if let Address::Unix(socket) = address(arguments, KnownServers::in_file) {
        client_access::join(&socket);
    }
}

/// Opens a session with the server that the arguments name. Trusts the certificate of a new server,
/// and prints that.
pub(crate) fn login(arguments: &Arguments) -> Result<Client, XeError> {
    login_at(address(arguments, KnownServers::in_file), arguments)
}

/// Opens a session with the server that the arguments name, if its certificate is known.
pub(crate) fn login_known(arguments: &Arguments) -> Result<Client, XeError> {
    login_at(address(arguments, KnownServers::known_in), arguments)
}

fn login_at(address: Address, arguments: &Arguments) -> Result<Client, XeError> {
    let (user, password) = credentials(arguments)?;
    let mut client = Client::connect(address, Encoding::Json)?;
    if let Some(found) = client.newly_trusted() {
        // Without a reader of this note, the session begins all the same.
        let address = client.address();
        let _ = writeln!(io::stderr(), "Note: {address} is trusted from now on: {found}");
    }
    if matches!(client.address(), Address::Unix(_)) && user == USER {
        client.use_connection_session(ORIGINATOR);
        return Ok(client);
    }
    match client.login(&user, &password, ORIGINATOR) {
        Ok(()) => Ok(client),
        Err(ClientError::Api(error)) if error.code == "SESSION_AUTHENTICATION_FAILED" => {
            Err(XeError::NotAdmitted(unexplained(&error)))
        }
        // There is no session in which the error could be explained later.
        Err(ClientError::Api(error)) => Err(XeError::Explained(unexplained(&error))),
        Err(error) => Err(error.into()),
    }
}

fn address(arguments: &Arguments, trust: fn(PathBuf) -> KnownServers) -> Address {
    let server = arguments.server.as_deref().unwrap_or_default();
    if server.starts_with('/') {
        return Address::Unix(server.into());
    }
    let local = server.is_empty() || LOCAL.contains(&server);
    if local && arguments.port.is_none() {
        return Address::Unix(socket());
    }
    let host = if server.is_empty() { "127.0.0.1" } else { server };
    // A connection within the host needs no encryption, as in XenServer.
    if arguments.plain.unwrap_or(local) {
        return Address::Plain(host.to_owned(), arguments.port.unwrap_or(PORTS.1));
    }
    let known_servers = trust(home().unwrap_or_default().join(".xe-trust"));
    Address::Tls(host.to_owned(), arguments.port.unwrap_or(PORTS.0), known_servers)
}

/// Returns the first socket that exists, otherwise the daemon's, for the error message.
fn socket() -> PathBuf {
    let there = SOCKETS.iter().find(|path| Path::new(path).exists());
    PathBuf::from(there.or(SOCKETS.first()).copied().unwrap_or_default())
}

fn credentials(arguments: &Arguments) -> Result<(String, String), XeError> {
    let Some(file) = &arguments.password_file else {
        let user = arguments.username.as_deref().unwrap_or(USER);
        return Ok((user.to_owned(), arguments.password.clone().unwrap_or_default()));
    };
    let text = read_file(Path::new(file)).map_err(|error| {
        XeError::error(format!("cannot read the password file {file}: {error}"))
    })?;
    let mut lines = text.lines();
    match (lines.next(), lines.next()) {
        (Some(user), Some(password)) => Ok((user.to_owned(), password.to_owned())),
        _ => Err(XeError::error(format!(
            "the password file {file} needs two lines: the name of the user, and the password"
        ))),
    }
}

pub(crate) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

/// Reads `~/.xe`, which may be absent. Any other failure is an error: the file may name another
/// server, and a command must not reach the wrong one.
fn settings(path: &Path) -> Result<String, XeError> {
    match read_file(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(String::new())
        }
        read => read.map_err(|error| {
            let path = path.display();
            XeError::error(format!(
                "cannot read {path}, which may name another server: {error}: correct the file, or \
                 set HOME to a directory without one"
            ))
        }),
    }
}

fn read_file(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(server: &str, port: Option<u16>, plain: Option<bool>) -> String {
        let server = Some(server.to_owned()).filter(|server| !server.is_empty());
        let arguments = Arguments { server, port, plain, ..Arguments::default() };
        match address(&arguments, KnownServers::in_file) {
            Address::Unix(path) => path.display().to_string(),
            Address::Plain(host, port) => format!("plain {host} {port}"),
            Address::Tls(host, port, _) => format!("tls {host} {port}"),
        }
    }

    #[test]
    fn where_a_server_is() {
        let socket = socket().display().to_string();
        for here in ["", "localhost", "127.0.0.1"] {
            assert_eq!(at(here, None, None), socket, "{here}");
        }
        assert_eq!(at("/tmp/s", None, None), "/tmp/s");
        assert_eq!(at("h", None, None), "tls h 443");
        assert_eq!(at("h", Some(8443), None), "tls h 8443");
        assert_eq!(at("h", None, Some(true)), "plain h 80");
        assert_eq!(at("", Some(8080), None), "plain 127.0.0.1 8080");
        assert_eq!(at("127.0.0.1", Some(8443), Some(false)), "tls 127.0.0.1 8443");
    }

    #[test]
    fn words_of_the_environment() {
        let around = ClientEnv::of_text(" server = h \n#x=y\nnothing\n", "-s,h,,a=b\\,c\\");
        assert_eq!(around.file_words(), ["server=h"]);
        assert_eq!(around.extra_words(), ["-s", "h", "a=b,c"]);
    }

    #[test]
    fn settings_that_cannot_be_read_are_no_settings() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(".xe");
        assert_eq!(settings(&file).unwrap(), "");
        assert_eq!(settings(Path::new("/dev/null/.xe")).unwrap(), "");
        std::fs::write(&file, "server=h\n").unwrap();
        assert_eq!(settings(&file).unwrap(), "server=h\n");
        for bad in [vec![0xff], vec![b'#'; FILE_BYTES_MAX as usize + 1]] {
            std::fs::write(&file, bad).unwrap();
            let text = settings(&file).unwrap_err().errors();
            assert!(text.contains("another server") && text.contains(".xe"), "{text}");
        }
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(settings(&file).is_err());
    }

    #[test]
    fn a_file_of_name_and_password() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pw").display().to_string();
        let arguments = Arguments { password_file: Some(file.clone()), ..Arguments::default() };
        assert!(credentials(&arguments).unwrap_err().errors().contains("cannot read"));
        std::fs::write(&file, "root\n").unwrap();
        assert!(credentials(&arguments).unwrap_err().errors().contains("two lines"));
        std::fs::write(&file, "op\nsecret\n").unwrap();
        assert_eq!(credentials(&arguments).unwrap(), ("op".to_owned(), "secret".to_owned()));
    }
}
