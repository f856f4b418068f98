//! libpq's password file: `host:port:database:user:password`, one a line, `*` for anything.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::conninfo::{ConnectSettings, Secret};
use crate::error::{Error, ErrorKind, Result};

/// The password of the first line of `path` that fits `settings`; none when the file is missing or nothing fits.
///
/// # Errors
/// `Configuration` if the file can be read or written by others (libpq ignores such a file; silence would only turn
/// into a puzzling log-in failure) or cannot be read.
pub(super) fn find_password(path: &Path, settings: &ConnectSettings) -> Result<Option<Secret>> {
    let action = || format!("use the password file {}", path.display());
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(_) => return Ok(None),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(Error::new(ErrorKind::Configuration, action(), cause)),
    };
    if metadata.mode() & 0o077 != 0 {
        return Err(Error::new(ErrorKind::Configuration, action(), "other users may read or write it")
            .hint(format!("chmod 0600 {}", path.display())));
    }
    let bytes = std::fs::read(path).map_err(|cause| Error::new(ErrorKind::Configuration, action(), cause))?;
    Ok(String::from_utf8_lossy(&bytes).lines().find_map(|line| password_of_line(line, settings)))
}

fn password_of_line(line: &str, settings: &ConnectSettings) -> Option<Secret> {
    if line.starts_with('#') {
        return None;
    }
    let fields = split_fields(line)?;
    let port = settings.port.to_string();
    // A socket connection is "localhost" in this file.
    let host_fits = fits(&fields[0], &settings.host) || settings.is_unix_socket() && fits(&fields[0], "localhost");
    let all_fit = host_fits
        && fits(&fields[1], &port)
        && fits(&fields[2], &settings.database)
        && fits(&fields[3], &settings.user);
    all_fit.then(|| Secret::new(fields[4].text.clone()))
}

/// One field, and whether it was a bare `*` (an escaped star is a name).
#[derive(Default)]
struct Field {
    text: String,
    is_wildcard: bool,
}

fn fits(field: &Field, value: &str) -> bool {
    field.is_wildcard || field.text == value
}

/// Five fields with `\:` and `\\` undone; the password runs to the end of the line only up to a further bare colon.
fn split_fields(line: &str) -> Option<[Field; 5]> {
    let mut fields: [Field; 5] = Default::default();
    let mut index = 0;
    let mut escaped = false;
    for character in line.chars() {
        match character {
            '\\' if !escaped => {
                escaped = true;
                continue;
            }
            ':' if !escaped => {
                index += 1;
                if index == fields.len() {
                    break;
                }
                continue;
            }
            _ => {}
        }
        let field = &mut fields[index];
        field.is_wildcard = character == '*' && !escaped && field.text.is_empty();
        field.text.push(character);
        escaped = false;
    }
    (index >= 4).then_some(fields)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::tls_settings::TlsSettings;
    use super::*;
    use crate::source::keepalive::Keepalive;

    fn settings() -> ConnectSettings {
        ConnectSettings {
            host: "/run/pg".into(),
            port: 5432,
            user: "us:er".into(),
            database: "postgres".into(),
            password: None,
            tls: TlsSettings::off(),
            connect_timeout_s: 10,
            keepalive: Keepalive::default(),
        }
    }

    #[test]
    fn the_first_fitting_line_wins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pgpass");
        let lines = "# note\nother:*:*:*:no\nlocalhost:5432:*:us\\:er:p\\:a\\\\ss\n*:*:*:*:later\n";
        std::fs::write(&path, lines).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find_password(&path, &settings()).unwrap().unwrap().reveal(), "p:a\\ss");
        let other = ConnectSettings { user: "x".into(), ..settings() };
        assert_eq!(find_password(&path, &other).unwrap().unwrap().reveal(), "later");
        assert!(password_of_line("\\*:*:*:*:escaped star", &settings()).is_none());
        assert!(password_of_line("too:few", &settings()).is_none());
    }

    #[test]
    fn a_readable_file_is_refused_and_a_missing_one_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pgpass");
        assert!(find_password(&path, &settings()).unwrap().is_none());
        std::fs::write(&path, "*:*:*:*:x").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let error = find_password(&path, &settings()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
    }
}
