//! How a TCP connection to a database server notices that the server is gone.

use std::net::TcpStream;

use rustix::net::sockopt;

/// What the kernel does about a silent connection. A server that lost its power, or a way to it that was cut, says nothing:
/// only who asks learns of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Whether it asks at all.
    pub is_on: bool,
    /// Seconds of silence before it asks whether the server is still there.
    pub idle_s: u32,
    /// Seconds between questions without an answer.
    pub interval_s: u32,
    /// So many questions without an answer end the connection.
    pub count: u32,
    /// Milliseconds for which what was sent may stay unconfirmed, if that is not as long as silence may last: the kernel asks
    /// nothing while it waits for a confirmation.
    pub user_timeout_ms: Option<u32>,
}

impl Default for Keepalive {
    /// Two minutes; the system's own settings take over two hours.
    fn default() -> Self {
        Keepalive { is_on: true, idle_s: 60, interval_s: 10, count: 6, user_timeout_ms: None }
    }
}

impl Keepalive {
    /// Makes `stream` behave so.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn apply(&self, stream: &TcpStream) -> std::io::Result<()> {
        sockopt::set_socket_keepalive(stream, self.is_on)?;
        if self.is_on {
            sockopt::set_tcp_keepidle(stream, std::time::Duration::from_secs(self.idle_s.into()))?;
            sockopt::set_tcp_keepintvl(stream, std::time::Duration::from_secs(self.interval_s.into()))?;
            sockopt::set_tcp_keepcnt(stream, self.count)?;
        }
        let silence_ms = self.interval_s.saturating_mul(self.count).saturating_add(self.idle_s).saturating_mul(1000);
        match self.user_timeout_ms.or(self.is_on.then_some(silence_ms)) {
            Some(timeout_ms) => Ok(sockopt::set_tcp_user_timeout(stream, timeout_ms)?),
            None => Ok(()),
        }
    }
}
