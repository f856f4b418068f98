//! Who holds a lock: what a holder writes into what it has locked, for the people who meet it there.
//!
//! The lock alone decides. The words may be missing, or be those of a holder that has died.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Storage;

/// More than the words of any holder.
const HOLDER_BYTES_MAX: u64 = 4096;
const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// A process that holds something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    process: u32,
    host: String,
    /// RFC 3339, by its own clock.
    since: String,
}

impl Holder {
    /// This process, from now on.
    pub fn here() -> Self {
        let host = std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
        Holder { process: std::process::id(), host: host.trim().to_owned(), since: Timestamp::now().to_string() }
    }

    /// What to write into the locked file.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The holder that wrote `text`; None if it is not a holder's.
    pub fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    /// The holder of a lease; None if it has not said who it is.
    pub fn of_lease(storage: &dyn Storage, name: &str) -> Option<Self> {
        Self::parse(&storage.read_small(name, HOLDER_BYTES_MAX).ok()??)
    }

    /// The words for an error: `: process 4711 on db1, for 35 s`; none if nobody is known.
    pub fn suffix(holder: Option<&Self>) -> String {
        holder.map_or_else(String::new, |holder| format!(": {holder}"))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whoever writes into the repository must not write to our terminal.
        let host: String = self.host.chars().filter(|letter| !letter.is_control()).take(255).collect();
        write!(f, "process {} on {host}", self.process)?;
        // Its clock may be ahead of ours.
        let age_s = |since: Timestamp| Timestamp::now().duration_since(since).as_secs().max(0);
        self.since.parse().map_or(Ok(()), |since| write!(f, ", for {} s", age_s(since)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_known_by_what_it_wrote() {
        let holder = Holder::here();
        assert_eq!(Holder::parse(holder.to_text().as_bytes()), Some(holder.clone()));
        assert!(Holder::parse(b"").is_none() && Holder::parse(b"{}").is_none());
        let words = holder.to_string();
        assert!(words.starts_with(&format!("process {} on ", std::process::id())) && words.ends_with(" s"), "{words}");
    }

    #[test]
    fn a_clock_ahead_and_a_strange_name_are_no_trouble() {
        let since = Timestamp::now() + jiff::SignedDuration::from_hours(9);
        let holder = Holder { process: 1, host: "a\u{1b}[31m\nb".to_owned(), since: since.to_string() };
        assert_eq!(holder.to_string(), "process 1 on a[31mb, for 0 s");
        assert_eq!(Holder { since: "long ago".to_owned(), ..holder }.to_string(), "process 1 on a[31mb");
    }
}
