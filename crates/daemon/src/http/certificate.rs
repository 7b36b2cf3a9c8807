//! Certificate and key: one file, created at the first start.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Name of the file with key and certificate in the state directory.
const NAME: &str = "certificate.pem";
/// Mode of the file: access for its owner only.
const OWNER: u32 = 0o600;
/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reason why TLS is not available.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read or written.
    #[error("cannot {doing} the certificate {}: check the state directory", .path.display())]
    Os {
        /// Attempted action, "read" or "write".
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file does not hold a key and its certificate.
    #[error("{} is no key with its certificate ({why}): replace it, or move it \
             away and ringwayd creates another one", .path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// Problem with the file.
        why: String,
    },
    /// No certificate could be generated.
    #[error("cannot create a certificate: {0}")]
    Unmade(#[from] rcgen::Error),
}

/// TLS configuration of the listeners.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    /// Configuration with key and certificate.
    pub config: Arc<ServerConfig>,
    /// Certificates without the key, as PEM.
    pub certificate: String,
}

/// Returns the TLS configuration with the certificate of this state directory. Creates a
/// self-signed certificate if there is none. An existing file is used as it is.
///
/// # Errors
/// [`TlsError`] if the file is invalid or cannot be read or created.
pub fn tls_identity(state: &Path, host: &str) -> Result<TlsIdentity, TlsError> {
    let path = state.join(NAME);
    let pem = match read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path, host)?,
        Err(source) => return Err(TlsError::Os { doing: "read", path, source }),
        Ok(pem) => pem,
    };
    let config = configured(&pem).map_err(|why| TlsError::Wrong { path, why })?;
    Ok(TlsIdentity { config, certificate: certificates(&String::from_utf8_lossy(&pem)) })
}

/// Returns the certificates of a PEM file, without its keys and comments.
fn certificates(pem: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let mut certificates = String::new();
    let mut inside = false;
    for line in pem.lines().map(str::trim_end) {
        inside |= line == BEGIN;
        if inside {
            certificates.push_str(line);
            certificates.push('\n');
        }
        inside &= line != END;
    }
    certificates
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    fs::read(path)
}

/// Creates a certificate for all local names of this host. The file is replaced atomically.
fn make(path: &Path, host: &str) -> Result<Vec<u8>, TlsError> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if CertificateParams::new(vec![host.to_owned()]).is_ok() && host != "localhost" {
        names.push(host.to_owned());
    }
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, host);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let pem = key.serialize_pem() + &certificate.pem();
    let to_error = |source| TlsError::Os { doing: "write", path: path.to_owned(), source };
    let draft = path.with_extension("new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(to_error(error)),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(OWNER)
        .open(&draft)
        .map_err(to_error)?;
    file.write_all(pem.as_bytes()).and_then(|()| file.sync_all()).map_err(to_error)?;
    fs::rename(&draft, path).map_err(to_error)?;
    Ok(pem.into_bytes())
}

fn configured(pem: &[u8]) -> Result<Arc<ServerConfig>, String> {
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
    let provider = Arc::new(default_provider());
    let made = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = made.map_err(|error: rustls::Error| error.to_string())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_and_for_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let identity = tls_identity(dir.path(), "host-1").unwrap();
        assert!(identity.certificate.starts_with("-----BEGIN CERTIFICATE-----\n"));
        assert!(identity.certificate.ends_with("-----END CERTIFICATE-----\n"));
        assert!(!identity.certificate.contains("KEY"), "the key is in no answer");
        let path = dir.path().join(NAME);
        let first = fs::read(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, OWNER);
        tls_identity(dir.path(), "another").unwrap();
        assert_eq!(fs::read(&path).unwrap(), first);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_host_without_a_name_that_can_be_certified_has_one() {
        let dir = tempfile::tempdir().unwrap();
        tls_identity(dir.path(), "höst name").unwrap();
    }

    #[test]
    fn what_is_no_certificate_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), "nonsense").unwrap();
        let error = tls_identity(dir.path(), "h").unwrap_err().to_string();
        assert!(error.contains("certificate.pem is no key with its certificate"), "{error}");
        let error = tls_identity(&dir.path().join("absent"), "h").unwrap_err().to_string();
        assert!(error.contains("cannot write the certificate"), "{error}");
    }
}
