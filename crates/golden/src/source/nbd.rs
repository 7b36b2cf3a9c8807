//! Image that an NBD server exports. The protocol tells its size and no version.

use ::nbd::{ClientError, NbdClient};
use model::spec::{NbdAddress, NbdServerAddress};

use super::stream::DeadlineStream;
use super::{Connection, Version};
use crate::SourceError;

/// NBD's error of a server that ends (`NBD_ESHUTDOWN`).
const SHUTDOWN: u32 = 108;

pub(super) struct NbdSource {
    client: NbdClient<DeadlineStream>,
    version: Version,
}

impl NbdSource {
    pub(super) fn connect(address: &NbdAddress) -> Result<Self, SourceError> {
        let stream = match &address.server {
            NbdServerAddress::Tcp(server) => DeadlineStream::tcp(server),
            NbdServerAddress::Unix(path) => DeadlineStream::unix(path),
        };
        let unreachable = |error: &dyn std::fmt::Display| {
            SourceError::Unreachable(format!("cannot connect: {error}; check the server"))
        };
        let stream = stream.map_err(|error| unreachable(&error))?;
        let client = NbdClient::connect(stream, &address.export);
        let client = client.map_err(|error| unreachable(&error))?;
        let version = Version { size: client.size(), stamp: String::new() };
        Ok(Self { client, version })
    }
}

impl Connection for NbdSource {
    fn version(&self) -> &Version {
        &self.version
    }

    fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        self.client.stream().begin();
        self.client.read_at(offset, out).map_err(|error| match error {
            // The server ends. Another one may come.
            ClientError::Read(SHUTDOWN) => SourceError::Unreachable(error.to_string()),
            ClientError::Read(_) => SourceError::Failed(error.to_string()),
            error => SourceError::Unreachable(error.to_string()),
        })
    }
}
