//! TLS with a server whose certificate is self-signed and recognized by its fingerprint.

use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use super::{ClientError, Fingerprint};

/// Completes the handshake and returns the fingerprint of the server's certificate. No part of a
/// call has been sent then.
pub(super) fn begin(
    through: &mut (impl Read + Write),
    host: &str,
    at: &str,
) -> Result<(ClientConnection, Fingerprint), ClientError> {
    let failed = |why: String| ClientError::Tls { at: at.to_owned(), why };
    let mut connection = prepare(host).map_err(failed)?;
    connection.complete_io(through).map_err(|error| failed(cause(&error)))?;
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    let found = certificate.and_then(|certificate| fingerprint(certificate));
    let found = found.ok_or_else(|| failed("the server shows no certificate".to_owned()))?;
    Ok((connection, found))
}

fn prepare(host: &str) -> Result<ClientConnection, String> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| format!("`{host}` is not a host name"))?;
    let provider = ring::default_provider();
    let algorithms = provider.signature_verification_algorithms;
    let config = config(provider, algorithms).map_err(|error| error.to_string())?;
    ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())
}

fn config(
    provider: CryptoProvider,
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<ClientConfig, Error> {
    let versions = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?;
    let verifier = Arc::new(FingerprintVerifier { algorithms });
    Ok(versions.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Returns the text of a handshake error, which is an error within an error.
fn cause(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "no handshake in time".to_owned(),
        io::ErrorKind::UnexpectedEof => "the server disconnected; does it use TLS?".to_owned(),
        _ => error.to_string(),
    }
}

fn fingerprint(certificate: &CertificateDer<'_>) -> Option<Fingerprint> {
    // The suite's hash is SHA-256, the hash of fingerprints.
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13()?;
    let hash = suite.common.hash_provider.hash(certificate.as_ref());
    hash.as_ref().try_into().ok().map(Fingerprint::new)
}

/// Accepts any certificate whose owner signs the handshake. The caller checks the fingerprint
/// afterwards.
#[derive(Debug)]
struct FingerprintVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for FingerprintVerifier {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
