//! Somebody between clients and a server: another endpoint of it, a proxy, or a network that is cut or slow.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::{SockFilter, SockRef, Socket};

/// What goes over one of them.
#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    bytes: AtomicU64,
    bytes_back: AtomicU64,
    line: Mutex<Line>,
    is_dropped: AtomicBool,
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
    /// When the line to clients is cut.
    pub cut: Option<Cut>,
    /// When answers begin to drip.
    pub drip: Option<Drip>,
}

/// A line that loses all packets for a while, those that begin a connection too: nobody is told anything.
#[derive(Clone, Copy)]
pub struct Cut {
    /// Bytes in both directions before it.
    pub after_bytes: u64,
    /// Until it carries again.
    pub lasts: Duration,
}

/// Answers that come byte by byte.
#[derive(Clone, Copy)]
pub struct Drip {
    /// Bytes to clients before it.
    pub after_bytes: u64,
    /// Whether it befalls connections that are made later, too.
    pub is_lasting: bool,
}

/// Between two bytes of an answer that drips.
const DRIPS_EVERY: Duration = Duration::from_millis(20);

impl Default for Manner<'_> {
    fn default() -> Self {
        Manner { listen: "127.0.0.1:0", proxy_for: None, dies_after_bytes: u64::MAX, cut: None, drip: None }
    }
}

/// The way of a connection's bytes.
#[derive(Clone, Copy)]
struct Way {
    dies_after_bytes: u64,
    cut: Option<Cut>,
    drip: Option<Drip>,
}

/// The sockets of clients, whose packets can be lost.
#[derive(Default)]
struct Line {
    sockets: Vec<TcpStream>,
    listener: Option<TcpListener>,
    is_cut: bool,
    was_cut: bool,
}

impl Line {
    /// What arrives is thrown away by the kernel, before anything could confirm it; or is no longer.
    fn set(&mut self, is_cut: bool) {
        self.is_cut = is_cut;
        let sockets = self.sockets.iter().map(SockRef::from).chain(self.listener.iter().map(SockRef::from));
        sockets.for_each(|socket| lose_what_arrives(&socket, is_cut));
    }
}

fn lose_what_arrives(socket: &SockRef<'_>, is_lost: bool) {
    /// A filter of one instruction: return with zero bytes of the packet.
    const RETURN: u16 = 0x06;
    if is_lost {
        socket.attach_filter(&[SockFilter::new(RETURN, 0, 0, 0)]).unwrap();
    } else {
        // It may have none, or be closed.
        socket.detach_filter().ok();
    }
}

impl Seen {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what was carried, and cuts the line when it is time to.
    fn carried(self: &Arc<Self>, count: &AtomicU64, bytes: usize, way: Way) -> u64 {
        let all = count.fetch_add(bytes as u64, SeqCst) + bytes as u64;
        if let Some(cut) = way.cut
            && self.bytes.load(SeqCst) + self.bytes_back.load(SeqCst) >= cut.after_bytes
        {
            let mut line = self.line();
            if !std::mem::replace(&mut line.was_cut, true) {
                line.set(true);
                let seen = Arc::clone(self);
                std::thread::spawn(move || {
                    std::thread::sleep(cut.lasts);
                    seen.line().set(false);
                });
            }
        }
        all
    }
}

fn connect(server: &str) -> Option<Socket> {
    if server.starts_with('/') {
        return UnixStream::connect(server).ok().map(Socket::from);
    }
    let stream = TcpStream::connect(server).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(Socket::from(stream))
}

impl Forwarder {
    /// Begins to forward to `server`: an address, a URL of one, or the path of a socket. None if this machine has no such place
    /// to listen.
    pub fn start(server: &str, manner: &Manner<'_>) -> Option<Self> {
        let listener = TcpListener::bind(manner.listen).ok()?;
        let address = listener.local_addr().ok()?;
        let server = server.rsplit("//").next().unwrap_or(server).to_owned();
        let proxy_for = manner.proxy_for.map(|name| format!("CONNECT {name}:"));
        let seen = Arc::new(Seen::default());
        let way = Way { dies_after_bytes: manner.dies_after_bytes, cut: manner.cut, drip: manner.drip };
        seen.line().listener = listener.try_clone().ok();
        let forwarder = Forwarder { address, seen: Arc::clone(&seen), dies_after_bytes: way.dies_after_bytes };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if seen.is_dropped.load(SeqCst) || seen.bytes.load(SeqCst) >= way.dies_after_bytes {
                    // The listener goes with the thread: whoever comes now is refused.
                    seen.line().listener = None;
                    return;
                }
                let Ok(client) = client else { return };
                seen.connections.fetch_add(1, SeqCst);
                let (server, proxy_for, seen) = (server.clone(), proxy_for.clone(), Arc::clone(&seen));
                std::thread::spawn(move || forward(&client, &server, proxy_for.as_deref(), &seen, way));
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

    /// Bytes to clients so far.
    pub fn bytes_back(&self) -> u64 {
        self.seen.bytes_back.load(SeqCst)
    }

    /// Whether it has carried enough.
    pub fn is_gone(&self) -> bool {
        self.bytes() >= self.dies_after_bytes
    }

    /// Whether the line has been cut.
    pub fn was_cut(&self) -> bool {
        self.seen.line().was_cut
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.seen.is_dropped.store(true, SeqCst);
        let mut line = self.seen.line();
        line.set(false);
        // Who went while the line was cut never said so.
        line.sockets.iter().for_each(|socket| drop(socket.shutdown(Shutdown::Both)));
        drop(line);
        // It looks up when somebody comes.
        TcpStream::connect(self.address).ok();
    }
}

fn forward(client: &TcpStream, server: &str, proxy_for: Option<&str>, seen: &Arc<Seen>, way: Way) -> Option<()> {
    {
        let mut line = seen.line();
        let socket = client.try_clone().ok()?;
        if line.is_cut {
            lose_what_arrives(&SockRef::from(&socket), true);
        }
        line.sockets.push(socket);
    }
    if let Some(expected) = proxy_for {
        greet(client, expected)?;
    }
    let server = connect(server)?;
    client.set_nodelay(true).ok()?;
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    let up_seen = Arc::clone(seen);
    let up = std::thread::spawn(move || {
        let mut buffer = vec![0u8; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if up_seen.carried(&up_seen.bytes, count, way) >= way.dies_after_bytes || up_seen.is_dropped.load(SeqCst) {
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
    give_back(server, client, seen, way);
    client.shutdown(Shutdown::Write).ok();
    up.join().ok()
}

/// Carries answers to the client until there are no more.
fn give_back(mut from: Socket, mut to: &TcpStream, seen: &Arc<Seen>, way: Way) {
    let was_dripping = way.drip.is_some_and(|drip| seen.bytes_back.load(SeqCst) >= drip.after_bytes);
    let mut buffer = vec![0u8; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let all = seen.carried(&seen.bytes_back, count, way);
        let drips = way.drip.is_some_and(|drip| all >= drip.after_bytes && (drip.is_lasting || !was_dripping));
        let piece_bytes = if drips { 1 } else { count };
        for piece in buffer[..count].chunks(piece_bytes) {
            if to.write_all(piece).is_err() || seen.is_dropped.load(SeqCst) {
                from.shutdown(Shutdown::Both).ok();
                return;
            }
            if drips {
                std::thread::sleep(DRIPS_EVERY);
            }
        }
    }
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
