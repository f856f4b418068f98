//! The bytes of a connection: a Unix socket, TCP, or TLS on top of that, and what has been received and not been used yet.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use super::conninfo::ConnectSettings;
use super::tls::{self, TlsStream};
use super::tls_settings::Encryption;
use crate::error::{Error, ErrorKind, Result};

/// What one read asks the kernel for.
const READ_SIZE_BYTES: usize = 64 << 10;

/// One open connection without any framing.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
    Tls(Box<TlsStream>),
}

impl Socket {
    /// Connects within the connect timeout.
    ///
    /// # Errors
    /// `Source`.
    pub(super) fn open(settings: &ConnectSettings) -> Result<Self> {
        open_stream(settings)
    }

    /// Asks for TLS and begins it, within the connect timeout; a Unix socket stays as it is.
    ///
    /// # Errors
    /// `Source` if the server has none although it must be, or is not to be believed; `Configuration` for our own files.
    pub(super) fn encrypt(self, settings: &ConnectSettings, encryption: Encryption) -> Result<Self> {
        let Socket::Tcp(mut tcp) = self else { return Ok(self) };
        if encryption == Encryption::Never {
            return Ok(Socket::Tcp(tcp));
        }
        let action = || format!("connect to the {settings}");
        let failed = |cause: std::io::Error| Error::new(ErrorKind::Source, action(), cause);
        let timeout = Some(Duration::from_secs(settings.connect_timeout_s));
        tcp.set_read_timeout(timeout).and_then(|()| tcp.set_write_timeout(timeout)).map_err(failed)?;
        let mut question = BytesMut::new();
        frontend::ssl_request(&mut question);
        tcp.write_all(&question).map_err(failed)?;
        // One byte and no more: what follows a yes is TLS, or somebody's who wants it taken for that.
        let mut answer = [0u8];
        tcp.read_exact(&mut answer).map_err(failed)?;
        let socket = match (answer[0], encryption) {
            (b'S', _) => Socket::Tls(tls::begin(settings, tcp)?),
            (b'N', Encryption::IfOffered) => Socket::Tcp(tcp),
            (b'N', _) => {
                return Err(Error::new(ErrorKind::Source, action(), "the server does not offer TLS")
                    .hint("switch on ssl there, or use sslmode=disable on a network that you trust"));
            }
            _ => return Err(Error::new(ErrorKind::Source, action(), "it does not answer as PostgreSQL does")),
        };
        socket.set_read_timeout(None).and_then(|()| socket.set_write_timeout(None)).map_err(failed)?;
        Ok(socket)
    }

    /// Whether it is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self, Socket::Tls(_))
    }

    /// What a log-in can be bound to.
    pub(super) fn end_point_hash(&self) -> Option<Vec<u8>> {
        match self {
            Socket::Tls(stream) => tls::end_point_hash(stream),
            Socket::Unix(_) | Socket::Tcp(_) => None,
        }
    }

    /// Reads once; gives how many bytes came, 0 at the end.
    pub(super) fn receive(&mut self, into: &mut Received) -> std::io::Result<usize> {
        into.make_room();
        let room = &mut into.bytes[into.end..];
        let size = match self {
            Socket::Unix(stream) => stream.read(room),
            Socket::Tcp(stream) => stream.read(room),
            Socket::Tls(stream) => match stream.read(room) {
                // It hung up without a word: what is missing shows in the messages.
                Err(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => Ok(0),
                read => read,
            },
        }?;
        into.end += size;
        Ok(size)
    }

    /// Writes all of `bytes`.
    pub(super) fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.write_all(bytes),
            Socket::Tcp(stream) => stream.write_all(bytes),
            Socket::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// How long a read may wait; None for ever.
    pub(super) fn set_read_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_read_timeout(timeout),
            Socket::Tcp(stream) => stream.set_read_timeout(timeout),
            Socket::Tls(stream) => stream.sock.set_read_timeout(timeout),
        }
    }

    /// How long a write may wait; None for ever.
    pub(super) fn set_write_timeout(&self, timeout: Option<Duration>) -> std::io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_write_timeout(timeout),
            Socket::Tcp(stream) => stream.set_write_timeout(timeout),
            Socket::Tls(stream) => stream.sock.set_write_timeout(timeout),
        }
    }
}

/// Received bytes; those that are not used yet are `bytes[start..end]`.
#[derive(Debug, Default)]
pub(super) struct Received {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Received {
    /// What has come and is not used yet.
    pub(super) fn unused(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Drops the first `count` unused bytes.
    pub(super) fn use_up(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Room for one read at the end; used bytes make way first, so that a stream without end stays bounded.
    fn make_room(&mut self) {
        if self.start > 0 && (self.start == self.end || self.bytes.len() < self.end + READ_SIZE_BYTES) {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() < self.end + READ_SIZE_BYTES {
            self.bytes.resize((self.end + READ_SIZE_BYTES).next_multiple_of(READ_SIZE_BYTES), 0);
        }
    }
}

fn open_stream(settings: &ConnectSettings) -> Result<Socket> {
    let action = || format!("connect to the {settings}");
    if settings.is_unix_socket() {
        let path = settings.socket_path();
        return UnixStream::connect(&path).map(Socket::Unix).map_err(|cause| {
            let hint = match cause.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    "is the server running, and is this its socket directory (unix_socket_directories) and port?"
                }
                std::io::ErrorKind::PermissionDenied => {
                    "the socket or its directory is closed to this OS user; run as the OS user of the server"
                }
                _ => "name another host with --connection 'host=...'",
            };
            Error::new(ErrorKind::Source, action(), format!("{}: {cause}", path.display())).hint(hint)
        });
    }
    let timeout = Duration::from_secs(settings.connect_timeout_s);
    let addresses = (settings.host.as_str(), settings.port).to_socket_addrs().map_err(|cause| {
        Error::new(ErrorKind::Source, action(), cause).hint("check the host name, or give a numeric address")
    })?;
    let mut last_cause = "the host name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                // No delays for small messages; a vanished server is noticed though the session is silent for hours.
                let tuned = stream.set_nodelay(true).and_then(|()| settings.keepalive.apply(&stream));
                return tuned
                    .map(|()| Socket::Tcp(stream))
                    .map_err(|cause| Error::new(ErrorKind::Source, action(), cause));
            }
            Err(cause) => last_cause = format!("{address}: {cause}"),
        }
    }
    Err(Error::new(ErrorKind::Source, action(), last_cause)
        .hint("is the server running, does it listen there (listen_addresses), does a firewall forbid it?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_stays_bounded_though_the_stream_never_pauses() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut socket = Socket::Unix(far);
        let mut received = Received::default();
        let mut expected = 0u8;
        for round in 0..2000usize {
            near.write_all(&vec![round as u8; 4099]).unwrap();
            socket.receive(&mut received).unwrap();
            // Something unused is left every time.
            let used = received.unused().len() - 1;
            for byte in &received.unused()[..used] {
                assert!(*byte == expected || *byte == expected.wrapping_add(1));
                expected = *byte;
            }
            received.use_up(used);
        }
        assert!(received.bytes.len() <= 3 * READ_SIZE_BYTES, "{}", received.bytes.len());
    }
}
