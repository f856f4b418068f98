//! What the clusters made here hold.

use std::path::Path;

use pagehaul_engine::error::Result;

use crate::cluster::Cluster;
use pagehaul_tune::contestants::stopwatch::run_quietly;

/// The typed tables; the file is also usable by hand.
const LOAD_SQL: &str = include_str!("../../../bench/load.sql");
/// pgbench's unit for each step of --scale, about 750 MB.
const PGBENCH_PER_SCALE: u32 = 50;

/// Typed tables by bench/load.sql and pgbench's, both at `scale`.
///
/// # Errors
/// `Configuration` with the words of the program that failed.
pub(crate) fn main_data(cluster: &Cluster, scale: u32, script: &Path) -> Result<()> {
    std::fs::write(script, LOAD_SQL).map_err(|cause| crate::setup::unwritable(script, cause))?;
    let (scale_text, script_text) = (format!("scale={scale}"), script.to_string_lossy());
    let arguments = ["-Xq", "-v", "ON_ERROR_STOP=1", "-v", &scale_text, "-f", &script_text];
    run_quietly(cluster.tool("psql", Path::new("/")).args(arguments))?;
    pgbench(cluster, (PGBENCH_PER_SCALE * scale).max(1))
}

/// pgbench's tables, and a checkpoint.
///
/// # Errors
/// `Configuration` with pgbench's words.
pub(crate) fn pgbench(cluster: &Cluster, scale: u32) -> Result<()> {
    run_quietly(cluster.tool("pgbench", Path::new("/")).args(["-i", "-q", "-s", &scale.to_string()]))?;
    cluster.sql("CHECKPOINT").map(drop)
}

/// `count` small tables: every other one a bare table (1 file of 8 KiB), the others with a primary key and a text
/// column (table, index, TOAST table and its index: 4 files, one of them empty), one row each.
///
/// # Errors
/// `Configuration` with psql's words.
pub(crate) fn small_tables(cluster: &Cluster, count: u32) -> Result<()> {
    cluster.sql(&format!(
        "DO $$ BEGIN \
           FOR i IN 1..{count} LOOP \
             IF i % 2 = 0 THEN \
               EXECUTE format('CREATE TABLE t_%s (id int)', i); \
               EXECUTE format('INSERT INTO t_%s VALUES (%s)', i, i); \
             ELSE \
               EXECUTE format('CREATE TABLE t_%s (id int PRIMARY KEY, note text)', i); \
               EXECUTE format('INSERT INTO t_%s VALUES (%s, %L)', i, i, md5(i::text)); \
             END IF; \
             IF i % 1000 = 0 THEN COMMIT; END IF; \
           END LOOP; \
         END $$;"
    ))?;
    cluster.sql("CHECKPOINT").map(drop)
}

/// One of the databases of bench/databases.sh; what it fetches is kept in `cache`.
///
/// # Errors
/// `Configuration` with the script's words.
pub(crate) fn database(cluster: &Cluster, name: &str, cache: &Path) -> Result<()> {
    let server = cluster.address();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = std::process::Command::new("bash");
    command.arg("bench/databases.sh").arg(name).arg(cache);
    command
        .env("PATH", format!("{}:{path}", server.bin_directory.display()))
        .env("PGHOST", &server.host)
        .env("PGPORT", server.port.to_string())
        .env("PGUSER", &server.user)
        .env("PGDATABASE", "postgres");
    run_quietly(&mut command).map(drop)
}
