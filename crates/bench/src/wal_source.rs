//! WAL to archive and to replay: a cluster that kept all of its own, and a copy of it from before.

use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_tune::contestants::stopwatch::run_quietly;

use crate::cluster::{Cluster, Owner, remove_tree};
use crate::setup::unwritable;

/// Bytes of a segment of the clusters made here.
pub(crate) const SEGMENT_BYTES: u64 = 16 << 20;

/// The segments, in order, and the copy.
#[derive(Debug)]
pub(crate) struct WalSource {
    /// Names, oldest first.
    pub(crate) names: Vec<String>,
    /// Where they lie.
    pub(crate) directory: PathBuf,
    /// A base backup that begins in the first of them.
    pub(crate) base: PathBuf,
    cluster_files: PathBuf,
    owner: Owner,
}

/// The cluster with at least `count` segments of WAL.
///
/// # Errors
/// `Configuration` with the words of the program that failed.
pub(crate) fn open_or_make(root: &Path, count: usize) -> Result<(Cluster, WalSource)> {
    let name = format!("wal-{count}");
    let base = root.join(format!("{name}-base"));
    let cluster = Cluster::open_or_make(root, &name, |cluster| fill(cluster, &base, count))?;
    let directory = cluster.pgdata.join("pg_wal");
    let current = cluster.sql("SELECT pg_walfile_name(pg_current_wal_lsn())")?;
    let first = first_segment(&base)?;
    let mut names: Vec<String> = std::fs::read_dir(&directory)
        .map_err(|cause| unwritable(&directory, cause))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.len() == first.len() && *name >= first && *name < current)
        .collect();
    names.sort_unstable();
    names.truncate(count);
    if names.len() < count || names.first() != Some(&first) {
        let cause = format!("{} of {count} segments are there", names.len());
        return Err(Error::new(ErrorKind::Configuration, format!("use the WAL in {}", directory.display()), cause)
            .hint("remove the cluster: it is made anew"));
    }
    let (cluster_files, owner) = (cluster.pgdata.clone(), cluster.owner);
    Ok((cluster, WalSource { names, directory, base, cluster_files, owner }))
}

/// The segment that a base backup begins in, by its label.
fn first_segment(base: &Path) -> Result<String> {
    let label = base.join("backup_label");
    let text = std::fs::read_to_string(&label).map_err(|cause| unwritable(&label, cause))?;
    let name = text.split_once("(file ").and_then(|(_, rest)| rest.split_once(')')).map(|(name, _)| name.to_owned());
    name.ok_or_else(|| Error::new(ErrorKind::Configuration, format!("read {}", label.display()), "no segment in it"))
}

/// Tables, the copy, and then work until there is enough WAL: single rows, whole pages after checkpoints, whole tables.
fn fill(cluster: &Cluster, base: &Path, count: usize) -> Result<()> {
    remove_tree(base)?;
    cluster.sql("ALTER SYSTEM SET wal_keep_size = '1TB'")?;
    cluster.sql("SELECT pg_reload_conf()")?;
    let scale = (count / 20).clamp(1, 50).to_string();
    run_quietly(cluster.tool("pgbench", Path::new("/")).args(["-i", "-q", "-s", &scale]))?;
    let mut backup = cluster.tool("pg_basebackup", Path::new("/"));
    run_quietly(backup.args(["-X", "none", "-c", "fast", "--no-manifest", "-D"]).arg(base))?;
    let begun = cluster.sql("SELECT pg_current_wal_lsn()")?;
    let enough = format!("SELECT pg_current_wal_lsn() - '{begun}' > {}", (count as u64 + 2) * SEGMENT_BYTES);
    let mut part = 0;
    while cluster.sql(&enough)? != "t" {
        cluster.sql("CHECKPOINT")?;
        let seconds = if count > 100 { "5" } else { "1" };
        run_quietly(cluster.tool("pgbench", Path::new("/")).args(["-n", "-N", "-c", "2", "-j", "2", "-T", seconds]))?;
        cluster.sql(&format!("UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid % 4 = {}", part % 4))?;
        part += 1;
    }
    cluster.sql("SELECT pg_switch_wal()").map(drop)
}

impl WalSource {
    /// A data directory that holds nothing but the first `count` segments and what tells whose they are.
    ///
    /// # Errors
    /// `Target`, naming what cannot be made.
    pub(crate) fn data_directory(&self, at: &Path, count: usize) -> Result<()> {
        remove_tree(at)?;
        let wal = at.join("pg_wal");
        for directory in [at.to_owned(), at.join("global"), wal.clone(), wal.join("archive_status")] {
            self.owner.create_directory(&directory)?;
        }
        for file in ["PG_VERSION", "global/pg_control"] {
            let to = at.join(file);
            std::fs::copy(self.cluster_files.join(file), &to).map_err(|cause| unwritable(&to, cause))?;
            self.owner.take(&to)?;
        }
        for name in &self.names[..count] {
            let to = wal.join(name);
            std::fs::hard_link(self.directory.join(name), &to).map_err(|cause| unwritable(&to, cause))?;
        }
        private(at)
    }

    /// A copy of the base backup that replays with `restore_command` until that finds no more, listening in `sockets`.
    ///
    /// # Errors
    /// `Target`, naming what cannot be made; `Configuration` with the words of `cp`.
    pub(crate) fn recovering_copy(&self, at: &Path, sockets: &Path, restore_command: &str) -> Result<()> {
        remove_tree(at)?;
        run_quietly(std::process::Command::new("cp").arg("-a").arg(&self.base).arg(at))?;
        let settings = format!(
            "\nrestore_command = '{}'\narchive_mode = off\nport = 54401\nunix_socket_directories = '{}'\nlogging_collector = off\n",
            restore_command.replace('\'', "''"),
            sockets.display()
        );
        let config = at.join("postgresql.auto.conf");
        let text = std::fs::read_to_string(&config).unwrap_or_default() + &settings;
        for (file, text) in [(config, text), (at.join("recovery.signal"), String::new())] {
            std::fs::write(&file, text).map_err(|cause| unwritable(&file, cause))?;
            self.owner.take(&file)?;
        }
        private(at)
    }
}

fn private(directory: &Path) -> Result<()> {
    std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .map_err(|cause| unwritable(directory, cause))
}
