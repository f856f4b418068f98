//! Which server, as whom, with which password, and how the connection is encrypted.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::secrets::MSSQL_PASSWORD_VARIABLE;

/// Port of a default instance.
const PORT_DEFAULT: u16 = 1433;
/// A server has to answer and to let us in within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest names and passwords that a log-in can carry, in UTF-16 units.
pub(super) const LOGIN_FIELD_UNITS_MAX: usize = 128;

/// How much of the connection is encrypted; the names are those of Microsoft's drivers, and `plain`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    /// TDS 8: TLS from the first byte on (SQL Server 2022 and later).
    Strict,
    /// Everything behind the first two packets.
    #[default]
    Mandatory,
    /// The log-in, and the rest if the server wants it.
    Optional,
    /// Nothing: the password can be read on the network.
    Plain,
}

impl Encryption {
    const ALL: [(Encryption, &'static str); 4] = [
        (Encryption::Strict, "strict"),
        (Encryption::Mandatory, "mandatory"),
        (Encryption::Optional, "optional"),
        (Encryption::Plain, "plain"),
    ];
}

impl FromStr for Encryption {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Encryption::ALL.iter().find(|(_, name)| *name == text).map(|(mode, _)| *mode).ok_or_else(|| {
            Error::new(ErrorKind::Usage, format!("use {text:?} for --encrypt"), "there is no such mode")
                .hint("it is strict (TDS 8), mandatory, optional (the log-in only) or plain (nothing)")
        })
    }
}

/// Whose certificate is believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Authorities {
    /// The operating system's.
    #[default]
    System,
    /// Those in a file of PEM; the server's own certificate may stand there, too.
    File(PathBuf),
    /// Anybody's: whoever sits in between can read and change everything.
    Anyone,
}

/// A password that no debug output shows.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// Of this text.
    pub fn new(text: impl Into<String>) -> Self {
        Password(text.into())
    }

    /// The password in `file`, or else in the environment; a line break at its end does not belong to it.
    ///
    /// # Errors
    /// `Configuration` if there is none, or others may read the file.
    pub fn find(file: Option<&Path>) -> Result<Self> {
        if let Some(path) = file {
            return Password::read(path);
        }
        std::env::var(MSSQL_PASSWORD_VARIABLE).map(Password).map_err(|_| {
            Error::new(ErrorKind::Configuration, "log in to SQL Server", "no password is given").hint(format!(
                "put it into a file that only you can read and name that with --password-file, or set {MSSQL_PASSWORD_VARIABLE}"
            ))
        })
    }

    fn read(path: &Path) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let bad = |cause: String| {
            Error::new(ErrorKind::Configuration, format!("read the password in {}", path.display()), cause)
        };
        let metadata = std::fs::metadata(path).map_err(|cause| bad(cause.to_string()))?;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(
                bad("other users may read or write it".to_owned()).hint(format!("chmod 0600 {}", path.display()))
            );
        }
        let text = std::fs::read_to_string(path).map_err(|cause| bad(cause.to_string()))?;
        Ok(Password(text.trim_end_matches(['\n', '\r']).to_owned()))
    }

    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(***)")
    }
}

/// Everything a connection needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// SQL Server log-in.
    pub user: String,
    /// Its password.
    pub password: Password,
    /// How it is encrypted.
    pub encryption: Encryption,
    /// Whose certificate is believed.
    pub authorities: Authorities,
    /// Name that the certificate must be for, where it is not the host's.
    pub host_in_certificate: Option<String>,
    /// For connecting and logging in together.
    pub connect_timeout: Duration,
}

impl ServerAddress {
    /// The server at `text` (`HOST`, `HOST:PORT`, `HOST,PORT`, `tcp:HOST,PORT`, `[v6]:PORT`) for `user`, everything
    /// else as usual.
    ///
    /// # Errors
    /// `Usage` for what is no address.
    pub fn parse(text: &str, user: &str, password: Password) -> Result<Self> {
        let bad = |cause: &str| {
            Error::new(ErrorKind::Usage, format!("use {text:?} for --server"), cause)
                .hint("examples are db1, db1:1433, db1,1433, 10.0.0.5:1433, [fd00::5]:1433")
        };
        let plain = text.trim();
        let plain = plain.strip_prefix("tcp:").unwrap_or(plain);
        if plain.contains('\\') {
            return Err(bad("an instance is found by its port here, not by its name")
                .hint("ask the server: SELECT local_tcp_port FROM sys.dm_exec_connections WHERE session_id = @@SPID"));
        }
        let (host, port) = split_port(plain).ok_or_else(|| bad("that is no address"))?;
        if host.is_empty() || host.chars().any(|sign| sign.is_whitespace() || sign.is_control()) {
            return Err(bad("it names no host"));
        }
        let too_long = |field: &str| field.encode_utf16().count() > LOGIN_FIELD_UNITS_MAX;
        if user.is_empty() || too_long(user) || too_long(password.reveal()) {
            let cause = format!("a name has 1 to {LOGIN_FIELD_UNITS_MAX} characters, and a password no more");
            return Err(Error::new(ErrorKind::Usage, "log in to SQL Server", cause));
        }
        Ok(ServerAddress {
            host: host.to_owned(),
            port,
            user: user.to_owned(),
            password,
            encryption: Encryption::default(),
            authorities: Authorities::default(),
            host_in_certificate: None,
            connect_timeout: CONNECT_TIMEOUT,
        })
    }

    /// The name that the server's certificate must be for.
    pub(super) fn certificate_name(&self) -> &str {
        self.host_in_certificate.as_deref().unwrap_or(&self.host)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SQL Server at {}:{} as {}", self.host, self.port, self.user)
    }
}

/// Host and port of `text`, the port behind a comma, or behind the only colon or the one behind brackets.
fn split_port(text: &str) -> Option<(&str, u16)> {
    let port_of = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    if let Some((host, port)) = text.split_once(',') {
        return Some((host.trim().trim_matches(['[', ']']), port_of(port)?));
    }
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, port_of(port)?)),
            None => rest.is_empty().then_some((host, PORT_DEFAULT)),
        };
    }
    match text.matches(':').count() {
        1 => {
            let (host, port) = text.split_once(':')?;
            Some((host, port_of(port)?))
        }
        // None, or a plain IPv6 address.
        _ => Some((text, PORT_DEFAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ServerAddress> {
        ServerAddress::parse(text, "sa", Password::new("secret"))
    }

    #[test]
    fn addresses_as_people_write_them() {
        let cases = [
            ("db1", ("db1", 1433)),
            ("db1:1500", ("db1", 1500)),
            ("tcp:db1,1500", ("db1", 1500)),
            ("10.0.0.5", ("10.0.0.5", 1433)),
            ("[fd00::5]:1500", ("fd00::5", 1500)),
            ("fd00::5", ("fd00::5", 1433)),
            ("[fd00::5]", ("fd00::5", 1433)),
        ];
        for (text, (host, port)) in cases {
            let address = parse(text).unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port), "{text}");
        }
        for bad in ["", "db1:x", "db1:0", "db1,99999", "db 1", "[fd00::5]x", "db1\\SQLEXPRESS"] {
            assert_eq!(parse(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
        assert!(parse("db1\\SQLEXPRESS").unwrap_err().hint_text().unwrap().contains("local_tcp_port"));
        assert!(ServerAddress::parse("db1", &"x".repeat(129), Password::default()).is_err());
    }

    #[test]
    fn passwords_stay_secret() {
        assert!(!format!("{:?}", parse("db1").unwrap()).contains("secret"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "pass word\r\n").unwrap();
        assert_eq!(Password::find(Some(file.path())).unwrap().reveal(), "pass word");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(file.path(), open).unwrap();
        let error = Password::find(Some(file.path())).unwrap_err();
        assert!(error.hint_text().unwrap().contains("chmod 0600"), "{error}");
    }

    #[test]
    fn encryption_is_named_as_drivers_name_it() {
        assert_eq!("strict".parse::<Encryption>().unwrap(), Encryption::Strict);
        assert!("yes".parse::<Encryption>().unwrap_err().hint_text().unwrap().contains("mandatory"));
    }
}
