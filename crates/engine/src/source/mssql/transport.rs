//! The bytes of a connection: TCP, and TLS on top of it, which before TDS 8 begins inside of PRELOGIN packets.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection, StreamOwned};

use super::address::{Authorities, Encryption, ServerAddress};
use super::wire::{HEADER_SIZE_BYTES, PACKET_SIZE_DEFAULT, PacketHeader, PacketKind, message};
use crate::error::{Error, ErrorKind, Result};
use crate::source::keepalive::Keepalive;
use crate::source::server_trust::ServerTrust;

/// An open connection without framing.
#[derive(Debug)]
pub(super) enum Transport {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, Wrapped>>),
}

impl Transport {
    /// Connects within the address's time; reads and writes wait as long until they are told otherwise.
    ///
    /// # Errors
    /// `Source`.
    pub(super) fn open(address: &ServerAddress) -> Result<TcpStream> {
        let action = || format!("connect to {address}");
        let addresses = (address.host.as_str(), address.port).to_socket_addrs().map_err(|cause| {
            Error::new(ErrorKind::Source, action(), cause).hint("check the host name, or give a numeric address")
        })?;
        let mut last_cause = "the host name has no address".to_owned();
        for candidate in addresses {
            let opened = TcpStream::connect_timeout(&candidate, address.connect_timeout)
                .and_then(|tcp| prepare(tcp, address.connect_timeout));
            match opened {
                Ok(tcp) => return Ok(tcp),
                Err(cause) => last_cause = format!("{candidate}: {cause}"),
            }
        }
        Err(Error::new(ErrorKind::Source, action(), last_cause).hint(
            "is the server running, are TCP connections allowed there (SQL Server Configuration Manager), does a firewall \
             forbid it?",
        ))
    }

    /// Begins TLS on `tcp`, in packets of PRELOGIN unless it is strict.
    ///
    /// # Errors
    /// `Configuration` for our own files, `Source` for a server that is not believed or cannot be talked to.
    pub(super) fn encrypt(tcp: TcpStream, address: &ServerAddress) -> Result<Self> {
        let is_strict = address.encryption == Encryption::Strict;
        let name = ServerName::try_from(address.certificate_name().to_owned()).map_err(|_| {
            let action = format!("check that a certificate is for {:?}", address.certificate_name());
            Error::new(ErrorKind::Usage, action, "it is neither a host name nor an address")
        })?;
        let refuse = |cause: &rustls::Error| refused(address, cause);
        let config = client_config(address, is_strict)?;
        let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|cause| refuse(&cause))?;
        let mut wrapped = Wrapped { tcp, wraps: !is_strict, left: 0, out: Vec::new() };
        while connection.is_handshaking() || connection.wants_write() {
            connection.complete_io(&mut wrapped).map_err(|cause| {
                match cause.get_ref().and_then(|inner| inner.downcast_ref()) {
                    Some(cause) => refuse(cause),
                    None if is_timeout(&cause) => failed(address, "it did not answer in time"),
                    None => failed(address, &cause.to_string()),
                }
            })?;
        }
        wrapped.wraps = false;
        Ok(Transport::Tls(Box::new(StreamOwned::new(connection, wrapped))))
    }

    /// The connection without TLS, for servers that encrypt the log-in only.
    pub(super) fn without_tls(self) -> Self {
        match self {
            Transport::Tls(stream) => Transport::Plain(stream.into_parts().1.tcp),
            plain @ Transport::Plain(_) => plain,
        }
    }

    /// Reads once; 0 is the end.
    pub(super) fn receive(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Transport::Plain(tcp) => tcp.read(room),
            Transport::Tls(stream) => match stream.read(room) {
                // It hung up without a word: what is missing shows in the packets.
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
                read => read,
            },
        }
    }

    /// Writes all of `bytes`.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Transport::Plain(tcp) => tcp.write_all(bytes),
            Transport::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// How long a read may wait.
    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Transport::Plain(tcp) => tcp.set_read_timeout(Some(timeout)),
            Transport::Tls(stream) => stream.sock.tcp.set_read_timeout(Some(timeout)),
        }
    }
}

/// Whether a read ended because its time was over. (`TimedOut` would be the kernel's questions that nobody answered.)
pub(super) fn is_timeout(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::WouldBlock
}

/// No delays for small messages; a vanished server is noticed though a backup is silent for long.
fn prepare(tcp: TcpStream, timeout: Duration) -> io::Result<TcpStream> {
    tcp.set_nodelay(true)?;
    Keepalive::default().apply(&tcp)?;
    tcp.set_read_timeout(Some(timeout))?;
    tcp.set_write_timeout(Some(timeout))?;
    Ok(tcp)
}

fn failed(address: &ServerAddress, cause: &str) -> Error {
    Error::new(ErrorKind::Source, format!("begin TLS with {address}"), cause)
}

fn refused(address: &ServerAddress, cause: &rustls::Error) -> Error {
    let rustls::Error::InvalidCertificate(problem) = cause else { return failed(address, &cause.to_string()) };
    let name = address.certificate_name();
    match problem {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            failed(address, &format!("its certificate is not for {name} ({problem})"))
                .hint("connect by a name that the certificate has, or name that one with --host-in-certificate")
        }
        // One that the server made for itself is refused for other reasons, and the way out is the same.
        _ => failed(address, &format!("its certificate is from nobody who is believed here ({problem})")).hint(
            "name the file with its authority's certificate, or with its own, with --ca-file; --trust-server-certificate \
             believes everybody",
        ),
    }
}

fn client_config(address: &ServerAddress, is_strict: bool) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bad = |cause: rustls::Error| Error::new(ErrorKind::Configuration, "prepare TLS", cause);
    let trust = Arc::new(server_trust(address, &provider)?);
    // Inside of PRELOGIN packets a handshake must be over when it is over, which TLS 1.3 does not promise.
    let versions: &[&rustls::SupportedProtocolVersion] =
        if is_strict { rustls::DEFAULT_VERSIONS } else { &[&rustls::version::TLS12] };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(bad)?
        .dangerous()
        .with_custom_certificate_verifier(trust)
        .with_no_client_auth();
    if is_strict {
        config.alpn_protocols = vec![b"tds/8.0".to_vec()];
    }
    Ok(config)
}

fn server_trust(address: &ServerAddress, provider: &Arc<CryptoProvider>) -> Result<ServerTrust> {
    match &address.authorities {
        Authorities::Anyone => Ok(ServerTrust::anyone(provider)),
        Authorities::System => ServerTrust::system(provider),
        Authorities::File(path) => ServerTrust::file(path, "--ca-file", true, provider),
    }
}

/// TCP whose bytes go in PRELOGIN packets as long as the handshake lasts.
#[derive(Debug)]
pub(super) struct Wrapped {
    tcp: TcpStream,
    wraps: bool,
    /// What is left to read of the packet that came last.
    left: usize,
    /// What waits for a flush.
    out: Vec<u8>,
}

impl Read for Wrapped {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if !self.wraps {
            return self.tcp.read(room);
        }
        self.flush()?;
        while self.left == 0 {
            let mut header = [0; HEADER_SIZE_BYTES];
            self.tcp.read_exact(&mut header)?;
            let bad = |cause: String| io::Error::new(io::ErrorKind::InvalidData, format!("the server sent {cause}"));
            let header = PacketHeader::parse(&header).map_err(bad)?;
            if header.kind != PacketKind::Prelogin as u8 && header.kind != PacketKind::Response as u8 {
                return Err(bad(format!("a packet of kind 0x{:02x} in the handshake", header.kind)));
            }
            self.left = header.content_size;
        }
        let most = room.len().min(self.left);
        let size = self.tcp.read(&mut room[..most])?;
        self.left -= size;
        Ok(size)
    }
}

impl Write for Wrapped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.wraps {
            return self.tcp.write(bytes);
        }
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.tcp.write_all(&message(PacketKind::Prelogin, &self.out, PACKET_SIZE_DEFAULT))?;
            self.out.clear();
        }
        self.tcp.flush()
    }
}
