//! The batches of a tuning run, as text: what is run over TDS, and what a DBA reads or runs by hand.

use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::device::Device;
use pagehaul_engine::source::mssql::questions::{self, SESSION_START, say};
use pagehaul_engine::source::mssql::server_facts::ServerFacts;
use pagehaul_engine::source::mssql::statement::{
    BackupOptions, BackupStatement, Media, RestoreKind, RestoreOptions, RestoreStatement,
};
use sha2::{Digest, Sha256};

use super::point::Point;
use super::space::buffer_bytes;
use crate::rows::role;

/// The moment of what a trial is.
pub(super) const TRIAL: &str = "trial";
/// Moments of probes.
pub(super) const BACKUP_BEFORE: &str = "backup-before";
pub(super) const BACKUP_AFTER: &str = "backup-after";
pub(super) const RESTORE_BEFORE: &str = "restore-before";
pub(super) const RESTORE_AFTER: &str = "restore-after";
/// Name of the baseline's row.
pub(super) const BASELINE: &str = "none f1 to NUL";
/// A message every ten per cent.
const STATS: u32 = 10;

/// Where trials go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Directories on the server, or URLs of one cloud, over which backup files are spread.
    pub backup_to: Vec<String>,
    /// Directory of the scratch database's data files; None is where the server makes databases.
    pub data_to: Option<String>,
    /// The same of its log.
    pub log_to: Option<String>,
    /// Name of the scratch database; None is one of our own.
    pub scratch_database: Option<String>,
}

/// Something to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The read side alone: NUL, without compression.
    Baseline,
    /// The server's defaults.
    Defaults,
    /// A point.
    Candidate(Point),
}

impl Entry {
    /// Its settings.
    pub fn point(&self) -> Point {
        match self {
            Entry::Baseline => {
                let compression = pagehaul_engine::source::mssql::statement::Compression::No;
                Point { compression, ..Point::defaults() }
            }
            Entry::Defaults => Point::defaults(),
            Entry::Candidate(point) => *point,
        }
    }

    /// As a row of a table says it.
    pub fn setting(&self) -> String {
        match self {
            Entry::Baseline => BASELINE.to_owned(),
            other => other.point().to_string(),
        }
    }

    /// Why it is run.
    pub fn role(&self) -> &'static str {
        match self {
            Entry::Baseline => role::BASELINE,
            Entry::Defaults => role::DEFAULT,
            Entry::Candidate(_) => role::CANDIDATE,
        }
    }
}

/// The batches of one trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialScript {
    /// In this order; after one that fails the rest is left out.
    pub steps: Vec<String>,
    /// After these, whatever came of them.
    pub cleanup: Vec<String>,
}

/// Makes scripts.
#[derive(Clone, Debug)]
pub struct Scripts<'a> {
    facts: &'a ServerFacts,
    places: &'a Places,
    run: String,
}

impl<'a> Scripts<'a> {
    /// Scripts of the run that `request` identifies: the same request has the same names in its scripts.
    ///
    /// # Errors
    /// `Usage` for places that cannot be used.
    pub fn new(facts: &'a ServerFacts, places: &'a Places, request: &str) -> Result<Self> {
        let words = format!("{} {} {places:?} {request}", facts.server, facts.database);
        let run = Sha256::digest(words).iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        let scripts = Scripts { facts, places, run };
        if places.backup_to.is_empty() {
            return Err(Error::new(ErrorKind::Usage, "tune SQL Server", "no directory for backups is named")
                .hint("name one of the server with --to, such as --to /var/opt/mssql/backup"));
        }
        scripts.device(0)?;
        if scripts.scratch() == facts.database {
            let cause = "the scratch database has the name of the one that is measured";
            return Err(
                Error::new(ErrorKind::Usage, "tune SQL Server", cause).hint("name another with --scratch-database")
            );
        }
        Ok(scripts)
    }

    /// What the names of this run have in common.
    pub fn run(&self) -> &str {
        &self.run
    }

    /// Name of the scratch database.
    pub fn scratch(&self) -> String {
        self.places.scratch_database.clone().unwrap_or_else(|| format!("pagehaul_scratch_{}", self.run))
    }

    /// The batch that looks for the scratch database; one that somebody named must not be there, for it may be somebody's.
    pub fn look_for_scratch(&self) -> String {
        questions::is_taken(&self.scratch(), self.places.scratch_database.is_some())
    }

    /// The batches of one run of `entry`.
    ///
    /// # Errors
    /// `Usage` for what this server does not take.
    pub fn trial(&self, entry: &Entry, repetition: u32) -> Result<TrialScript> {
        let (point, keeps) = (entry.point(), *entry != Entry::Baseline);
        let key = format!("pagehaul tune {} {} #{repetition}", self.run, entry.setting());
        let files = usize::from(point.files);
        let devices = if keeps {
            (0..files).map(|number| self.device(number)).collect::<Result<_>>()?
        } else {
            vec![Device::Nul]
        };
        let about = [
            ("setting", entry.setting()),
            ("role", entry.role().to_owned()),
            ("repetition", repetition.to_string()),
            ("buffer_bytes", buffer_bytes(&point, self.facts).to_string()),
        ];
        let about: Vec<String> = about.iter().map(|(name, value)| say(&key, TRIAL, name, value)).collect();
        let scratch = self.scratch();
        let drop_scratch = questions::drop_database(&scratch)?;
        let mut steps = vec![about.join("\n")];
        if keeps {
            // What a run that was killed left.
            steps.push(drop_scratch.clone());
        }
        let version = self.facts.dialect.version;
        steps.extend([
            questions::probe(&key, BACKUP_BEFORE),
            self.backup(&key, &point, devices.clone()).sql(&self.facts.dialect)?,
            questions::probe(&key, BACKUP_AFTER),
            questions::outcome(&key, &self.facts.database, &key, version),
        ]);
        let mut cleanup = Vec::new();
        if keeps {
            steps.extend([
                questions::probe(&key, RESTORE_BEFORE),
                self.restore(&scratch, &point, devices.clone()).sql(&self.facts.dialect)?,
                questions::probe(&key, RESTORE_AFTER),
            ]);
            cleanup.push(drop_scratch);
            let paths = devices.iter().filter_map(|device| match device {
                Device::Disk(path) => Some(questions::remove_file(path, version)),
                _ => None,
            });
            cleanup.extend(paths);
        }
        Ok(TrialScript { steps, cleanup })
    }

    fn backup(&self, key: &str, point: &Point, to: Vec<Device>) -> BackupStatement {
        let is_nul = to.contains(&Device::Nul);
        let options = BackupOptions {
            copy_only: true,
            compression: Some(point.compression),
            buffer_count: point.buffer_count,
            max_transfer_size: point.transfer_size,
            block_size: point.block_size,
            checksum: Some(true),
            // What an earlier trial could not remove is overwritten.
            media: (!is_nul).then_some(Media::Format),
            name: Some("pagehaul tune".to_owned()),
            description: Some(key.to_owned()),
            stats: Some(STATS),
            ..BackupOptions::default()
        };
        BackupStatement { options, ..BackupStatement::full(&self.facts.database, to) }
    }

    /// Without REPLACE: a name or file that is taken is an error, never overwritten.
    fn restore(&self, scratch: &str, point: &Point, from: Vec<Device>) -> RestoreStatement {
        let moves = self.facts.files.iter().enumerate().map(|(number, file)| {
            let (directory, ending) = match file.kind.as_str() {
                "LOG" => (self.places.log_to.as_ref().unwrap_or(&self.facts.default_log_path), ".ldf"),
                "ROWS" => (self.places.data_to.as_ref().unwrap_or(&self.facts.default_data_path), ".mdf"),
                // Of FILESTREAM it is a directory.
                _ => (self.places.data_to.as_ref().unwrap_or(&self.facts.default_data_path), ""),
            };
            (file.name.clone(), self.join(directory, &format!("{scratch}_{number}{ending}")))
        });
        let options = RestoreOptions {
            moves: moves.collect(),
            buffer_count: point.buffer_count,
            max_transfer_size: point.transfer_size,
            checksum: Some(true),
            stats: Some(STATS),
            ..RestoreOptions::default()
        };
        RestoreStatement { options, ..RestoreStatement::new(RestoreKind::Database(scratch.to_owned()), from) }
    }

    fn device(&self, number: usize) -> Result<Device> {
        let directory = &self.places.backup_to[number % self.places.backup_to.len()];
        self.join(directory, &format!("pagehaul-tune-{}-{number}.bak", self.run)).parse()
    }

    fn join(&self, directory: &str, name: &str) -> String {
        if directory.ends_with(['/', '\\']) {
            return format!("{directory}{name}");
        }
        let is_windows_path = self.facts.dialect.is_windows && !directory.contains("://");
        let sign = if is_windows_path { '\\' } else { '/' };
        format!("{directory}{sign}{name}")
    }

    /// The whole run as one text, batches divided by GO: `entries` in turns, each `repeat` times.
    ///
    /// # Errors
    /// As [`Scripts::trial`].
    pub fn text(&self, entries: &[Entry], repeat: u32, head: &[String]) -> Result<String> {
        let mut text: String = head.iter().map(|line| format!("-- {line}\n")).collect();
        let mut add = |batch: &str| text.push_str(&format!("{batch}\nGO\n"));
        add(SESSION_START);
        add(&questions::facts(&self.facts.database)?);
        add(&self.look_for_scratch());
        for repetition in 1..=repeat {
            for entry in entries {
                let trial = self.trial(entry, repetition)?;
                trial.steps.iter().chain(&trial.cleanup).for_each(|batch| add(batch));
            }
        }
        Ok(text)
    }
}

/// The batches of a script, as they would be run.
pub fn batches(script: &str) -> Vec<String> {
    let mut batches = vec![Vec::new()];
    for line in script.lines().skip_while(|line| line.starts_with("--")) {
        if line == "GO" {
            batches.push(Vec::new());
        } else if let Some(batch) = batches.last_mut() {
            batch.push(line);
        }
    }
    batches.into_iter().filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n")).collect()
}
