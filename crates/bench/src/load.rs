//! What the clusters made here hold.

use std::path::Path;

use pagehaul_engine::error::Result;

use crate::cluster::Cluster;
use pagehaul_tune::contestants::stopwatch::run_quietly;

/// The typed tables; the file is also usable by hand.
const LOAD_SQL: &str = include_str!("../../../bench/load.sql");
/// pgbench's unit for each step of --scale, about 750 MB.
const PGBENCH_PER_SCALE: u32 = 50;

/// The same where pages are changed, about 300 MB.
const CHANGEABLE_PGBENCH_PER_SCALE: u32 = 20;
const CHANGEABLE_FILL_PERCENT: &str = "93";
/// Large tables, and how a row of each changes: in columns without an index, so that only its own page does.
const CHANGES: &[(&str, &str)] = &[
    ("orders", "total = total + 1"),
    ("items", "quantity = quantity + 1"),
    ("events", "detail = jsonb_set(detail, '{ms}', to_jsonb((detail ->> 'ms')::int + 1))"),
    ("pgbench_accounts", "abalance = abalance + 1"),
];

/// Typed tables by bench/load.sql and pgbench's, both at `scale`.
///
/// # Errors
/// `Configuration` with the words of the program that failed.
pub(crate) fn main_data(cluster: &Cluster, scale: u32, script: &Path) -> Result<()> {
    typed_tables(cluster, scale, script)?;
    pgbench(cluster, (PGBENCH_PER_SCALE * scale).max(1))
}

fn typed_tables(cluster: &Cluster, scale: u32, script: &Path) -> Result<()> {
    std::fs::write(script, LOAD_SQL).map_err(|cause| crate::setup::unwritable(script, cause))?;
    let (scale_text, script_text) = (format!("scale={scale}"), script.to_string_lossy());
    let arguments = ["-Xq", "-v", "ON_ERROR_STOP=1", "-v", &scale_text, "-f", &script_text];
    run_quietly(cluster.tool("psql", Path::new("/")).args(arguments)).map(drop)
}

/// The typed tables and pgbench's (a smaller part than usual), with room in each page for a further version of a row, so
/// that a row can change without touching another page; and the table that counts the rounds of changes.
///
/// # Errors
/// `Configuration` with the words of the program that failed.
pub(crate) fn changeable_data(cluster: &Cluster, scale: u32, script: &Path) -> Result<()> {
    typed_tables(cluster, scale, script)?;
    let pgbench_scale = (CHANGEABLE_PGBENCH_PER_SCALE * scale).max(1).to_string();
    let mut pgbench = cluster.tool("pgbench", Path::new("/"));
    run_quietly(pgbench.args(["-i", "-q", "-s", &pgbench_scale, "-F", CHANGEABLE_FILL_PERCENT]))?;
    for (table, _) in CHANGES {
        cluster.sql(&format!("ALTER TABLE {table} SET (fillfactor = {CHANGEABLE_FILL_PERCENT})"))?;
        cluster.sql(&format!("VACUUM (FULL, FREEZE) {table}"))?;
    }
    cluster.sql("CREATE TABLE change_rounds AS SELECT 0 AS number")?;
    cluster.sql("VACUUM (FREEZE, ANALYZE)")?;
    cluster.sql("CHECKPOINT").map(drop)
}

/// Changes one row in every hundredth page of the large tables, other pages in each of a hundred calls; gives the number
/// of rows.
///
/// # Errors
/// `Configuration` with psql's words.
pub(crate) fn change_one_percent(cluster: &Cluster) -> Result<u64> {
    let round = "UPDATE change_rounds SET number = number + 1 RETURNING number";
    let round: u64 = cluster.sql(round)?.parse().unwrap_or_default();
    // A row that was updated has another place in its page: after a hundred rounds the next one is taken.
    let (class, line) = (round % 100, 1 + round / 100 % 8);
    let mut rows = 0;
    for (table, change) in CHANGES {
        let pages = format!("generate_series(0, pg_relation_size('{table}') / 8192 - 1) AS page");
        let chosen = format!("(hashint8(page) & 2147483647) % 100 = {class}");
        let places = format!("ARRAY(SELECT format('(%s,{line})', page)::tid FROM {pages} WHERE {chosen})");
        let update = format!("UPDATE {table} SET {change} WHERE ctid = ANY ({places})");
        let count = cluster.sql(&format!("WITH changed AS ({update} RETURNING 1) SELECT count(*) FROM changed"))?;
        rows += count.parse::<u64>().unwrap_or_default();
    }
    cluster.sql("CHECKPOINT")?;
    Ok(rows)
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
