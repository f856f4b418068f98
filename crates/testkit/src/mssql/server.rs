//! The port: logs clients in, and gives their batches to the interpreter.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::interpreter::{run_batch, turns_execution_off};
use super::wire::{ATTENTION, BATCH, LOGIN, Link, PRELOGIN, change, done, from_utf16, login_ack, message};
use super::{Happening, World};

/// The password of `sa`.
pub const PASSWORD: &str = "Pässword]'1";

/// What the server encrypts.
#[derive(Clone)]
pub enum Security {
    /// It cannot.
    Plain,
    /// The log-in only.
    LogIn(Arc<ServerConfig>),
    /// Everything.
    All(Arc<ServerConfig>),
    /// Everything, from the first byte on.
    Strict(Arc<ServerConfig>),
}

impl Security {
    /// TLS with the certificate and key in these files of PEM: 1.2, as in packets, or any for what is strict.
    pub fn tls(certificate: &Path, key: &Path, is_strict: bool) -> Arc<ServerConfig> {
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let in_packets: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(if is_strict { rustls::DEFAULT_VERSIONS } else { in_packets })
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"tds/8.0".to_vec()];
        Arc::new(config)
    }
}

/// A server; it goes away when it is dropped.
pub struct TdsServer {
    address: SocketAddr,
    world: Arc<Mutex<World>>,
    is_over: Arc<AtomicBool>,
}

impl TdsServer {
    /// Listens on a port of this machine.
    pub fn start(world: World, security: Security) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let world = Arc::new(Mutex::new(world));
        let is_over = Arc::new(AtomicBool::new(false));
        let (shared, over) = (Arc::clone(&world), Arc::clone(&is_over));
        std::thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (world, security) = (Arc::clone(&shared), security.clone());
                std::thread::spawn(move || serve(tcp, &world, &security));
            }
        });
        TdsServer { address, world, is_over }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What is behind it.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }
}

impl Drop for TdsServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

fn serve(tcp: TcpStream, world: &Mutex<World>, security: &Security) -> Option<()> {
    tcp.set_nodelay(true).ok()?;
    let mut link = Link::Plain(tcp);
    if let Security::Strict(config) = security {
        link = link.encrypt(config, true).ok()?;
    }
    let (kind, content) = link.read_message()?;
    assert_eq!(kind, PRELOGIN, "the first message is PRELOGIN");
    let wish = encryption_of(&content);
    let offer = match security {
        Security::Plain => 2,
        // Who says "not supported" gets nothing encrypted.
        Security::LogIn(_) if wish == 2 => 2,
        Security::LogIn(_) if wish == 0 => 0,
        Security::LogIn(_) | Security::Strict(_) => 1,
        Security::All(_) => 3,
    };
    link.send(&prelogin(offer), true).ok()?;
    if let Security::LogIn(config) | Security::All(config) = security
        && offer != 2
    {
        link = link.encrypt(config, false).ok()?;
    }
    let (kind, content) = link.read_message()?;
    assert_eq!(kind, LOGIN, "the second message is LOGIN7");
    if offer == 0 {
        link = link.without_tls();
    }
    if !log_in(&mut link, &content, world) {
        return None;
    }
    let mut executes = true;
    while let Some((kind, content)) = link.read_message() {
        match kind {
            BATCH => batch(&mut link, &content, world, &mut executes)?,
            ATTENTION => {
                world.lock().unwrap().attentions += 1;
                link.send(&done(false, false, true), true).ok()?;
            }
            other => {
                let text = format!("messages of kind 0x{other:02x} are not known here");
                link.send(&[message(50_000, 16, &text), done(false, true, false)].concat(), true).ok()?;
            }
        }
    }
    Some(())
}

/// Runs a batch; `executes` is of the session, which SET NOEXEC ON lets only compile what follows.
fn batch(link: &mut Link, content: &[u8], world: &Mutex<World>, executes: &mut bool) -> Option<()> {
    let headers = u32::from_le_bytes(content.get(..4)?.try_into().ok()?) as usize;
    let text = from_utf16(content.get(headers..)?);
    if !*executes {
        return link.send(&done(false, false, false), true).ok();
    }
    let fault = {
        let mut world = world.lock().unwrap();
        world.batches.push(text.clone());
        world.take_fault(&text)
    };
    match fault {
        Some(Happening::Raw(bytes)) => {
            link.send_raw(&bytes).ok()?;
            None
        }
        other => {
            *executes = !turns_execution_off(&text, &world.lock().unwrap());
            run_batch(link, &text, world, other.as_ref())
        }
    }
}

fn encryption_of(prelogin: &[u8]) -> u8 {
    let entry = prelogin.chunks(5).take_while(|entry| entry[0] != 0xff).find(|entry| entry[0] == 1).unwrap();
    prelogin[usize::from(u16::from_be_bytes([entry[1], entry[2]]))]
}

fn prelogin(encryption: u8) -> Vec<u8> {
    let mut bytes = vec![0, 0, 11, 0, 6, 1, 0, 17, 0, 1, 0xff];
    bytes.extend([17, 0, 0x03, 0xe8, 0, 0, encryption]);
    bytes
}

/// Checks user and password and says so.
fn log_in(link: &mut Link, content: &[u8], world: &Mutex<World>) -> bool {
    let field = |at: usize| {
        let number = |at: usize| usize::from(u16::from_le_bytes([content[at], content[at + 1]]));
        content[number(at)..number(at) + 2 * number(at + 2)].to_vec()
    };
    let user = from_utf16(&field(40));
    let password: Vec<u8> = field(44).iter().map(|byte| (byte ^ 0xa5).rotate_right(4)).collect();
    if (user.as_str(), from_utf16(&password).as_str()) != ("sa", PASSWORD) {
        let text = format!("Login failed for user '{user}'.");
        let refused = [message(18456, 14, &text), done(false, true, false)].concat();
        link.send(&refused, true).unwrap_or_default();
        return false;
    }
    let version = world.lock().unwrap().version;
    let welcome = [
        change(1, "master", "master"),
        message(5701, 0, "Changed database context to 'master'."),
        change(2, "us_english", ""),
        login_ack(version),
        change(4, "4096", "4096"),
        done(false, false, false),
    ];
    link.send(&welcome.concat(), true).is_ok()
}
