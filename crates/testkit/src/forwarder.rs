//! Somebody between clients and a server: another endpoint of it, or a proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// What goes over one of them.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    bytes: AtomicU64,
}

/// Forwards connections to a server until it is dropped or has carried enough; what is under way then breaks off.
pub struct Forwarder {
    address: SocketAddr,
    seen: Arc<Seen>,
    dies_after_bytes: u64,
}

/// How a forwarder is.
pub struct Manner<'a> {
    /// Where clients find it, with port 0.
    pub listen: &'a str,
    /// Clients that say `CONNECT` to this name are led to the server.
    pub proxy_for: Option<&'a str>,
    /// Bytes from clients after which it is gone.
    pub dies_after_bytes: u64,
}

impl Default for Manner<'_> {
    fn default() -> Self {
        Manner { listen: "127.0.0.1:0", proxy_for: None, dies_after_bytes: u64::MAX }
    }
}

impl Forwarder {
    /// Begins to forward to `server`, an address or a URL of one; None if this machine has no such place to listen.
    pub fn start(server: &str, manner: &Manner<'_>) -> Option<Self> {
        let listener = TcpListener::bind(manner.listen).ok()?;
        let address = listener.local_addr().ok()?;
        let server = server.rsplit("//").next().unwrap_or(server).to_owned();
        let proxy_for = manner.proxy_for.map(|name| format!("CONNECT {name}:"));
        let (seen, most) = (Arc::new(Seen::default()), manner.dies_after_bytes);
        let forwarder = Forwarder { address, seen: Arc::clone(&seen), dies_after_bytes: most };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if seen.bytes.load(SeqCst) >= most {
                    // The listener goes with the thread: whoever comes now is refused.
                    return;
                }
                let Ok(client) = client else { return };
                seen.connections.fetch_add(1, SeqCst);
                let (server, proxy_for, seen) = (server.clone(), proxy_for.clone(), Arc::clone(&seen));
                std::thread::spawn(move || forward(&client, &server, proxy_for.as_deref(), &seen, most));
            }
        });
        Some(forwarder)
    }

    /// Where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.seen.connections.load(SeqCst)
    }

    /// Bytes from clients so far.
    pub fn bytes(&self) -> u64 {
        self.seen.bytes.load(SeqCst)
    }

    /// Whether it has carried enough.
    pub fn is_gone(&self) -> bool {
        self.bytes() >= self.dies_after_bytes
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.seen.bytes.store(u64::MAX, SeqCst);
        // It looks up when somebody comes.
        TcpStream::connect(self.address).ok();
    }
}

fn forward(client: &TcpStream, server: &str, proxy_for: Option<&str>, seen: &Arc<Seen>, most: u64) -> Option<()> {
    if let Some(expected) = proxy_for {
        greet(client, expected)?;
    }
    let server = TcpStream::connect(server).ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    let seen = Arc::clone(seen);
    let up = std::thread::spawn(move || {
        let mut buffer = vec![0u8; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let before = seen.bytes.fetch_add(count as u64, SeqCst);
            if before.saturating_add(count as u64) >= most {
                from.shutdown(Shutdown::Both).ok();
                to.shutdown(Shutdown::Both).ok();
                return;
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Write).ok();
    });
    let (mut from, mut to) = (&server, client);
    std::io::copy(&mut from, &mut to).ok();
    client.shutdown(Shutdown::Write).ok();
    up.join().ok()
}

/// Hears where a client of a proxy wants to go.
fn greet(mut client: &TcpStream, expected: &str) -> Option<()> {
    // Not a byte of what comes behind the greeting.
    let mut reader = BufReader::with_capacity(1, client);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    assert!(line.starts_with(expected), "{line}");
    while !line.trim().is_empty() {
        line.clear();
        reader.read_line(&mut line).ok()?;
    }
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()
}
