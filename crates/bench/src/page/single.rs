//! A cluster for each database, for backups of one database at a time: the data directory of the cluster with all of them,
//! copied without the others. Its pages are the same, byte for byte; a dump and a restore would make new ones.

use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_tune::contestants::stopwatch::run_quietly;

use super::databases;
use super::list::FilesOfDatabase;
use super::options::PageOptions;
use crate::cluster::{Cluster, Owner};

/// Databases from here on are not the server's own.
const OID_MIN: u32 = 16_384;
/// Nothing changes the source while it is backed up.
const SETTINGS: &str = "autovacuum = off\nmax_wal_size = 1GB\n";

/// The running cluster of one database, at a checkpoint; it is made if it is not there yet, and kept.
///
/// # Errors
/// `Configuration` with the words of the program that failed.
pub(crate) fn cluster(options: &PageOptions, name: &str) -> Result<Cluster> {
    let install = PgInstall::find(options.bench.pg_bin.as_deref())?;
    // A directory of its own also for the socket: a server that somebody left running is in nobody's way.
    let root = databases::root(options).join("single").join(name);
    let lay = |half_made: &Path| copy(&all(options, name)?, half_made, &install);
    let cluster =
        Cluster::open_or_lay(&install, SETTINGS, &root, "cluster", lay, |cluster| drop_others(cluster, name))?;
    cluster.sql("CHECKPOINT")?;
    Ok(cluster)
}

/// The cluster with all databases, stopped.
struct All {
    pgdata: PathBuf,
    /// Of the one database.
    oid: u32,
}

fn all(options: &PageOptions, name: &str) -> Result<All> {
    let failed = |cause: &str| Error::new(ErrorKind::Configuration, format!("copy the database {name}"), cause);
    let lists = databases::lists(options, &[name])?;
    let oid = lists.first().and_then(oid_of).ok_or_else(|| failed("the list of its files names no directory of it"))?;
    let pgdata = databases::root(options).join("cluster");
    if pgdata.join("postmaster.pid").exists() {
        return Err(failed("the cluster with all databases is running").hint("stop it with pg_ctl"));
    }
    Ok(All { pgdata, oid })
}

/// base/OID/FILE
fn oid_of(list: &FilesOfDatabase) -> Option<u32> {
    list.files.first()?.path.parent()?.file_name()?.to_str()?.parse().ok()
}

/// All but the directories of other databases and the WAL; pg_resetwal begins that anew, after the last LSN of any page.
fn copy(all: &All, to: &Path, install: &PgInstall) -> Result<()> {
    let owner = Owner::find()?;
    let script = "set -e; cd \"$0\"; mkdir -m 700 \"$1\" \"$1/base\"; \
        for f in *; do case $f in base | pg_wal | postmaster.*) ;; *) cp -a \"$f\" \"$1/\" ;; esac; done; \
        for d in base/[0-9]*; do o=${d#base/}; if [ $o -lt $3 ] || [ $o -eq $2 ]; then cp -a \"$d\" \"$1/base/\"; fi; done; \
        (cd pg_wal && find . -type d) | while read -r d; do mkdir -p -m 700 \"$1/pg_wal/$d\"; done; \
        \"$4\" -D \"$1\" > /dev/null";
    let mut command = owner.command("bash", &all.pgdata);
    command.args(["-c", script]).arg(&all.pgdata).arg(to).args([all.oid.to_string(), OID_MIN.to_string()]);
    run_quietly(command.arg(install.bin_directory().join("pg_resetwal"))).map(drop)
}

/// Their directories are not there: what goes is what the catalogs say of them.
fn drop_others(cluster: &Cluster, name: &str) -> Result<()> {
    let others = format!("SELECT datname FROM pg_database WHERE oid >= {OID_MIN} AND datname <> '{name}'");
    for other in cluster.sql(&others)?.lines() {
        cluster.sql(&format!("DROP DATABASE \"{other}\""))?;
    }
    cluster.sql("VACUUM")?;
    cluster.sql("CHECKPOINT").map(drop)
}
