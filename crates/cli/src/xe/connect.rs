//! From the command line to a session.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use toolstack::cgroup::client_access;
use xenapi::client::{Address, Client, ClientError, KnownServers};
use xenapi::envelope::Encoding;

use crate::arguments::Arguments;
use crate::error::XeError;

/// Where the daemon of this host is; where XenServer's is.
const SOCKETS: [&str; 2] = ["/run/ringway/ringwayd.sock", "/var/lib/xcp/xapi"];
/// Names of this host, at which the socket is used unless a port is named.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Port of a server with TLS, and of one without.
const PORTS: (u16, u16) = (443, 80);
/// Who logs in unless somebody else is named.
const USER: &str = "root";
/// How this program names itself to the server.
const ORIGINATOR: &str = "xe";
/// Longest file of settings, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// What surrounds the program: the user's home, and what is set there.
#[derive(Debug, Default)]
pub(crate) struct ClientEnv {
    file: String,
    extra: String,
}

impl ClientEnv {
    /// Of the user who runs this.
    pub(crate) fn of_user() -> Result<Self, XeError> {
        let file = home().map(|home| settings(&home.join(".xe"))).transpose()?;
        let extra = match std::env::var("XE_EXTRA_ARGS") {
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(XeError::error("XE_EXTRA_ARGS is not UTF-8: set it anew"));
            }
            extra => extra.unwrap_or_default(),
        };
        Ok(Self { file: file.unwrap_or_default(), extra })
    }

    /// What would stand in `~/.xe` and `XE_EXTRA_ARGS`.
    #[cfg(test)]
    pub(crate) fn of_text(file: &str, extra: &str) -> Self {
        Self { file: file.to_owned(), extra: extra.to_owned() }
    }

    /// `name=value` lines of `~/.xe`.
    pub(crate) fn file_words(&self) -> Vec<String> {
        let lines = self.file.lines().map(str::trim);
        let pairs = lines.filter(|line| !line.starts_with('#')).filter_map(|l| l.split_once('='));
        pairs.map(|(name, value)| format!("{}={}", name.trim(), value.trim())).collect()
    }

    /// Words of `XE_EXTRA_ARGS`, with commas between them; a backslash before a comma keeps it.
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

/// Takes part in the share of the CPU that the daemon of this host keeps for control, if we may: then
/// this program is as fast on a host whose guests are busy. Otherwise it works as well.
pub(crate) fn join_control(arguments: &Arguments) {
    if let Address::Unix(socket) = address(arguments, KnownServers::in_file) {
        client_access::join(&socket);
    }
}

/// A session with the server that the arguments name. One that is met first is trusted, and that is
/// told.
pub(crate) fn login(arguments: &Arguments) -> Result<Client, XeError> {
    login_at(address(arguments, KnownServers::in_file), arguments)
}

/// A session with the server that the arguments name, if its certificate is known already.
pub(crate) fn login_known(arguments: &Arguments) -> Result<Client, XeError> {
    login_at(address(arguments, KnownServers::known_in), arguments)
}

fn login_at(address: Address, arguments: &Arguments) -> Result<Client, XeError> {
    let (user, password) = credentials(arguments)?;
    let mut client = Client::connect(address, Encoding::Json)?;
    if let Some(found) = client.newly_trusted() {
        eprintln!("Note: {} is trusted from now on: {found}", client.address());
    }
    if matches!(client.address(), Address::Unix(_)) && user == USER {
        client.use_connection_session(ORIGINATOR);
        return Ok(client);
    }
    match client.login(&user, &password, ORIGINATOR) {
        Ok(()) => Ok(client),
        Err(ClientError::Api(error)) if error.code == "SESSION_AUTHENTICATION_FAILED" => {
            Err(XeError::NotAdmitted)
        }
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
    // As XenServer's: nobody listens on the way from a host to itself.
    if arguments.plain.unwrap_or(local) {
        return Address::Plain(host.to_owned(), arguments.port.unwrap_or(PORTS.1));
    }
    let known_servers = trust(home().unwrap_or_default().join(".xe-trust"));
    Address::Tls(host.to_owned(), arguments.port.unwrap_or(PORTS.0), known_servers)
}

/// The first that is there; the daemon's if none is, so that its name is told.
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

/// What `~/.xe` says, which need not be there. One that cannot be read may name another server, and
/// a command must not go to the wrong one.
fn settings(path: &Path) -> Result<String, XeError> {
    match read_file(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(String::new())
        }
        read => read.map_err(|error| {
            let path = path.display();
            XeError::error(format!(
                "cannot read {path}, which may name another server: {error}: see to the file, or \
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
            let told = settings(&file).unwrap_err().errors();
            assert!(told.contains("another server") && told.contains(".xe"), "{told}");
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
