//! `pagehaul demo`: all that Pagehaul promises, shown on a database that is made for the purpose.
//!
//! [`play`] is the story: make a database, back it up while it is written to, verify, destroy it, restore, compare.

mod check;
mod load;
mod places;
mod report;

use std::time::{Duration, Instant};

use pagehaul_engine::backup::{BackupOutcome, BackupReport, BackupRequest, backup};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::pipeline::pause;
use pagehaul_engine::restore::{RestoreReport, RestoreRequest, restore};
use pagehaul_engine::source::postgres::pg_install::PgInstall;
use pagehaul_engine::source::postgres::scratch_server::{InitOptions, ScratchServer, StopMode};
use pagehaul_engine::terms::SourceName;
use pagehaul_engine::verify::{VerifyReport, VerifyRequest, verify};

use crate::args::{DemoArgs, compression};
use crate::exit_code::ExitCode;
use crate::output;
use crate::progress::Console;
use check::{Check, Digests};
use load::Writers;
use places::Places;
use report::{DemoReport, Phase};

/// Stripes of the demo's backup, in turns over the two directories.
const STRIPES: u16 = 4;
/// Name of the demo's database system in its repository.
const SOURCE: &str = "demo";
/// Versions of PostgreSQL that can be backed up.
const MAJORS: std::ops::RangeInclusive<u32> = 13..=18;
/// How long pgbench warms up before the backup begins.
const WARM_UP: Duration = Duration::from_secs(1);
/// Settings of both servers: those of a careful production server, with room for the WAL of a backup.
const SETTINGS: &[(&str, &str)] =
    &[("wal_level", "replica"), ("full_page_writes", "on"), ("max_wal_size", "4GB"), ("wal_keep_size", "4GB")];

/// Runs the demo, clears up, and shows the report.
pub(crate) fn run(args: &DemoArgs, console: &Console) -> Result<ExitCode> {
    compression(args.compression.as_deref(), None)?;
    let install = find_postgres()?;
    let places = Places::make(args.dir.as_deref(), args.keep)?;
    let mut demo = Demo { args, console, install, places: &places, phases: Vec::new() };
    let outcome = demo.play();
    let cleared = places.clear();
    let report = outcome.map_err(|error| match args.keep {
        true => error.more_hint(&format!("everything is still in {}", places.root.display())),
        false => error.more_hint("`pagehaul demo --keep` leaves everything in place for a look"),
    })?;
    cleared?;
    if args.json {
        output::json(&report)?;
    } else {
        output::data(&report.text(&places))?;
    }
    Ok(if report.passed { ExitCode::Done } else { ExitCode::Failed(ErrorKind::Damage) })
}

/// The first PostgreSQL that has what the demo needs: the one in PATH, or else the newest.
fn find_postgres() -> Result<PgInstall> {
    let first = PgInstall::find(None)?;
    let others = MAJORS.rev().filter_map(|major| PgInstall::find_major(major).ok());
    let action = format!("find pgbench in {}", first.bin_directory().display());
    std::iter::once(first).chain(others).find(|install| install.has_tool("pgbench")).ok_or_else(|| {
        Error::new(ErrorKind::Configuration, action, "it is not there")
            .hint("it comes with the server or the contrib package of your distribution")
    })
}

/// The demo while it runs.
struct Demo<'a> {
    args: &'a DemoArgs,
    console: &'a Console,
    install: PgInstall,
    places: &'a Places,
    phases: Vec<Phase>,
}

impl Demo<'_> {
    /// The story, one step a line.
    fn play(&mut self) -> Result<DemoReport> {
        let mut source = self.step("make a cluster", |demo| demo.make_cluster())?;
        self.step("fill it", |demo| demo.fill(&source))?;
        let before = self.step("take digests", |demo| demo.take_digests(&source))?;
        let mut writers = self.step("start writers", |demo| demo.start_writers(&source))?;
        let backup = self.step("back up under load", |demo| demo.back_up(&source))?;
        self.count_bytes(backup.source_bytes);
        let backup_check = backup_check(&backup, writers.are_at_work());
        drop(writers);
        let verify = self.step("verify", |demo| demo.verify())?;
        self.count_bytes(verify.verified_bytes);
        let destroyed = Instant::now();
        self.step("destroy the cluster", |demo| demo.destroy(&mut source))?;
        drop(source);
        let restore = self.step("restore", |demo| demo.restore())?;
        self.count_bytes(restore.restored_bytes);
        let mut restored = ScratchServer::adopt(&self.install, &self.places.restored)?.without_secrets();
        // Not part of the time to recover: nobody waits for it in an emergency.
        let checking = Instant::now();
        let files = self.step("check the files", |demo| demo.check_files(&restored))?;
        let checking = checking.elapsed();
        self.step("start and replay WAL", |demo| demo.start_restored(&mut restored))?;
        let recovery_time_s = (destroyed.elapsed() - checking).as_secs_f64();
        let content = self.step("check the content", |demo| demo.check_content(&restored, &before))?;
        restored.stop(StopMode::Fast)?;

        let mut checks = vec![backup_check, verify_check(&verify), files];
        checks.extend(content);
        let kept_in = self.args.keep.then(|| self.places.root.display().to_string());
        let passed = !checks.iter().any(Check::failed);
        let phases = std::mem::take(&mut self.phases);
        Ok(DemoReport { passed, phases, checks, recovery_time_s, backup, verify, restore, kept_in })
    }

    /// Does one step and keeps its time.
    fn step<T>(&mut self, name: &'static str, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.console.stop_if_interrupted(&format!("{name} for the demo"))?;
        let started = Instant::now();
        // A signal from the terminal reaches PostgreSQL's tools too, and they fail in their own words.
        let result = work(self).or_else(|error| self.console.stop_if_interrupted("finish the demo").and(Err(error)))?;
        self.phases.push(Phase { name, elapsed_s: started.elapsed().as_secs_f64(), bytes: None });
        Ok(result)
    }

    /// Says what the step that is about to start does.
    fn say(&self, text: &str) {
        self.console.tell(&format!("[{:2}/11] {text}", self.phases.len() + 1));
    }

    /// Adds to the step just done how many bytes of the database went through.
    fn count_bytes(&mut self, bytes: u64) {
        if let Some(phase) = self.phases.last_mut() {
            phase.bytes = Some(bytes);
        }
    }

    fn make_cluster(&mut self) -> Result<ScratchServer> {
        let (major, root) = (self.install.major(), self.places.root.display());
        self.say(&format!("making a PostgreSQL {major} cluster with page checksums in {root}; it opens no port"));
        let mut server =
            ScratchServer::init(&self.install, &self.places.source, &InitOptions::default())?.without_secrets();
        self.places.make_tablespace()?;
        server.start(SETTINGS)?;
        Ok(server)
    }

    fn fill(&mut self, source: &ScratchServer) -> Result<()> {
        let scale = self.args.scale;
        self.say(&format!(
            "filling it at scale {scale}: pgbench's tables, and tables with every common type and kind of index"
        ));
        load::fill_pgbench(source, scale)?;
        load::fill_typed(&mut source.connect()?, self.places, scale)
    }

    fn take_digests(&mut self, source: &ScratchServer) -> Result<Digests> {
        self.say("taking a digest of every table that nobody will write to, for the comparison at the end");
        Digests::read(&mut source.connect()?)
    }

    fn start_writers(&mut self, source: &ScratchServer) -> Result<Writers> {
        self.say("starting two pgbench clients that write as fast as they can");
        let writers = Writers::start(source)?;
        pause(WARM_UP);
        Ok(writers)
    }

    fn back_up(&mut self, source: &ScratchServer) -> Result<BackupReport> {
        self.say("backing up to 4 stripes in 2 directories, while they write");
        let settings = source.connect_settings();
        let request = BackupRequest {
            pgdata: Some(self.places.source.clone()),
            connection: Some(format!("host={} port={} user={}", settings.host, settings.port, settings.user)),
            stripe_to: self.places.disks.iter().map(|disk| disk.display().to_string()).collect(),
            stripes: Some(STRIPES),
            compression: compression(self.args.compression.as_deref(), None)?,
            description: Some("made by pagehaul demo".to_owned()),
            ..BackupRequest::new(SOURCE.parse::<SourceName>()?, self.repo())
        };
        let BackupOutcome::Done(report) = backup(&request, self.console)? else {
            return Err(Error::new(ErrorKind::Bug, "back up the demo's cluster", "only a plan came back"));
        };
        Ok(*report)
    }

    fn verify(&mut self) -> Result<VerifyReport> {
        self.say("reading the whole backup back and checking every byte");
        verify(&VerifyRequest::new(self.repo()), self.console)
    }

    fn destroy(&mut self, source: &mut ScratchServer) -> Result<()> {
        self.say("killing the server and removing its data directory and tablespace: the disaster");
        source.stop(StopMode::Immediate)?;
        self.places.destroy_source()
    }

    fn restore(&mut self) -> Result<RestoreReport> {
        self.say("restoring the backup into a new directory, its tablespace to a new place");
        let request = RestoreRequest {
            tablespace_map: vec![(self.places.tablespace.clone(), self.places.restored_tablespace.clone())],
            ..RestoreRequest::new(self.repo(), &self.places.restored)
        };
        restore(&request, self.console)
    }

    fn check_files(&mut self, restored: &ScratchServer) -> Result<Check> {
        self.say("asking PostgreSQL's pg_verifybackup about the restored files");
        check::verifybackup(restored)
    }

    fn start_restored(&mut self, restored: &mut ScratchServer) -> Result<()> {
        self.say("starting the restored server; it replays the WAL of the backup");
        restored.start(SETTINGS)?;
        check::wait_until_open(&mut restored.connect()?)
    }

    fn check_content(&mut self, restored: &ScratchServer, before: &Digests) -> Result<Vec<Check>> {
        self.say("comparing every row, adding up the ledger, and asking pg_amcheck about every table and index");
        let mut connection = restored.connect()?;
        let mut checks = before.compare(&Digests::read(&mut connection)?);
        checks.push(check::ledger(&mut connection)?);
        checks.push(check::unlogged(&mut connection)?);
        checks.push(check::amcheck(restored)?);
        Ok(checks)
    }

    fn repo(&self) -> String {
        self.places.repository.display().to_string()
    }
}

/// A load that died would prove nothing.
fn backup_check(report: &BackupReport, at_work: bool) -> Check {
    let (label, pages, files) = (&report.label, report.bad_page_count, report.lost_file_count);
    let detail =
        format!("label {label}, {pages} damaged pages, {files} lost files, writers at work until its end: {at_work}");
    Check::new("the backup of the busy server is complete", at_work && !report.source_is_damaged(), detail)
}

fn verify_check(report: &VerifyReport) -> Check {
    let detail = format!("{} frames, {} of them damaged", report.frame_count, report.damaged_frame_count);
    Check::new("every byte of the backup reads back", report.sound, detail)
}
