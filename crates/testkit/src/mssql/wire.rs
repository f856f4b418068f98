//! Packets and tokens from the server's side.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

pub(super) const BATCH: u8 = 0x01;
pub(super) const RESPONSE: u8 = 0x04;
pub(super) const ATTENTION: u8 = 0x06;
pub(super) const LOGIN: u8 = 0x10;
pub(super) const PRELOGIN: u8 = 0x12;

/// A client's connection, encrypted or not.
pub(super) enum Link {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ServerConnection, Handshake>>),
}

impl Link {
    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Link::Plain(tcp) => tcp,
            Link::Tls(stream) => &stream.sock.tcp,
        }
    }

    fn stream(&mut self) -> &mut dyn ReadWrite {
        match self {
            Link::Plain(tcp) => tcp,
            Link::Tls(stream) => stream.as_mut(),
        }
    }

    /// One message: its kind and content. None at the end of the connection.
    pub(super) fn read_message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut content = Vec::new();
        loop {
            let mut header = [0; 8];
            self.stream().read_exact(&mut header).ok()?;
            let size = usize::from(u16::from_be_bytes([header[2], header[3]])).checked_sub(8)?;
            let start = content.len();
            content.resize(start + size, 0);
            self.stream().read_exact(&mut content[start..]).ok()?;
            if header[1] & 1 != 0 {
                return Some((header[0], content));
            }
        }
    }

    /// A packet of a response; `is_last` ends the message.
    pub(super) fn send(&mut self, content: &[u8], is_last: bool) -> io::Result<()> {
        let mut pieces = content.chunks(4000).peekable();
        if pieces.peek().is_none() {
            let bytes = packet(RESPONSE, &[], is_last);
            self.stream().write_all(&bytes)?;
        }
        while let Some(piece) = pieces.next() {
            let bytes = packet(RESPONSE, piece, is_last && pieces.peek().is_none());
            self.stream().write_all(&bytes)?;
        }
        self.stream().flush()
    }

    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream().write_all(bytes)?;
        self.stream().flush()
    }

    /// TLS, its handshake inside of packets unless it is `strict`.
    pub(super) fn encrypt(self, config: &Arc<ServerConfig>, strict: bool) -> io::Result<Link> {
        let Link::Plain(tcp) = self else { panic!("encrypted twice") };
        let mut connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        let mut handshake = Handshake { tcp, wraps: !strict, left: Vec::new(), out: Vec::new() };
        while connection.is_handshaking() || connection.wants_write() {
            connection.complete_io(&mut handshake)?;
        }
        handshake.flush()?;
        handshake.wraps = false;
        Ok(Link::Tls(Box::new(StreamOwned::new(connection, handshake))))
    }

    pub(super) fn without_tls(self) -> Link {
        match self {
            Link::Tls(stream) => Link::Plain(stream.into_parts().1.tcp),
            plain @ Link::Plain(_) => plain,
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// Packs and unpacks the handshake.
pub(super) struct Handshake {
    tcp: TcpStream,
    wraps: bool,
    left: Vec<u8>,
    out: Vec<u8>,
}

impl Read for Handshake {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if !self.wraps {
            return self.tcp.read(room);
        }
        self.flush()?;
        if self.left.is_empty() {
            let mut header = [0; 8];
            self.tcp.read_exact(&mut header)?;
            assert_eq!(header[0], PRELOGIN, "the handshake comes in PRELOGIN packets");
            self.left.resize(usize::from(u16::from_be_bytes([header[2], header[3]])) - 8, 0);
            self.tcp.read_exact(&mut self.left)?;
        }
        let size = room.len().min(self.left.len());
        room[..size].copy_from_slice(&self.left[..size]);
        self.left.drain(..size);
        Ok(size)
    }
}

impl Write for Handshake {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.wraps {
            return self.tcp.write(bytes);
        }
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.tcp.write_all(&packet(PRELOGIN, &self.out, true))?;
            self.out.clear();
        }
        self.tcp.flush()
    }
}

fn packet(kind: u8, content: &[u8], is_last: bool) -> Vec<u8> {
    let size = (content.len() + 8) as u16;
    let mut bytes = vec![kind, u8::from(is_last), (size >> 8) as u8, size as u8, 0, 51, 1, 0];
    bytes.extend(content);
    bytes
}

pub(super) fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

pub(super) fn from_utf16(bytes: &[u8]) -> String {
    let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    String::from_utf16_lossy(&units)
}

fn short_text(text: &str) -> Vec<u8> {
    let mut bytes = vec![text.encode_utf16().count() as u8];
    bytes.extend(utf16(text));
    bytes
}

fn long_text(text: &str) -> Vec<u8> {
    let mut bytes = (text.encode_utf16().count() as u16).to_le_bytes().to_vec();
    bytes.extend(utf16(text));
    bytes
}

fn token(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend((content.len() as u16).to_le_bytes());
    bytes.extend(content);
    bytes
}

/// INFO, or ERROR from severity 11 on.
pub(super) fn message(number: i32, class: u8, text: &str) -> Vec<u8> {
    let mut content = number.to_le_bytes().to_vec();
    content.extend([1, class]);
    content.extend(long_text(text));
    content.extend(short_text("mock"));
    content.extend(short_text(""));
    content.extend(1u32.to_le_bytes());
    token(if class > 10 { 0xaa } else { 0xab }, &content)
}

pub(super) fn login_ack(version: [u16; 3]) -> Vec<u8> {
    let mut content = vec![1, 0x74, 0, 0, 4];
    content.extend(short_text("Microsoft SQL Server"));
    content.extend([version[0] as u8, version[1] as u8, (version[2] >> 8) as u8, version[2] as u8]);
    token(0xad, &content)
}

/// A change of the session: 1 database, 2 language, 4 packet size.
pub(super) fn change(kind: u8, new: &str, old: &str) -> Vec<u8> {
    token(0xe3, &[vec![kind], short_text(new), short_text(old)].concat())
}

pub(super) fn done(has_more: bool, failed: bool, is_attention: bool) -> Vec<u8> {
    let status = u16::from(has_more) | u16::from(failed) << 1 | u16::from(is_attention) << 5;
    let mut bytes = vec![0xfd];
    bytes.extend(status.to_le_bytes());
    bytes.extend([0; 10]);
    bytes
}

/// A result set of texts.
pub(super) fn rows(columns: &[&str], rows: &[Vec<Option<String>>]) -> Vec<u8> {
    let mut bytes = vec![0x81];
    bytes.extend((columns.len() as u16).to_le_bytes());
    for name in columns {
        // User type, nullable, nvarchar(2000) in the usual collation.
        bytes.extend([0, 0, 0, 0, 1, 0, 0xe7]);
        bytes.extend(4000u16.to_le_bytes());
        bytes.extend([0x09, 0x04, 0xd0, 0x00, 0x34]);
        bytes.extend(short_text(name));
    }
    for row in rows {
        bytes.push(0xd1);
        for value in row {
            match value {
                None => bytes.extend([0xff, 0xff]),
                Some(text) => {
                    let text = utf16(text);
                    bytes.extend((text.len() as u16).to_le_bytes());
                    bytes.extend(text);
                }
            }
        }
    }
    bytes
}
