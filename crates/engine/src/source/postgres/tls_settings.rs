//! What a connection string and the environment say about encryption: libpq's `ssl...` keys and `PGSSL...` variables.

use std::path::{Path, PathBuf};

use super::conninfo::ConnectSettings;
use crate::error::{Error, ErrorKind, Result};

/// How much encryption is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// None.
    Disable,
    /// Only if the server does not let this user in without.
    Allow,
    /// If the server offers it.
    Prefer,
    /// Always; the server's certificate is looked at only if there is a root certificate.
    Require,
    /// Always, and the server's certificate must come from a known authority.
    VerifyCa,
    /// As that, and it must be for the host that was asked for.
    VerifyFull,
}

/// Whether the log-in must be bound to the server's certificate, which a server in between could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBindingMode {
    /// Never.
    Disable,
    /// If both sides can.
    Prefer,
    /// Always.
    Require,
}

/// Which authorities are believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootCert {
    /// None are known.
    None,
    /// Those in a file of PEM.
    File(PathBuf),
    /// Those of the operating system.
    System,
}

/// The certificate by which the server knows us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCert {
    /// PEM: the certificate, then those between it and the authority.
    pub cert: PathBuf,
    /// PEM: its key.
    pub key: PathBuf,
}

/// Everything about the encryption of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// How much is wanted.
    pub mode: SslMode,
    /// Whether anybody has said so, or it is what is usual.
    pub is_chosen: bool,
    /// The host that the server's certificate must be for.
    pub server_name: String,
    /// Whom to believe.
    pub root_cert: RootCert,
    /// Who we are, if the server asks.
    pub client_cert: Option<ClientCert>,
    /// Whether the log-in is bound to the certificate.
    pub channel_binding: ChannelBindingMode,
}

/// One try to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encryption {
    Never,
    IfOffered,
    Always,
}

impl TlsSettings {
    /// No encryption, as on a Unix socket.
    pub fn off() -> Self {
        TlsSettings {
            mode: SslMode::Disable,
            is_chosen: true,
            server_name: String::new(),
            root_cert: RootCert::None,
            client_cert: None,
            channel_binding: ChannelBindingMode::Disable,
        }
    }

    /// What to try, in order.
    pub(super) fn tries(&self) -> &'static [Encryption] {
        match self.mode {
            SslMode::Disable => &[Encryption::Never],
            SslMode::Allow => &[Encryption::Never, Encryption::Always],
            SslMode::Prefer => &[Encryption::IfOffered, Encryption::Never],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => &[Encryption::Always],
        }
    }

    /// Whether the server's certificate must come from a known authority: with `require` only if one is known, as in libpq.
    pub(super) fn checks_authority(&self) -> bool {
        self.mode >= SslMode::VerifyCa || self.mode == SslMode::Require && self.root_cert != RootCert::None
    }
}

/// What somebody on the way to the server could do to a connection that `is_encrypted` or not, for people; None where nobody is on the
/// way, or where somebody has said how much encryption is wanted.
pub fn exposure(settings: &ConnectSettings, is_encrypted: bool) -> Option<String> {
    // A password that is proven to the server's own certificate is of no use to somebody in between.
    let is_bound = is_encrypted && settings.tls.channel_binding == ChannelBindingMode::Require;
    if settings.tls.is_chosen || is_bound || settings.is_this_machine() {
        return None;
    }
    let what = if is_encrypted {
        "the certificate of the server was not checked, and somebody on the way could pose as it"
    } else {
        "the connection is not encrypted, and somebody on the way can read and change all of it"
    };
    let host = &settings.host;
    Some(format!(
        "{what}: say sslmode=verify-full sslrootcert=FILE in the connection string (or sslmode=prefer, if you trust the way to {host})"
    ))
}

/// Looks a key of the connection string up, or else a variable; None where both are empty.
pub(super) type Get<'a> = &'a dyn Fn(&str, &str) -> Option<String>;

/// The settings of a connection to `server_name`; files that nobody names are looked for in `home`.
///
/// # Errors
/// `Usage` for values that libpq does not know, `Configuration` for what is not supported here.
pub(super) fn resolve(server_name: String, get: Get<'_>, home: Option<&Path>) -> Result<TlsSettings> {
    if get("", "PGSSLCRL").or_else(|| get("", "PGSSLCRLDIR")).is_some() {
        let cause = "lists of revoked certificates are not supported";
        return Err(Error::new(ErrorKind::Configuration, "use PGSSLCRL", cause).hint("unset PGSSLCRL and PGSSLCRLDIR"));
    }
    let own = |name: &str| home.map(|home| home.join(".postgresql").join(name)).filter(|path| path.exists());
    let root_cert = match get("sslrootcert", "PGSSLROOTCERT") {
        Some(text) if text == "system" => RootCert::System,
        Some(path) => RootCert::File(path.into()),
        None => own("root.crt").map_or(RootCert::None, RootCert::File),
    };
    let asked = get("sslmode", "PGSSLMODE");
    let is_chosen = asked.is_some() || root_cert == RootCert::System;
    let mode = match asked.as_deref() {
        None if root_cert == RootCert::System => SslMode::VerifyFull,
        None => SslMode::Prefer,
        Some(text) => parse_mode(text)?,
    };
    if root_cert == RootCert::System && mode != SslMode::VerifyFull {
        let cause = "everybody can have a certificate from the system's authorities";
        return Err(Error::new(ErrorKind::Usage, "use sslrootcert=system without sslmode=verify-full", cause)
            .hint("use sslmode=verify-full, or leave sslmode out"));
    }
    let cert = get("sslcert", "PGSSLCERT").map(PathBuf::from).or_else(|| own("postgresql.crt"));
    let key = get("sslkey", "PGSSLKEY").map(PathBuf::from);
    let key = key.or_else(|| Some(home?.join(".postgresql/postgresql.key")));
    Ok(TlsSettings {
        mode,
        is_chosen,
        server_name,
        root_cert,
        client_cert: cert.zip(key).map(|(cert, key)| ClientCert { cert, key }),
        channel_binding: match get("channel_binding", "PGCHANNELBINDING").as_deref() {
            Some("disable") => ChannelBindingMode::Disable,
            None | Some("prefer") => ChannelBindingMode::Prefer,
            Some("require") => ChannelBindingMode::Require,
            Some(other) => return Err(unknown("channel_binding", other, "disable, prefer or require")),
        },
    })
}

fn parse_mode(text: &str) -> Result<SslMode> {
    Ok(match text {
        "disable" => SslMode::Disable,
        "allow" => SslMode::Allow,
        "prefer" => SslMode::Prefer,
        "require" => SslMode::Require,
        "verify-ca" => SslMode::VerifyCa,
        "verify-full" => SslMode::VerifyFull,
        _ => return Err(unknown("sslmode", text, "disable, allow, prefer, require, verify-ca or verify-full")),
    })
}

fn unknown(key: &str, value: &str, known: &str) -> Error {
    Error::new(ErrorKind::Usage, format!("use {key}={value}"), "there is no such value")
        .hint(format!("{key} is {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)], home: Option<&Path>) -> Result<TlsSettings> {
        let find = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        resolve("db".into(), &|key, variable| find(key).or_else(|| find(variable)), home)
    }

    #[test]
    fn s10_who_chose_nothing_is_told_what_somebody_on_the_way_could_do() {
        let told = |text: &str, is_encrypted| {
            exposure(&ConnectSettings::parse(&format!("user=u {text}")).unwrap(), is_encrypted).unwrap_or_default()
        };
        assert!(told("host=db.example", false).contains("is not encrypted"));
        assert!(told("host=db.example", true).contains("certificate of the server was not checked"));
        assert_eq!(told("host=db.example channel_binding=require", true), "");
        for text in ["host=db.example sslmode=prefer", "host=localhost", "host=127.0.0.1", "host=/run/postgresql"] {
            assert_eq!(told(text, false), "", "{text}");
        }
    }

    #[test]
    fn keys_go_before_variables_and_files_at_home() {
        let home = tempfile::tempdir().unwrap();
        let found = settings(&[], Some(home.path())).unwrap();
        assert_eq!((found.mode, &found.root_cert, &found.client_cert), (SslMode::Prefer, &RootCert::None, &None));
        let own = home.path().join(".postgresql");
        std::fs::create_dir(&own).unwrap();
        for name in ["root.crt", "postgresql.crt"] {
            std::fs::write(own.join(name), "").unwrap();
        }
        let found = settings(&[("PGSSLMODE", "require"), ("sslkey", "/k")], Some(home.path())).unwrap();
        assert!(found.checks_authority());
        assert_eq!(found.root_cert, RootCert::File(own.join("root.crt")));
        assert_eq!(found.client_cert, Some(ClientCert { cert: own.join("postgresql.crt"), key: "/k".into() }));
        let found = settings(&[("PGSSLROOTCERT", "/a"), ("sslrootcert", "/b"), ("PGSSLCERT", "/c")], None).unwrap();
        assert_eq!((found.root_cert, found.client_cert), (RootCert::File("/b".into()), None));
    }

    #[test]
    fn modes_say_what_is_tried() {
        let tries = |mode: &str| settings(&[("sslmode", mode)], None).unwrap().tries();
        assert_eq!(tries("disable"), [Encryption::Never]);
        assert_eq!(tries("allow"), [Encryption::Never, Encryption::Always]);
        assert_eq!(tries("prefer"), [Encryption::IfOffered, Encryption::Never]);
        for mode in ["require", "verify-ca", "verify-full"] {
            assert_eq!(tries(mode), [Encryption::Always]);
            assert_eq!(settings(&[("sslmode", mode)], None).unwrap().checks_authority(), mode != "require");
        }
    }

    #[test]
    fn what_would_be_weaker_than_asked_for_is_refused() {
        let kind = |pairs: &[(&str, &str)]| settings(pairs, None).unwrap_err().kind();
        assert_eq!(kind(&[("sslmode", "full")]), ErrorKind::Usage);
        assert_eq!(kind(&[("sslmode", "require"), ("sslrootcert", "system")]), ErrorKind::Usage);
        assert_eq!(kind(&[("channel_binding", "yes")]), ErrorKind::Usage);
        assert_eq!(kind(&[("PGSSLCRL", "/x")]), ErrorKind::Configuration);
        assert_eq!(settings(&[("sslrootcert", "system")], None).unwrap().mode, SslMode::VerifyFull);
    }
}
