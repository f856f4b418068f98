//! The demo's database: pgbench's tables, which are written to all the time, and tables of every common kind, which
//! are not and can be compared row by row.

use std::process::{Child, Command, Stdio};

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::secrets;
use pagehaul_engine::source::postgres::client::Connection;
use pagehaul_engine::source::postgres::scratch_server::ScratchServer;

use super::places::Places;

/// Rows of the typed table for each step of --scale.
const ROWS_PER_SCALE: u32 = 20_000;
/// Rows with large values for each step of --scale.
const LARGE_ROWS_PER_SCALE: u32 = 100;

/// Tables that nobody writes to once they are filled.
pub(super) const STILL_TABLES: [&str; 3] = ["public.typed", "public.large", "public.in_tablespace"];
/// A table whose rows must be gone after a restore, as after a crash.
pub(super) const UNLOGGED_TABLE: &str = "public.unlogged";

/// Fills pgbench's tables.
///
/// # Errors
/// `Configuration` without pgbench, `Source` with its words if it fails.
pub(super) fn fill_pgbench(server: &ScratchServer, scale: u32) -> Result<()> {
    let output = server.run_tool("pgbench", &["-i", "-q", "-s", &scale.to_string()])?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::new(ErrorKind::Source, "fill pgbench's tables", words))
}

/// Makes and fills the tables that are compared row by row.
///
/// # Errors
/// `Source` with the server's words.
pub(super) fn fill_typed(connection: &mut Connection, places: &Places, scale: u32) -> Result<()> {
    let tablespace = places.tablespace.display().to_string().replace('\'', "''");
    let rows = ROWS_PER_SCALE * scale;
    let large_rows = LARGE_ROWS_PER_SCALE * scale;
    let statements = [
        // Not in a transaction with anything else: the server insists.
        format!("CREATE TABLESPACE demo_space LOCATION '{tablespace}'"),
        format!("{TYPED}; {}", TYPED_ROWS.replace("ROWS", &rows.to_string())),
        TYPED_INDEXES.to_owned(),
        LARGE_TABLE.replace("ROWS", &large_rows.to_string()),
        IN_TABLESPACE.replace("ROWS", &(rows / 2).to_string()),
        "CREATE UNLOGGED TABLE public.unlogged AS SELECT id FROM generate_series(1, 10000) AS id".to_owned(),
        // Dead rows and hint bits, as real tables have them.
        "UPDATE public.typed SET amount = amount + 1 WHERE id % 50 = 0".to_owned(),
        "DELETE FROM public.typed WHERE id % 97 = 0".to_owned(),
    ];
    for statement in statements {
        connection.query(&statement).map_err(|error| error.into_error("fill the demo's tables"))?;
    }
    Ok(())
}

const TYPED: &str = "\
CREATE TABLE public.typed (
    id bigint PRIMARY KEY, word text NOT NULL, amount numeric(14,4), ratio double precision,
    happened_at timestamptz, day date, details jsonb, reference uuid, raw bytea, tags text[], span int4range,
    place point, is_open boolean)";

const TYPED_ROWS: &str = "\
INSERT INTO public.typed
SELECT n, 'customer ' || (n * 7919 % 10007), (n % 1000003) / 7.0, sqrt(n),
    timestamptz '2024-01-01 00:00:00+00' + n * interval '13 seconds', date '2024-01-01' + (n % 1000)::int,
    jsonb_build_object('order', n, 'state', (array['new', 'paid', 'sent'])[1 + n % 3], 'total', n % 977),
    md5(n::text)::uuid, decode(md5((n * 3)::text), 'hex'), array['tag' || n % 20, 'tag' || n % 33],
    int4range((n % 5000)::int, (n % 5000 + 10)::int), point(n % 360, n % 180), n % 11 = 0
FROM generate_series(1, ROWS) AS n";

const TYPED_INDEXES: &str = "\
CREATE INDEX ON public.typed (happened_at) WHERE is_open;
CREATE INDEX ON public.typed USING gin (details jsonb_path_ops);
CREATE INDEX ON public.typed USING gist (span);
CREATE INDEX ON public.typed USING brin (happened_at);
CREATE INDEX ON public.typed USING hash (reference)";

/// Values of many pages each, which go to a table of their own (TOAST).
const LARGE_TABLE: &str = "\
CREATE TABLE public.large AS
SELECT n AS id, (SELECT string_agg(md5((n * 1000 + k)::text), '') FROM generate_series(1, 600) AS k) AS body
FROM generate_series(1, ROWS) AS n";

const IN_TABLESPACE: &str = "\
CREATE TABLE public.in_tablespace (id bigint, note text) TABLESPACE demo_space;
INSERT INTO public.in_tablespace SELECT n, 'note ' || md5(n::text) FROM generate_series(1, ROWS) AS n;
CREATE INDEX ON public.in_tablespace (id) TABLESPACE demo_space";

/// pgbench at work in the background, until it is dropped.
pub(super) struct Writers {
    pgbench: Child,
}

impl Writers {
    /// Starts two clients that transfer money between accounts and keep a ledger of it.
    ///
    /// # Errors
    /// `Configuration` if pgbench does not start.
    pub(super) fn start(server: &ScratchServer) -> Result<Self> {
        let program = server.install().bin_directory().join("pgbench");
        let settings = server.connect_settings();
        let pgbench = secrets::keep_from(&mut Command::new(&program))
            .args(["-n", "-c", "2", "-T", "86400", "-h", &settings.host, "-p", &settings.port.to_string()])
            .args(["-U", &settings.user, &settings.database])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|cause| Error::new(ErrorKind::Configuration, format!("run {}", program.display()), cause))?;
        Ok(Writers { pgbench })
    }

    /// Whether it is still at work; a load that died proves nothing.
    pub(super) fn are_at_work(&mut self) -> bool {
        matches!(self.pgbench.try_wait(), Ok(None))
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.pgbench.kill().ok();
        self.pgbench.wait().ok();
    }
}
