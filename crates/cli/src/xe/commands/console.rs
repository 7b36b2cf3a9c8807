//! Console of a machine at this terminal.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use xenapi::client::Tunnel;

use super::Command;
use crate::error::XeError;
use crate::keyboard::Keyboard;
use crate::params::Params;
use crate::printer::Printed;
use crate::selector::{self, ANY_VM};
use crate::xe::XeSession;

/// Key that ends the connection: Ctrl-].
const END: u8 = 0x1d;
/// Bytes read at once.
const CHUNK_BYTES: usize = 4096;

pub(super) const COMMANDS: &[Command] =
    &[Command::own("console", "Shows the console of a machine; Ctrl-] ends it.", console)
        .of(&ANY_VM)
        .common()];

fn console(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let vm = selector::one(xe, params, &ANY_VM, &[])?;
    let mut place = None;
    for reference in vm.record.texts("consoles") {
        let console = xe.client().record("console", reference)?;
        if console.text("protocol") == "vt100" {
            place = Some(console.text("location").to_owned());
        }
    }
    let place = place
        .ok_or_else(|| XeError::error("the machine has no text console now: is it running?"))?;
    let path = path_of(&place)
        .ok_or_else(|| XeError::error(format!("the console is at {place}, which is no URL")))?;
    let tunnel = xe.client().tunnel(path)?;
    let failed = |error: io::Error| XeError::error(format!("the console is lost: {error}"));
    let keyboard = Keyboard::open();
    if keyboard.is_taken() {
        let _ = writeln!(io::stderr(), "Ctrl-] ends this console.\r");
    }
    let done = talk(tunnel, keyboard.is_taken());
    drop(keyboard);
    done.map_err(failed)?;
    Ok(Printed::nothing())
}

/// Returns a URL without its scheme and host, because the server is the connected one.
fn path_of(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.get(rest.find('/')?..)
}

/// Copies bytes in both directions until one side ends. If the server accepts no more, nothing
/// further is read from the keyboard.
fn talk(mut tunnel: Tunnel, terminal: bool) -> io::Result<()> {
    let (input, mut output) = (io::stdin(), io::stdout());
    let mut typed: Vec<u8> = Vec::new();
    let mut ended = false;
    loop {
        let ready = if tunnel.holds_bytes()? {
            (true, false)
        } else {
            wait(&tunnel, &input, typed.is_empty() && !ended, !typed.is_empty())?
        };
        if ready.0 && !show(&mut tunnel, &mut output)? {
            return Ok(());
        }
        if ready.1 {
            match keys(&input)? {
                // The input file has ended, but the guest may still send output.
                None => ended = true,
                Some(bytes) => typed = bytes,
            }
            if terminal && let Some(end) = typed.iter().position(|key| *key == END) {
                typed.truncate(end);
                send(&mut tunnel, &mut typed)?;
                return Ok(());
            }
        }
        send(&mut tunnel, &mut typed)?;
    }
}

/// Waits until the server or the keyboard is readable.
fn wait(
    tunnel: &Tunnel,
    input: &impl AsFd,
    reading: bool,
    writing: bool,
) -> io::Result<(bool, bool)> {
    let mut flags = PollFlags::IN;
    flags.set(PollFlags::OUT, writing);
    let keys = if reading { PollFlags::IN } else { PollFlags::empty() };
    let mut watched = [PollFd::new(tunnel, flags), PollFd::new(input, keys)];
    // poll(2) would report a closed keyboard repeatedly, even if no event of it is requested.
    let watched = if reading { &mut watched[..] } else { &mut watched[..1] };
    match poll(watched, None) {
        // A signal, for example because the window size has changed.
        Err(Errno::INTR) => return Ok((false, false)),
        polled => polled?,
    };
    let has_event = |at: usize, flags: PollFlags| {
        watched.get(at).is_some_and(|one| one.revents().intersects(flags))
    };
    let read = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
    Ok((has_event(0, read), has_event(1, read)))
}

/// Writes received bytes to `output`. Returns false if the server has closed the connection.
fn show(tunnel: &mut Tunnel, output: &mut impl Write) -> io::Result<bool> {
    let mut bytes = [0; CHUNK_BYTES];
    match tunnel.read(&mut bytes) {
        Ok(0) => Ok(false),
        Ok(count) => {
            output.write_all(bytes.get(..count).unwrap_or_default())?;
            output.flush()?;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns typed bytes; `None` at the end of the input.
fn keys(input: &impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; CHUNK_BYTES];
    let count = rustix::io::read(input, bytes.as_mut_slice())?;
    bytes.truncate(count);
    Ok((count > 0).then_some(bytes))
}

/// Sends the bytes that the server accepts now; the rest stays in `typed`.
fn send(tunnel: &mut Tunnel, typed: &mut Vec<u8>) -> io::Result<()> {
    while !typed.is_empty() {
        match tunnel.write(typed) {
            Ok(count) => drop(typed.drain(..count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_console() {
        let path = "/console?ref=OpaqueRef:1";
        for url in
            ["https://10.0.0.1/console?ref=OpaqueRef:1", "http://h:80/console?ref=OpaqueRef:1"]
        {
            assert_eq!(path_of(url), Some(path));
        }
        assert_eq!(path_of(path), Some(path));
        assert_eq!(path_of("https://h"), None);
        assert_eq!(path_of(""), None);
    }
}
