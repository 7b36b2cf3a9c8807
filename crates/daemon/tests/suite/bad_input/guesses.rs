//! Password guesses over the network.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use testkit::process::eventually;

use super::World;

/// Sum of the first two delays of an address.
const FIRST_TWO: Duration = Duration::from_secs(3);

/// Returns a loopback address.
fn local(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, number)
}

/// Sends a login as root from this address.
fn ask(from: Ipv4Addr, port: u16, password: &str) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let connected = async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect((Ipv4Addr::LOCALHOST, port).into()).await.unwrap().into_std().unwrap()
    };
    let mut stream = runtime.block_on(connected);
    stream.set_nonblocking(false).unwrap();
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"session.login_with_password","params":["root","{password}","1.0","t"]}}"#
    );
    let head = format!("Host: h\r\nConnection: close\r\nContent-Length: {}", body.len());
    write!(stream, "POST /jsonrpc HTTP/1.1\r\n{head}\r\n\r\n{body}").unwrap();
    stream
}

/// Returns whether the login succeeded.
fn is_in(mut stream: TcpStream) -> bool {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (is_in, is_refused) = (
        answer.contains("\"result\":\"OpaqueRef:"),
        answer.contains("SESSION_AUTHENTICATION_FAILED"),
    );
    assert!(is_in != is_refused, "{answer}");
    is_in
}

#[test]
fn who_guesses_waits_and_other_addresses_do_not() {
    let mut world = World::new();
    let url = world.daemon.url().unwrap();
    let port = url.rsplit_once(':').unwrap().1.parse().unwrap();
    let password = world.daemon.password().unwrap();
    let guess = |from| ask(from, port, "guess");
    let began = Instant::now();
    for _ in 0..2 {
        assert!(!is_in(guess(local(1))));
    }
    assert!(began.elapsed() >= FIRST_TWO, "{:?}", began.elapsed());
    // The next guess is answered after at least 4 s. Another address, whose first guess takes 1 s,
    // must fail and log in before. On a busy host, one of several attempts must show this.
    let mut overtakes = |number: u8| {
        let waits = guess(local(1));
        // The daemon logs the failure before the delay begins.
        let line = format!("from Tcp({}) was refused", waits.local_addr().unwrap());
        eventually(&line, || world.daemon.process.stderr().contains(&line));
        let (sender, receiver) = mpsc::channel();
        let waiting = std::thread::spawn(move || {
            let is_in = is_in(waits);
            // The receiver may be gone.
            let _late = sender.send(());
            is_in
        });
        assert!(!is_in(guess(local(number))));
        assert!(is_in(ask(local(number), port, &password)));
        let is_first = receiver.try_recv().is_err();
        assert!(!waiting.join().unwrap());
        is_first
    };
    assert!((2..12).any(&mut overtakes));
    // The right password works from the delayed address, too.
    assert!(is_in(ask(local(1), port, &password)));
}
