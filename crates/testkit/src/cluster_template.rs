//! Clusters as initdb leaves them, made once for each version and way of making them and copied for every test: a copy takes a
//! tenth of a second and initdb a whole one.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use pagehaul_engine::format::checksum::crc32c;
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer, StopMode};
use pagehaul_engine::terms::SetId;

use crate::cluster::QUICK;

/// Where the system identifier is in the long page header that every WAL segment begins with (src/include/access/xlog_internal.h).
const WAL_SYSTEM_IDENTIFIER_OFFSET: u64 = 24;

/// A cluster in `data_directory`, which must not exist, like one that `ScratchServer::init` makes: with a system identifier
/// that no other cluster has.
pub fn init_cluster(install: &PgInstall, data_directory: &Path, options: &InitOptions) -> ScratchServer {
    // Files that an argument names may be others the next time.
    if options.extra_arguments.iter().any(|argument| argument.contains('/')) {
        return ScratchServer::init(install, data_directory, options).unwrap();
    }
    copy(&template(install, options), data_directory);
    become_another_cluster(data_directory);
    ScratchServer::adopt(install, data_directory).unwrap()
}

/// The template's directory, made if nobody has made it.
fn template(install: &PgInstall, options: &InitOptions) -> PathBuf {
    let postgres = install.bin_directory().join("postgres");
    let version = Command::new(&postgres).arg("--version").output().unwrap().stdout;
    let mut hasher = DefaultHasher::new();
    ("without template0", version, format!("{options:?}"), &postgres).hash(&mut hasher);
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    let place = PathBuf::from(format!("/var/tmp/pagehaul-testenv-{user}/clusters"));
    let template = place.join(format!("{}-{:016x}", install.major(), hasher.finish()));
    if !template.exists() {
        std::fs::create_dir_all(&place).unwrap();
        let unfinished = tempfile::Builder::new().prefix("unfinished-").tempdir_in(&place).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(unfinished.path(), open).unwrap();
        let made = unfinished.path().join("pgdata");
        remove_template0(&mut ScratchServer::init(install, &made, options).unwrap());
        // Another test may have been faster.
        std::fs::rename(&made, &template).ok();
        assert!(template.exists(), "no template in {}", template.display());
    }
    template
}

/// A third of an empty cluster's files are those of `template0`, which no test reads: without them each copy, backup and
/// restore of a test has so much less to do.
fn remove_template0(server: &mut ScratchServer) {
    server.start(QUICK).unwrap();
    let mut connection = server.connect().unwrap();
    connection.query("ALTER DATABASE template0 IS_TEMPLATE false").unwrap();
    connection.query("DROP DATABASE template0").unwrap();
    drop(connection);
    server.stop(StopMode::Fast).unwrap();
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "cp -a {} {}", from.display(), to.display());
}

fn become_another_cluster(data_directory: &Path) {
    // Of every second cluster it is a negative number to SQL, as it will be of those that initdb makes from 2038 on.
    let random = u128::from_le_bytes(SetId::random().unwrap().0) as u64;
    let identifier = random.to_le_bytes();
    let path = data_directory.join("global/pg_control");
    let mut control = std::fs::read(&path).unwrap();
    let sum_is_at = |place: &usize| control[*place..*place + 4] == crc32c(&control[..*place]).to_le_bytes();
    let place = (64..512).step_by(4).find(sum_is_at).expect("pg_control without its checksum");
    control[..8].copy_from_slice(&identifier);
    let sum = crc32c(&control[..place]).to_le_bytes();
    control[place..place + 4].copy_from_slice(&sum);
    let write = |path: &Path, bytes: &[u8], offset| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    };
    write(&path, &control, 0);
    for entry in std::fs::read_dir(data_directory.join("pg_wal")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            write(&entry.path(), &identifier, WAL_SYSTEM_IDENTIFIER_OFFSET);
        }
    }
}
