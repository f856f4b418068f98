//! The cluster with the databases: bench/page/databases.sh fills them, once, and a list of files stays beside it.

use std::path::{Path, PathBuf};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_tune::contestants::stopwatch::run_quietly;

use super::list::FilesOfDatabase;
use super::options::PageOptions;
use crate::cluster::Cluster;
use crate::setup::unwritable;

/// All there are; bench/page/README.md says what they hold.
pub(crate) const DATABASES: &[&str] =
    &["updates", "tpch", "events", "history", "json", "csv", "geo", "tables", "flights", "words"];
/// What the list of a database's files is made with.
const FILES_SQL: &str = include_str!("../../../../bench/page/files.sql");
/// Beside what every cluster here runs with: vacuum works as it does for everybody.
const SETTINGS: &str = "autovacuum = on\nautovacuum_naptime = 15s\nmaintenance_work_mem = 512MB\nmax_wal_size = 1GB\n";

/// The names that `--database` leaves.
///
/// # Errors
/// `Usage` for a name there is not.
pub(crate) fn wanted(options: &PageOptions) -> Result<Vec<&'static str>> {
    let data_names = options.data.iter().map(|data| data.split_once('=').map_or(data.as_str(), |(name, _)| name));
    for name in options.database.iter().map(String::as_str).chain(data_names) {
        if !DATABASES.contains(&name) {
            let hint = format!("databases are {}", DATABASES.join(", "));
            return Err(Error::new(ErrorKind::Usage, format!("use the database {name}"), "there is none").hint(hint));
        }
    }
    let all = DATABASES.iter().copied();
    Ok(all.filter(|name| options.database.is_empty() || options.database.iter().any(|asked| asked == name)).collect())
}

/// Where the cluster, the lists and what was fetched are kept.
pub(crate) fn root(options: &PageOptions) -> PathBuf {
    options.bench.pgdata_root.join("page")
}

fn list_path(options: &PageOptions, name: &str) -> PathBuf {
    root(options).join(format!("{name}.files"))
}

/// The lists of these databases; what is not there yet is made.
///
/// # Errors
/// `Configuration` with the words of the program that failed.
pub(crate) fn lists(options: &PageOptions, names: &[&str]) -> Result<Vec<FilesOfDatabase>> {
    if !names.iter().all(|name| list_path(options, name).exists()) {
        // The server stops when it is dropped; from then on nothing changes in the files.
        drop(make(options, names)?);
    }
    names.iter().map(|name| FilesOfDatabase::read(&list_path(options, name))).collect()
}

/// The running cluster with these databases and their lists.
///
/// # Errors
/// `Configuration` with the words of the program that failed.
pub(crate) fn make(options: &PageOptions, names: &[&str]) -> Result<Cluster> {
    let root = root(options);
    let install = PgInstall::find(options.bench.pg_bin.as_deref())?;
    let cluster = Cluster::open_or_make_with(&install, SETTINGS, &root, "cluster", |_| Ok(()))?;
    for name in names {
        if cluster.sql(&format!("SELECT 1 FROM pg_database WHERE datname = '{name}'"))?.is_empty() {
            println!("making the database {name}; it is kept for later runs");
            // It has its final name only when it is filled: one that was interrupted is made anew.
            let half_made = format!("{name}_new");
            cluster.sql(&format!("DROP DATABASE IF EXISTS {half_made}"))?;
            cluster.sql(&format!("CREATE DATABASE {half_made}"))?;
            fill(&cluster, name, &half_made, &root.join("cache"), data_of(options, name))?;
            cluster.sql(&format!("ALTER DATABASE {half_made} RENAME TO {name}"))?;
        }
    }
    cluster.sql("CHECKPOINT")?;
    for name in names {
        write_list(&cluster, name, &list_path(options, name))?;
    }
    Ok(cluster)
}

/// The path of `--data NAME=PATH`.
fn data_of<'a>(options: &'a PageOptions, name: &str) -> &'a str {
    let paths = options.data.iter().filter_map(|data| data.split_once('='));
    paths.filter(|(of, _)| *of == name).map(|(_, path)| path).next_back().unwrap_or_default()
}

fn fill(cluster: &Cluster, name: &str, database: &str, cache: &Path, data: &str) -> Result<()> {
    let server = cluster.address();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = std::process::Command::new("bash");
    command.arg("bench/page/databases.sh").arg(name).arg(cache).arg(data);
    command
        .env("PATH", format!("{}:{path}", server.bin_directory.display()))
        .env("PGHOST", &server.host)
        .env("PGPORT", server.port.to_string())
        .env("PGUSER", &server.user)
        .env("PGDATABASE", database);
    run_quietly(&mut command).map(drop)
}

fn write_list(cluster: &Cluster, name: &str, path: &Path) -> Result<()> {
    let mut psql = cluster.tool("psql", Path::new("/"));
    psql.env("PGDATABASE", name);
    let text = run_quietly(psql.args(["-XAtq", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-c", FILES_SQL]))?;
    std::fs::write(path, text).map_err(|cause| unwritable(path, cause))
}
