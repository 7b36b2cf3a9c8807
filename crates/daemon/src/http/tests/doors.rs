//! TCP with and without TLS.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Echo, ask, is_closed, json, port};
use crate::http::{ApiHandler, ApiListener, Server, tls_identity};

#[tokio::test]
async fn tls_and_plain_are_different_doors() {
    let dir = tempfile::tempdir().unwrap();
    let tls = tls_identity(dir.path(), "host-1").unwrap().config;
    let api_handler: Arc<dyn ApiHandler> = Arc::new(Echo::default());
    let mut api_listeners = Vec::new();
    for listen in ["127.0.0.1:0", "127.0.0.1:0,plain"] {
        api_listeners.push(ApiListener::tcp(listen.parse().unwrap(), &tls).await.unwrap());
    }
    let ports: Vec<u16> = api_listeners.iter().map(port).collect();
    let server = Server::begin(api_listeners, &api_handler, Default::default());

    let mut roots = RootCertStore::empty();
    let pem = dir.path().join("certificate.pem");
    roots.add(CertificateDer::from_pem_file(&pem).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    for name in ["localhost", "127.0.0.1", "host-1"] {
        let tcp = TcpStream::connect(("127.0.0.1", ports[0])).await.unwrap();
        let name = ServerName::try_from(name).unwrap();
        let mut stream = connector.connect(name, tcp).await.unwrap();
        let (_, body) = ask(&mut stream, "/jsonrpc", &json("test.peer")).await;
        assert!(body.contains("Tcp(127.0.0.1:"), "{body}");
    }
    // A client without TLS is disconnected and does not delay the others.
    let mut silent = TcpStream::connect(("127.0.0.1", ports[0])).await.unwrap();
    let mut wrong = TcpStream::connect(("127.0.0.1", ports[0])).await.unwrap();
    wrong.write_all(b"POST / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    let _reset = wrong.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("HTTP"));
    let mut plain = TcpStream::connect(("127.0.0.1", ports[1])).await.unwrap();
    let (_, body) = ask(&mut plain, "/jsonrpc", &json("test.peer")).await;
    assert!(body.contains("Tcp(127.0.0.1:") && body.contains("connection_session: None"), "{body}");
    server.stop().await;
    assert!(is_closed(&mut silent).await);
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let tls = tls_identity(dir.path(), "h").unwrap().config;
    let first = ApiListener::tcp("127.0.0.1:0,plain".parse().unwrap(), &tls).await.unwrap();
    let taken = first.to_string();
    let error = ApiListener::tcp(taken.parse().unwrap(), &tls).await.unwrap_err().to_string();
    assert!(error.contains(&taken) && error.contains("--listen"), "{error}");
}
