//! How to reach a server: libpq's connection strings, environment and password file, without libpq.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::passfile;
use super::tls_settings::{self, TlsSettings};
use crate::error::{Error, ErrorKind, Result};
use crate::source::keepalive::Keepalive;

/// The keys a connection string may have; `hostaddr` is accepted as a numeric `host`.
const ACCEPTED_KEYS: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "user",
    "dbname",
    "password",
    "passfile",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "channel_binding",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "application_name",
];

/// Directories where distributions put the server's socket.
const SOCKET_DIRECTORIES: &[&str] = &["/var/run/postgresql", "/tmp"];

const DEFAULT_PORT: u16 = 5432;
const DEFAULT_CONNECT_TIMEOUT_S: u64 = 10;

/// A text that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself; never print it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

/// Everything needed to open one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectSettings {
    /// A host name, a numeric address, or the directory of a Unix socket (starts with `/`).
    pub host: String,
    /// The TCP port; also part of the socket's file name.
    pub port: u16,
    /// The role to log in as.
    pub user: String,
    /// The database to connect to; a backup does not care which.
    pub database: String,
    /// The password, from wherever it was found first.
    pub password: Option<Secret>,
    /// Whether and how it is encrypted; a Unix socket never is.
    pub tls: TlsSettings,
    /// How long to wait for the connection and the log-in, in seconds.
    pub connect_timeout_s: u64,
    /// How a vanished server is noticed; a Unix socket needs none of it.
    pub keepalive: Keepalive,
}

/// How settings are looked up outside the connection string; tests bring their own.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl ConnectSettings {
    /// The settings of `conninfo` (`key=value ...` or a `postgresql://` URI), filled up from the `PG...` environment,
    /// `~/.pgpass` and libpq's defaults.
    ///
    /// # Errors
    /// `Usage` for a malformed string, an unknown key or a value out of range; `Configuration` for a bad environment.
    pub fn parse(conninfo: &str) -> Result<Self> {
        resolve(conninfo, None, &process_environment)
    }

    /// The settings for the server that runs on `pgdata`, found through its `postmaster.pid`.
    ///
    /// # Errors
    /// `Source` when no server runs there, or the file cannot be read.
    pub fn for_data_directory(pgdata: &Path) -> Result<Self> {
        resolve("", Some(pgdata), &process_environment)
    }

    /// As [`ConnectSettings::parse`], but a host and port that `conninfo` leaves out come from `pgdata`'s
    /// `postmaster.pid` before the environment is asked: the directory says more exactly which server is meant.
    ///
    /// # Errors
    /// As the two above.
    pub fn parse_for_data_directory(conninfo: &str, pgdata: &Path) -> Result<Self> {
        resolve(conninfo, Some(pgdata), &process_environment)
    }

    /// Whether `host` is a socket directory.
    pub fn is_unix_socket(&self) -> bool {
        self.host.starts_with('/')
    }

    /// Whether the host is certainly this machine: a socket, or an address that never leaves it.
    pub fn is_this_machine(&self) -> bool {
        let is_loopback = |host: &str| host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        self.is_unix_socket() || self.host == "localhost" || is_loopback(&self.host)
    }

    /// The path of the server's Unix socket (`.s.PGSQL.5432` in the socket directory).
    pub fn socket_path(&self) -> PathBuf {
        Path::new(&self.host).join(format!(".s.PGSQL.{}", self.port))
    }
}

/// For messages: who and where, never the password.
impl fmt::Display for ConnectSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server at {} port {} as user {:?}", self.host, self.port, self.user)
    }
}

/// Puts the layers together: string, then `postmaster.pid`, then environment, then defaults.
fn resolve(conninfo: &str, pgdata: Option<&Path>, lookup: Lookup<'_>) -> Result<ConnectSettings> {
    let mut given = parse_pairs(conninfo)?;
    let server_name = given.get("host").cloned();
    if let Some(address) = given.remove("hostaddr") {
        given.insert("host".into(), address);
    }
    let discovered = match pgdata {
        Some(directory) if !given.contains_key("host") => Some(read_postmaster_pid(directory)?),
        _ => None,
    };
    let get = |key: &str, variable: &str| {
        given.get(key).cloned().or_else(|| lookup(variable)).filter(|value| !value.is_empty())
    };
    let port = match (given.get("port"), &discovered) {
        (None, Some(found)) => found.port,
        _ => get("port", "PGPORT").map_or(Ok(DEFAULT_PORT), |text| parse_port(&text))?,
    };
    let host = match &discovered {
        Some(found) => found.host.clone(),
        None => get("host", "PGHOST").unwrap_or_else(|| default_host(port)),
    };
    if host.contains(',') {
        return Err(Error::new(ErrorKind::Usage, "use the connection string", "it names more than one host")
            .hint("name the one host whose data directory is backed up"));
    }
    let home = lookup("HOME").map(PathBuf::from);
    let server_name = server_name.filter(|name| !name.is_empty()).unwrap_or_else(|| host.clone());
    let mut settings = ConnectSettings {
        host,
        port,
        user: get("user", "PGUSER").or_else(|| os_user(lookup)).unwrap_or_else(|| "postgres".into()),
        database: get("dbname", "PGDATABASE").unwrap_or_else(|| "postgres".into()),
        password: get("password", "PGPASSWORD").map(Secret::new),
        tls: tls_settings::resolve(server_name, &get, home.as_deref())?,
        connect_timeout_s: connect_timeout(get("connect_timeout", "PGCONNECT_TIMEOUT").as_deref())?,
        keepalive: keepalive(&given)?,
    };
    if settings.password.is_none() {
        let file = get("passfile", "PGPASSFILE").or_else(|| Some(format!("{}/.pgpass", lookup("HOME")?)));
        settings.password = match file {
            Some(path) => passfile::find_password(Path::new(&path), &settings)?,
            None => None,
        };
    }
    Ok(settings)
}

fn process_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn parse_port(text: &str) -> Result<u16> {
    text.parse()
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Error::new(ErrorKind::Usage, format!("use {text:?} as a port"), "not a number from 1 to 65535"))
}

fn connect_timeout(text: Option<&str>) -> Result<u64> {
    match text.map(str::parse) {
        None => Ok(DEFAULT_CONNECT_TIMEOUT_S),
        // libpq reads 0 as "for ever"; a backup that waits for ever is a backup nobody hears about.
        Some(Ok(0)) => Ok(DEFAULT_CONNECT_TIMEOUT_S),
        Some(Ok(seconds)) => Ok(seconds),
        Some(Err(_)) => Err(Error::new(ErrorKind::Usage, "use connect_timeout", "not a number of seconds")),
    }
}

/// libpq's keys for it, which have no environment variables; 0, and what is not given, is our default.
fn keepalive(given: &BTreeMap<String, String>) -> Result<Keepalive> {
    let number = |key: &str, default: u32| match given.get(key).map(|text| text.parse()) {
        None | Some(Ok(0)) => Ok(default),
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) => Err(Error::new(ErrorKind::Usage, format!("use {key}"), "not a number from 0 to 4294967295")),
    };
    let default = Keepalive::default();
    Ok(Keepalive {
        is_on: given.get("keepalives").is_none_or(|text| text != "0"),
        idle_s: number("keepalives_idle", default.idle_s)?,
        interval_s: number("keepalives_interval", default.interval_s)?,
        count: number("keepalives_count", default.count)?,
        user_timeout_ms: Some(number("tcp_user_timeout", 0)?).filter(|timeout| *timeout > 0),
    })
}

/// The first directory that has this port's socket; without any, the one of most distributions.
fn default_host(port: u16) -> String {
    let has_socket = |directory: &&&str| Path::new(directory).join(format!(".s.PGSQL.{port}")).exists();
    (*SOCKET_DIRECTORIES.iter().find(has_socket).unwrap_or(&SOCKET_DIRECTORIES[0])).to_owned()
}

/// The name of the OS user this process acts as.
fn os_user(lookup: Lookup<'_>) -> Option<String> {
    let own_uid = rustix::process::geteuid().as_raw();
    user_by(|_, uid| uid == own_uid).map(|user| user.name).or_else(|| lookup("USER")).or_else(|| lookup("LOGNAME"))
}

/// One line of `/etc/passwd`.
pub(super) struct OsUser {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// The first user of `/etc/passwd` for whom `wanted(name, uid)` holds.
pub(super) fn user_by(wanted: impl Fn(&str, u32) -> bool) -> Option<OsUser> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        wanted(name, uid).then(|| OsUser { name: name.to_owned(), uid, gid })
    })
}

/// Where a running server says it listens.
struct Discovered {
    host: String,
    port: u16,
}

/// Reads port (line 4), socket directory (line 5) and listen address (line 6).
///
/// The rule: src/include/utils/pidfile.h.
fn read_postmaster_pid(pgdata: &Path) -> Result<Discovered> {
    let path = pgdata.join("postmaster.pid");
    let action = || format!("find the server that runs on {}", pgdata.display());
    let text = std::fs::read_to_string(&path).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::NotFound => {
            Error::new(ErrorKind::Source, action(), "there is no postmaster.pid, so no server is running on it")
                .hint("start the server, or name it with --connection")
        }
        std::io::ErrorKind::PermissionDenied => {
            Error::new(ErrorKind::Source, action(), format!("{}: {cause}", path.display())).hint(owner_hint(pgdata))
        }
        _ => Error::new(ErrorKind::Source, action(), format!("{}: {cause}", path.display())),
    })?;
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let port = lines.get(3).and_then(|line| line.parse().ok());
    let socket_directory = lines.get(4).copied().filter(|line| !line.is_empty());
    let address = lines.get(5).copied().filter(|line| !line.is_empty());
    let incomplete = || Error::new(ErrorKind::Source, action(), "postmaster.pid names neither a socket nor an address");
    let host = match (socket_directory, address) {
        (Some(directory), _) => directory.to_owned(),
        (None, Some("*" | "0.0.0.0")) => "127.0.0.1".to_owned(),
        (None, Some("::")) => "::1".to_owned(),
        (None, Some(address)) => address.to_owned(),
        (None, None) => return Err(incomplete().hint("is the server still starting? name it with --connection")),
    };
    Ok(Discovered { host, port: port.ok_or_else(incomplete)? })
}

/// "run as the OS user who owns the data directory", with the name where it can be told.
pub(super) fn owner_hint(path: &Path) -> String {
    let owner = std::fs::metadata(path).ok().and_then(|meta| user_by(|_, uid| uid == meta.uid()));
    match owner {
        Some(user) => format!("run as the OS user who owns the data directory: {}", user.name),
        None => "run as the OS user who owns the data directory".to_owned(),
    }
}

fn parse_pairs(conninfo: &str) -> Result<BTreeMap<String, String>> {
    let uri = conninfo.strip_prefix("postgresql://").or_else(|| conninfo.strip_prefix("postgres://"));
    let pairs = match uri {
        Some(rest) => parse_uri(rest),
        None => parse_keywords(conninfo),
    };
    // The string may hold a password: messages about it never quote it.
    let pairs = pairs.map_err(|cause| Error::new(ErrorKind::Usage, "read the connection string", cause))?;
    for key in pairs.keys() {
        if !ACCEPTED_KEYS.contains(&key.as_str()) {
            return Err(Error::new(ErrorKind::Usage, "read the connection string", format!("unknown key {key:?}"))
                .hint(format!("accepted keys: {}", ACCEPTED_KEYS.join(", "))));
        }
    }
    Ok(pairs)
}

type Pairs = std::result::Result<BTreeMap<String, String>, String>;

/// `key = value key='quoted \' value'`, as libpq's conninfo_parse reads it.
fn parse_keywords(text: &str) -> Pairs {
    let mut pairs = BTreeMap::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or("a key has no '=' after it")?;
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err("a key has no '=' after it".into());
        }
        let (value, after) = take_value(after.trim_start())?;
        pairs.insert(key.to_owned(), value);
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// One value, quoted or not, with its escapes undone, and what follows it.
fn take_value(text: &str) -> std::result::Result<(String, &str), String> {
    let quoted = text.starts_with('\'');
    let mut value = String::new();
    let mut characters = text.char_indices().skip(usize::from(quoted));
    while let Some((position, character)) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some((_, escaped)) => value.push(escaped),
                None => return Err("it ends with a backslash".into()),
            },
            '\'' if quoted => return Ok((value, &text[position + 1..])),
            blank if !quoted && blank.is_whitespace() => return Ok((value, &text[position..])),
            other => value.push(other),
        }
    }
    if quoted { Err("a quoted value has no end".into()) } else { Ok((value, "")) }
}

/// `[user[:password]@][host][:port][/dbname][?key=value&...]`, the scheme already gone.
fn parse_uri(text: &str) -> Pairs {
    let mut pairs = BTreeMap::new();
    let mut put = |key: &str, value: &str| -> std::result::Result<(), String> {
        if !value.is_empty() {
            pairs.insert(percent_decode(key)?, percent_decode(value)?);
        }
        Ok(())
    };
    let (text, parameters) = text.split_once('?').unwrap_or((text, ""));
    let (authority, database) = text.split_once('/').unwrap_or((text, ""));
    put("dbname", database)?;
    let (userinfo, place) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    put("user", user)?;
    put("password", password)?;
    let (host, port) = match place.strip_prefix('[') {
        Some(bracketed) => {
            let (address, after) = bracketed.split_once(']').ok_or("an IPv6 address has no ']'")?;
            (address, after.strip_prefix(':').unwrap_or(""))
        }
        None => place.split_once(':').unwrap_or((place, "")),
    };
    put("host", host)?;
    put("port", port)?;
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').ok_or("a parameter has no '='")?;
        put(key, value)?;
    }
    Ok(pairs)
}

fn percent_decode(text: &str) -> std::result::Result<String, String> {
    let bad = || "a '%' is not followed by two hexadecimal digits".to_owned();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digits = after.get(..2).and_then(|pair| std::str::from_utf8(pair).ok()).ok_or_else(bad)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn keywords_with_quotes_and_escapes() {
        let settings =
            resolve(r"host = /run/pg port=6000 user='o\'neil x' password=a\ b dbname=''", None, &nothing).unwrap();
        assert_eq!(settings.host, "/run/pg");
        assert_eq!(settings.port, 6000);
        assert_eq!(settings.user, "o'neil x");
        assert_eq!(settings.password.as_ref().unwrap().reveal(), "a b");
        assert_eq!(settings.database, "postgres");
        assert_eq!(settings.socket_path(), Path::new("/run/pg/.s.PGSQL.6000"));
    }

    #[test]
    fn uris() {
        let settings = resolve("postgresql://u%40x:p%3Aw@[::1]:6001/db?sslmode=disable", None, &nothing).unwrap();
        assert_eq!((settings.host.as_str(), settings.port), ("::1", 6001));
        assert_eq!((settings.user.as_str(), settings.database.as_str()), ("u@x", "db"));
        assert_eq!(settings.password.unwrap().reveal(), "p:w");
        assert_eq!(settings.tls.mode, tls_settings::SslMode::Disable);
        let settings = resolve("postgres://%2Fvar%2Frun/x", None, &nothing).unwrap();
        assert_eq!(settings.host, "/var/run");
    }

    #[test]
    fn keepalives_are_those_of_libpqs_keys() {
        let of = |text: &str| resolve(text, None, &nothing).map(|settings| settings.keepalive);
        let default = Keepalive::default();
        assert_eq!(of("host=db keepalives=1 keepalives_idle=0").unwrap(), default);
        let text = "host=db keepalives_idle=7 keepalives_interval=3 keepalives_count=2 tcp_user_timeout=9000";
        let expected = Keepalive { idle_s: 7, interval_s: 3, count: 2, user_timeout_ms: Some(9000), is_on: true };
        assert_eq!(of(text).unwrap(), expected);
        assert_eq!(of("postgresql://db/?keepalives=0").unwrap(), Keepalive { is_on: false, ..default });
        assert_eq!(of("host=db keepalives_idle=soon").unwrap_err().kind(), ErrorKind::Usage);
    }

    #[test]
    fn malformed_strings_are_usage_errors_that_do_not_quote_the_password() {
        for bad in ["host", "host='x", "a b=c", "host=x\\", "postgresql://%zz", "port=0", "port=70000", "host=a,b"] {
            let error = resolve(bad, None, &nothing).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{bad}");
        }
        let error = resolve("password=hunter2 sslcrl=x", None, &nothing).unwrap_err();
        assert!(error.to_string().contains("sslcrl") && error.hint_text().unwrap().contains("hostaddr"));
        assert!(!format!("{error:?}").contains("hunter2"));
        let settings = resolve("password=hunter2 host=/x user=u", None, &nothing).unwrap();
        assert!(!format!("{settings:?} {settings}").contains("hunter2"));
    }

    #[test]
    fn the_environment_fills_gaps_and_the_data_directory_goes_before_it() {
        let environment = |name: &str| match name {
            "PGHOST" => Some("db.example".to_owned()),
            "PGPORT" => Some("7000".to_owned()),
            "PGUSER" => Some("backup".to_owned()),
            _ => None,
        };
        let settings = resolve("", None, &environment).unwrap();
        assert_eq!((settings.host.as_str(), settings.port, settings.user.as_str()), ("db.example", 7000, "backup"));
        let directory = tempfile::tempdir().unwrap();
        let error = resolve("", Some(directory.path()), &environment).unwrap_err();
        assert!(error.message().contains("no server is running"), "{error}");
        std::fs::write(directory.path().join("postmaster.pid"), "12\n/data\n1700000000\n5544\n/sock\n*\n").unwrap();
        let settings = resolve("user=x", Some(directory.path()), &environment).unwrap();
        assert_eq!((settings.host.as_str(), settings.port), ("/sock", 5544));
        std::fs::write(directory.path().join("postmaster.pid"), "12\n/data\n1700000000\n5544\n\n*\n").unwrap();
        let settings = resolve("", Some(directory.path()), &environment).unwrap();
        assert_eq!((settings.host.as_str(), settings.port), ("127.0.0.1", 5544));
    }
}
