//! A stand-in for SQL Server: TDS on a port of this machine, a world with databases and backup files, a model of disks
//! and CPUs that tells the time by a clock of its own, and faults by script.
//!
//! It is written from the protocol's description and shares no code with the engine's client, so that each checks the
//! other; FreeTDS and python-tds talk to it, too. Nothing sleeps: what a backup would take is what the clock moves.

mod interpreter;
mod model;
pub mod parser;
mod server;
mod statements;
mod wire;

pub use model::{Codec, Limits};
pub use server::{PASSWORD, Security, TdsServer};

use std::collections::BTreeMap;

/// One file of a database.
#[derive(Clone, Debug)]
pub struct DatabaseFile {
    /// Logical name.
    pub name: String,
    /// Whether it is the log.
    pub is_log: bool,
    /// Path on the server.
    pub path: String,
}

/// A database.
#[derive(Clone, Debug)]
pub struct Database {
    /// Bytes of its pages.
    pub data_bytes: u64,
    /// Its files.
    pub files: Vec<DatabaseFile>,
    /// FULL or SIMPLE.
    pub recovery_model: String,
    /// Frozen for a snapshot.
    pub is_suspended: bool,
    /// Description of the full backup that differentials are built on.
    pub differential_base: Option<String>,
}

/// A set in msdb.
#[derive(Clone, Debug, Default)]
pub struct BackupSet {
    /// Of this database.
    pub database: String,
    /// What the statement said.
    pub description: String,
    /// Bytes of the pages.
    pub backup_size: u64,
    /// Bytes written.
    pub stored_size: u64,
    /// Name of the algorithm, if it is packed.
    pub algorithm: Option<String>,
    /// WITH CHECKSUM.
    pub has_checksums: bool,
    /// WITH COPY_ONLY.
    pub is_copy_only: bool,
    /// D, I or L.
    pub kind: char,
    /// Where it lies.
    pub files: Vec<String>,
}

/// What goes wrong with the next batch that has `word` in it.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Part of the batch's text.
    pub word: String,
    /// So many such batches are let through before.
    pub skip: usize,
    /// What happens.
    pub happens: Happening,
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Happening {
    /// These errors, and nothing is done.
    Errors(Vec<(i32, String)>),
    /// The connection ends after so many per cent.
    Disconnect(u32),
    /// Nothing more after so many per cent, until an attention comes.
    Hang(u32),
    /// Messages one after the other, until an attention comes.
    Chatter,
    /// Rows one after the other, until the client has enough.
    Rows,
    /// These bytes instead of an answer.
    Raw(Vec<u8>),
}

/// Everything behind the port.
#[derive(Debug)]
pub struct World {
    /// Version as SERVERPROPERTY says it.
    pub version: [u16; 3],
    /// Engine edition (3 is Enterprise) and its name.
    pub edition: (u32, String),
    /// Whether it is Windows.
    pub is_windows: bool,
    /// The model of disks and CPUs.
    pub limits: Limits,
    /// Databases by name.
    pub databases: BTreeMap<String, Database>,
    /// Backup files by path, with their bytes.
    pub backup_files: BTreeMap<String, u64>,
    /// msdb.dbo.backupset.
    pub sets: Vec<BackupSet>,
    /// Faults that have not happened yet.
    pub faults: Vec<Fault>,
    /// Every batch, in the order of arrival.
    pub batches: Vec<String>,
    /// Attentions that came.
    pub attentions: usize,
    /// What WAITFOR waits for; set it to let the time be over.
    pub waitfor_is_over: bool,
    /// Microseconds since the world began.
    pub clock_us: u64,
    /// CPU time of the server.
    pub cpu_ms: f64,
    /// Waits by their type, in milliseconds.
    pub waits_ms: BTreeMap<&'static str, f64>,
}

impl World {
    /// SQL Server 2025, Enterprise, with the database `shop` of `data_bytes`.
    pub fn with_database(data_bytes: u64) -> Self {
        let file = |name: &str, is_log| DatabaseFile {
            name: name.to_owned(),
            is_log,
            path: format!("/var/opt/mssql/data/{name}.{}", if is_log { "ldf" } else { "mdf" }),
        };
        let shop = Database {
            data_bytes,
            files: vec![file("shop_data", false), file("it's]log", true)],
            recovery_model: "FULL".to_owned(),
            is_suspended: false,
            differential_base: None,
        };
        World {
            version: [17, 0, 1000],
            edition: (3, "Enterprise Developer Edition (64-bit)".to_owned()),
            is_windows: false,
            limits: Limits::usual(),
            databases: BTreeMap::from([("shop".to_owned(), shop)]),
            backup_files: BTreeMap::new(),
            sets: Vec::new(),
            faults: Vec::new(),
            batches: Vec::new(),
            attentions: 0,
            waitfor_is_over: false,
            clock_us: 0,
            cpu_ms: 0.0,
            waits_ms: BTreeMap::new(),
        }
    }

    /// Lets `happens` befall the first batch with `word` in it.
    pub fn fail(&mut self, word: &str, happens: Happening) {
        self.faults.push(Fault { word: word.to_owned(), skip: 0, happens });
    }

    /// The fault that befalls `batch`, if one does.
    fn take_fault(&mut self, batch: &str) -> Option<Happening> {
        let at = self.faults.iter().position(|fault| batch.contains(&fault.word))?;
        if self.faults[at].skip > 0 {
            self.faults[at].skip -= 1;
            return None;
        }
        Some(self.faults.remove(at).happens)
    }

    /// The clock, as SYSUTCDATETIME() writes it.
    fn time_text(&self) -> String {
        let seconds = self.clock_us / 1_000_000;
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        let clock = format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60);
        format!("2026-11-{:02}T{clock}.{:07}", 1 + days, self.clock_us % 1_000_000 * 10)
    }
}
