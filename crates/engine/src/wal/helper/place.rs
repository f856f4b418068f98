//! Where the helper's socket is: a place that nobody else can write to, and a name that only equal settings of the same
//! program lead to.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::HelperSettings;
use crate::error::{Error, ErrorKind, Result};

/// Files of one helper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HelperPlace {
    /// Where it listens.
    pub(super) socket: PathBuf,
    /// Held for as long as it lives.
    pub(super) lock: PathBuf,
}

impl HelperPlace {
    /// The place of the helper with these settings; makes the directory.
    ///
    /// # Errors
    /// `Configuration` if there is no safe place.
    pub(super) fn of(settings: &HelperSettings) -> Result<Self> {
        Self::in_directory(&directory(std::env::var_os("XDG_RUNTIME_DIR"), Path::new("/tmp"))?, settings)
    }

    pub(super) fn in_directory(directory: &Path, settings: &HelperSettings) -> Result<Self> {
        let program = program_identity(Path::new("/proc/self/exe"))?;
        let settings = serde_json::to_string(settings)
            .map_err(|cause| Error::new(ErrorKind::Configuration, "name a helper", cause))?;
        let digest = Sha256::digest(format!("{program}\n{settings}"));
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let file = |kind: &str| directory.join(format!("wal-{name}.{kind}"));
        Ok(HelperPlace { socket: file("socket"), lock: file("lock") })
    }
}

/// What tells one build of the program from another.
fn program_identity(program: &Path) -> Result<String> {
    let file = std::fs::metadata(program)
        .map_err(|cause| Error::new(ErrorKind::Configuration, "look at the own program", cause))?;
    let time = (file.mtime(), file.mtime_nsec());
    Ok(format!("{} {} {} {} {time:?}", env!("CARGO_PKG_VERSION"), file.dev(), file.ino(), file.size()))
}

/// Our directory for sockets: below the runtime directory if that is ours, else below `shared`.
fn directory(runtime: Option<OsString>, shared: &Path) -> Result<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let runtime = runtime.map(PathBuf::from).filter(|path| {
        path.is_absolute() && std::fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == own)
    });
    let path = match runtime {
        Some(runtime) => runtime.join("pagehaul"),
        None => shared.join(format!("pagehaul-{own}")),
    };
    let refused = |cause: &dyn std::fmt::Display| {
        Error::new(ErrorKind::Configuration, format!("use {} for the helper's socket", path.display()), cause)
    };
    match rustix::fs::mkdir(&path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(cause) => return Err(refused(&cause)),
    }
    let found = std::fs::symlink_metadata(&path).map_err(|cause| refused(&cause))?;
    if !found.is_dir() {
        return Err(refused(&"it is no directory"));
    }
    if found.uid() != own {
        return Err(refused(&format!("it belongs to user {}", found.uid())));
    }
    if found.mode() & 0o077 != 0 {
        let mode = found.mode() & 0o7777;
        return Err(refused(&format!("its mode is {mode:04o}, others may enter")).hint("chmod 0700 it, or remove it"));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::super::Role;
    use super::*;
    use crate::encryption::KeySources;

    fn settings() -> HelperSettings {
        HelperSettings {
            source: "main".parse().unwrap(),
            repo: "/backup".to_owned(),
            wal_directory: "/data/pg_wal".into(),
            role: Role::Get { system_identifier: None, decoders: None },
            idle_s: 60,
            keys: KeySources::default(),
        }
    }

    #[test]
    fn only_equal_settings_meet() {
        let place = |settings: &HelperSettings| HelperPlace::in_directory(Path::new("/d"), settings).unwrap();
        let first = place(&settings());
        assert_eq!(first, place(&settings()));
        let changes: [fn(&mut HelperSettings); 7] = [
            |settings| settings.source = "other".parse().unwrap(),
            |settings| settings.repo = "/backup2".to_owned(),
            |settings| settings.wal_directory = "/data2/pg_wal".into(),
            |settings| settings.idle_s = 61,
            |settings| settings.keys.recipients.push("age1".to_owned()),
            |settings| settings.role = Role::Get { system_identifier: Some(1), decoders: None },
            |settings| {
                settings.role =
                    Role::Push { pgdata: None, compression: "zstd:1".to_owned(), encoders: None, bundle_bytes_max: 1 }
            },
        ];
        for change in changes {
            let mut other = settings();
            change(&mut other);
            assert_ne!(place(&other), first, "{other:?}");
        }
        let name = first.socket.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("wal-") && name.len() < 32, "a socket's path has 107 bytes at most: {name}");
    }

    #[test]
    fn an_upgraded_program_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("pagehaul");
        std::fs::write(&program, b"old").unwrap();
        let old = program_identity(&program).unwrap();
        assert_eq!(program_identity(&program).unwrap(), old);
        // As a package manager does it.
        std::fs::write(directory.path().join("pagehaul.new"), b"new").unwrap();
        std::fs::rename(directory.path().join("pagehaul.new"), &program).unwrap();
        assert_ne!(program_identity(&program).unwrap(), old);
    }

    #[test]
    fn the_directory_is_ours_alone() {
        let shared = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let fallback = shared.path().join(format!("pagehaul-{own}"));
        assert_eq!(directory(None, shared.path()).unwrap(), fallback);
        assert_eq!(std::fs::metadata(&fallback).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(directory(None, shared.path()).unwrap(), fallback, "again");

        let runtime = tempfile::tempdir().unwrap();
        let named = Some(runtime.path().as_os_str().to_owned());
        assert_eq!(directory(named.clone(), shared.path()).unwrap(), runtime.path().join("pagehaul"));
        for no_runtime in ["", "relative", "/nowhere/at/all", "/proc/self/exe"] {
            assert_eq!(directory(Some(no_runtime.into()), shared.path()).unwrap(), fallback, "{no_runtime:?}");
        }
        if own == 0 {
            chown(runtime.path(), Some(1), None).unwrap();
            assert_eq!(directory(named, shared.path()).unwrap(), fallback, "somebody else's runtime directory");
        } else {
            eprintln!("SKIPPED: only root can give a directory away");
        }
    }

    #[test]
    fn what_is_not_ours_alone_is_refused() {
        let own = rustix::process::geteuid().as_raw();
        let name = format!("pagehaul-{own}");
        let refusal = |make: &dyn Fn(&Path)| {
            let shared = tempfile::tempdir().unwrap();
            make(&shared.path().join(&name));
            directory(None, shared.path()).unwrap_err().to_string()
        };
        for mode in [0o701, 0o770, 0o755, 0o1777] {
            let said = refusal(&|path| {
                std::fs::create_dir(path).unwrap();
                std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
            });
            assert!(said.contains(&format!("its mode is {mode:04o}")), "{said}");
        }
        let said = refusal(&|path| std::fs::write(path, b"").unwrap());
        assert!(said.contains("no directory"), "{said}");
        let elsewhere = tempfile::tempdir().unwrap();
        let said = refusal(&|path| symlink(elsewhere.path(), path).unwrap());
        assert!(said.contains("no directory"), "a link, even to one of ours: {said}");
        if own == 0 {
            let said = refusal(&|path| {
                std::fs::create_dir(path).unwrap();
                std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
                chown(path, Some(1), None).unwrap();
            });
            assert!(said.contains("belongs to user 1"), "{said}");
        } else {
            eprintln!("SKIPPED: only root can give a directory away");
        }
    }
}
