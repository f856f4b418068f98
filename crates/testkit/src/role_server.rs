//! What gives a machine or a container the credentials of its role, for a while: the next ones are other ones.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::s3_server::{ROLE_PREFIX, SECRET_KEY};

/// Answers in a thread until the process ends.
pub struct RoleServer {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    given: AtomicUsize,
    /// How many it still gives.
    left: AtomicUsize,
    lifetime: Duration,
}

impl RoleServer {
    /// Starts it; what it gives is good for `lifetime`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(lifetime: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { given: AtomicUsize::new(0), left: AtomicUsize::new(usize::MAX), lifetime });
        let answering = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                answering.answer(client).ok();
            }
        });
        RoleServer { address, state }
    }

    /// It gives so many more, and then nothing.
    pub fn give(&self, count: usize) {
        self.state.left.store(count, SeqCst);
    }

    /// The variable by which a container finds it.
    pub fn of_a_container(&self) -> (&'static str, String) {
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{}/credentials", self.address))
    }

    /// The variable by which a machine finds it, in place of the address that machines ask.
    pub fn of_a_machine(&self) -> (&'static str, String) {
        ("AWS_EC2_METADATA_SERVICE_ENDPOINT", format!("http://{}", self.address))
    }
}

impl State {
    fn answer(&self, mut client: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(client.try_clone()?).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let place = request.split(' ').nth(1).unwrap_or_default();
        let (status, body) = match place {
            "/latest/api/token" => ("200 OK", "a-session".to_owned()),
            "/latest/meta-data/iam/security-credentials/" => ("200 OK", "backup".to_owned()),
            "/credentials" | "/latest/meta-data/iam/security-credentials/backup" => match self.next() {
                Some(text) => ("200 OK", text),
                None => ("403 Forbidden", "no role".to_owned()),
            },
            _ => ("404 Not Found", String::new()),
        };
        write!(client, "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
    }

    fn next(&self) -> Option<String> {
        self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).ok()?;
        let (number, until) = (self.given.fetch_add(1, SeqCst) + 1, jiff::Timestamp::now() + self.lifetime);
        Some(format!(
            "{{\"Code\":\"Success\",\"AccessKeyId\":\"{ROLE_PREFIX}{number}\",\"SecretAccessKey\":\"{SECRET_KEY}\",\
             \"Token\":\"of-{number}\",\"Expiration\":\"{until:.3}\"}}"
        ))
    }
}
