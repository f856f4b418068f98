//! Files that the catalogs name and the source has no more: removed outside of SQL, they look like dropped tables.
//!
//! A file is there from before its relation's row can be seen until nobody can see it any more. So a relation that has
//! the same file before and after a look that does not find it has lost it. Of a server that sends its files, the look is
//! at what it has sent, and so the relation's row must be older than the first file.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::format::file_table::{FileTable, Place};
use crate::format::manifest::LostFile;
use crate::limits::LOST_FILES_LISTED_MAX;
use crate::pipeline::{Observer, ReadRoot, pause};
use crate::source::postgres::catalog_files::{
    CatalogDatabase, CatalogMoment, NotAsked, RELATIONS_AT_ONCE, RelationFile, files_now, relation_files,
};
use crate::source::postgres::catalog_pages::named_files::NamedFiles;
use crate::source::postgres::conninfo::ConnectSettings;
use crate::source::postgres::path_class::{Fork, PathClass, classify};
use crate::source::postgres::relation_map;
use crate::terms::{BackupLabel, FileId};

/// How long all databases may take together: the server keeps the backup's WAL meanwhile.
const TIME_MAX: Duration = Duration::from_secs(300);
const BY_CATALOG: &str = "its database's catalog names it";

/// The lost files found so far.
#[derive(Debug, Default)]
pub(super) struct LostFiles {
    pub(super) count: u64,
    pub(super) listed: Vec<LostFile>,
}

impl LostFiles {
    fn add(&mut self, file: LostFile) {
        self.count += 1;
        if self.listed.len() < LOST_FILES_LISTED_MAX {
            self.listed.push(file);
        }
    }
}

/// What is looked through, and what came of it.
pub(super) struct Search<'a> {
    pub(super) settings: ConnectSettings,
    pub(super) files: Files<'a>,
    pub(super) table: &'a FileTable,
    pub(super) prior: Option<(&'a BackupLabel, &'a FileTable)>,
    pub(super) is_standby: bool,
    pub(super) observer: &'a dyn Observer,
    pub(super) found: LostFiles,
    /// Where it could not be looked.
    pub(super) notes: Vec<String>,
}

/// Where it is looked for files.
pub(super) enum Files<'a> {
    /// In the data directory.
    Here(NamedFiles<'a>, &'a ReadRoot),
    /// Among those that the server sent after a moment.
    Sent { names: HashSet<&'a [u8]>, since: CatalogMoment },
}

impl<'a> Files<'a> {
    /// Those that a server sent after `since`.
    pub(super) fn sent(table: &'a FileTable, since: CatalogMoment) -> Self {
        Files::Sent { names: table.ids().map(|file| table.path(file)).collect(), since }
    }

    /// What is there but cannot be looked at is not lost; whoever reads it says why.
    fn are_without(&self, path: &str) -> bool {
        match self {
            Files::Here(_, root) => root.lacks(path.as_bytes()),
            Files::Sent { names, .. } => !names.contains(path.as_bytes()),
        }
    }

    /// What is younger than the moment may have come too late to be sent.
    fn tell_of(&self, database: &CatalogDatabase) -> bool {
        match self {
            Files::Here(..) => true,
            Files::Sent { since, .. } => since.databases.contains(database),
        }
    }

    fn since(&self) -> Option<u32> {
        match self {
            Files::Here(..) => None,
            Files::Sent { since, .. } => Some(since.oldest_transaction),
        }
    }
}

/// Missing segments behind the first, and how they are known, by the path of the first one.
type Segments = BTreeMap<String, BTreeMap<String, String>>;

/// A loss that counts only if its database is still there a moment later.
struct Doubtful {
    database: CatalogDatabase,
    lost: LostFile,
    /// Whether it is the file's absence that says so, and not the server.
    is_missing: bool,
}

impl Doubtful {
    fn missing(database: &CatalogDatabase, path: String, relation: Option<String>, reason: String) -> Self {
        Doubtful { database: database.clone(), lost: LostFile { path, relation, reason }, is_missing: true }
    }
}

impl Search<'_> {
    /// Looks through all databases, one after the other; `databases` asks the server which there are now. What was found, and where it
    /// could not be looked.
    ///
    /// # Errors
    /// Those of `databases`; `Interrupted`.
    pub(super) fn run(
        mut self,
        databases: &mut dyn FnMut() -> Result<Vec<CatalogDatabase>>,
    ) -> Result<(LostFiles, Vec<String>)> {
        let (started, segments) = (Instant::now(), self.missing_segments());
        let (mut doubtful, mut silent) = (Vec::new(), Vec::new());
        let mut shared_is_due = true;
        for database in databases()?.into_iter().filter(|database| self.files.tell_of(database)).collect::<Vec<_>>() {
            self.check_interrupt()?;
            let gone = self.missing_parts(&database);
            if !gone.is_empty() {
                doubtful.extend(gone);
                continue;
            }
            if database.allows_connections && self.has_all_by_its_own_files(&database, &segments) {
                continue;
            }
            if !database.allows_connections {
                doubtful.extend(self.gone_since_prior(&database));
                doubtful.extend(self.missing_mapped(&database));
                continue;
            }
            let outcome = match started.elapsed() > TIME_MAX {
                true => Err(NotAsked::Refused("the others took too long".to_owned())),
                false => self.ask(&database, shared_is_due, &segments),
            };
            match outcome {
                Ok(()) => shared_is_due = false,
                // Dropped or renamed since.
                Err(NotAsked::NoDatabase) => {}
                Err(NotAsked::Broken(why)) => {
                    let reason = format!("the server cannot open database {}: {why}", database.shown());
                    let lost = LostFile { path: database.directory.clone(), relation: None, reason };
                    doubtful.extend(self.missing_mapped(&database));
                    doubtful.push(Doubtful { database, lost, is_missing: false });
                }
                Err(NotAsked::Refused(why)) => {
                    doubtful.extend(self.missing_mapped(&database));
                    silent.push((database.shown(), why));
                }
            }
        }
        self.check_interrupt()?;
        self.note_silent(&silent);
        self.settle(databases, doubtful)?;
        Ok((self.found, self.notes))
    }

    /// Whether nothing is lost of a database whose catalog stands still: it need not be asked.
    fn has_all_by_its_own_files(&self, database: &CatalogDatabase, segments: &Segments) -> bool {
        let Files::Here(named, _) = &self.files else { return false };
        named.are_there(database, &mut |relation| {
            let mut expected = self.expected(relation, segments);
            !self.observer.interrupted() && expected.all(|(path, _)| !self.is_missing(&path))
        })
    }

    /// Goes through the relations of one database.
    fn ask(
        &mut self,
        database: &CatalogDatabase,
        with_shared: bool,
        segments: &Segments,
    ) -> std::result::Result<(), NotAsked> {
        let mut after = 0;
        loop {
            if self.observer.interrupted() {
                return Err(NotAsked::Refused("a signal asked to stop".to_owned()));
            }
            let relations = relation_files(&self.settings, database, after, with_shared, self.files.since())?;
            let missing: Vec<(&RelationFile, String, String)> = relations
                .iter()
                .filter(|relation| !relation.path.is_empty())
                .flat_map(|relation| self.expected(relation, segments).map(move |(path, why)| (relation, path, why)))
                .filter(|(_, path, _)| self.is_missing(path))
                .collect();
            if !missing.is_empty() {
                self.ask_again(database, missing)?;
            }
            match relations.last() {
                Some(last) if relations.len() == RELATIONS_AT_ONCE => after = last.oid,
                _ => return Ok(()),
            }
        }
    }

    /// Keeps what is missing of relations that still have the file that they had.
    fn ask_again(
        &mut self,
        database: &CatalogDatabase,
        missing: Vec<(&RelationFile, String, String)>,
    ) -> std::result::Result<(), NotAsked> {
        let mut oids: Vec<u32> = missing.iter().map(|(relation, ..)| relation.oid).collect();
        oids.dedup();
        let now: BTreeMap<u32, (String, String)> = files_now(&self.settings, database, &oids)?
            .into_iter()
            .map(|(oid, path, name)| (oid, (path, name)))
            .collect();
        let shown = database.shown();
        for (relation, path, reason) in missing {
            if let Some((path_now, name)) = now.get(&relation.oid)
                && *path_now == relation.path
            {
                self.found.add(LostFile { path, relation: Some(format!("{name} in {shown}")), reason });
            }
        }
        Ok(())
    }

    /// The files that a relation must have, and how that is known.
    fn expected(&self, relation: &RelationFile, segments: &Segments) -> impl Iterator<Item = (String, String)> + use<> {
        let path = &relation.path;
        let mut files = Vec::new();
        // A standby has unlogged relations as init forks only, and a server sends nothing else of them.
        if !(relation.is_unlogged && (self.is_standby || matches!(self.files, Files::Sent { .. }))) {
            files.push((path.clone(), BY_CATALOG.to_owned()));
        }
        if relation.is_unlogged {
            files.push((format!("{path}_init"), BY_CATALOG.to_owned()));
        }
        let later = segments.get(path).into_iter().flatten();
        files.extend(later.map(|(path, reason)| (path.clone(), reason.clone())));
        files.into_iter()
    }

    /// Segments that are not in the list of files, though a later one is, or the prior has them.
    fn missing_segments(&self) -> Segments {
        let own: HashSet<&str> = later_segments(self.table).map(|(_, path)| path).collect();
        let mut missing = Segments::new();
        let mut add = |path: &str, first: &str, reason: String| {
            missing.entry(first.to_owned()).or_default().insert(path.to_owned(), reason);
        };
        for path in &own {
            let Some((first, number)) = split_segment(path) else { continue };
            let before = format!("{first}.{}", number - 1);
            if number > 1 && !own.contains(before.as_str()) {
                add(&before, first, format!("{path} is there"));
            }
        }
        if let Some((label, table)) = self.prior {
            // Pages that a crash left behind the end are in no WAL, so another server of the cluster may be without them.
            let has_content = |file: FileId| table.runs(file).iter().any(|run| run.place() != Place::Zeros);
            for (_, path) in later_segments(table).filter(|(file, path)| !own.contains(path) && has_content(*file)) {
                let Some((first, _)) = split_segment(path) else { continue };
                add(path, first, format!("it was in set {label}, and its relation has the same file number"));
            }
        }
        missing
    }

    /// What every database has and this one has not.
    fn missing_parts(&self, database: &CatalogDatabase) -> Vec<Doubtful> {
        let (directory, reason) = (&database.directory, format!("database {} is in pg_database", database.shown()));
        let missing = |path: String| Doubtful::missing(database, path, None, reason.clone());
        if self.is_missing(directory) {
            return vec![missing(directory.clone())];
        }
        let parts = ["PG_VERSION", "pg_filenode.map"].map(|name| format!("{directory}/{name}"));
        parts.into_iter().filter(|path| self.is_missing(path)).map(missing).collect()
    }

    /// Files that the prior has of a database that SQL cannot change.
    fn gone_since_prior(&self, database: &CatalogDatabase) -> Vec<Doubtful> {
        let Some((label, table)) = self.prior else { return Vec::new() };
        let prefix = format!("{}/", database.directory);
        let is_wanted = |fork: Fork| matches!(fork, Fork::Main | Fork::Init);
        let files = table.ids().map(|file| table.path(file)).filter(|path| path.starts_with(prefix.as_bytes()));
        let relations =
            files.filter(|path| matches!(classify(path), PathClass::Relation { fork, .. } if is_wanted(fork)));
        let missing = relations.filter_map(|path| std::str::from_utf8(path).ok()).filter(|path| self.is_missing(path));
        missing
            .map(|path| {
                let name = database.shown();
                let reason = format!("it was in set {label}, and nobody may connect to database {name} to drop it");
                Doubtful::missing(database, path.to_owned(), None, reason)
            })
            .collect()
    }

    /// Files of the catalogs that the database's own map names.
    fn missing_mapped(&self, database: &CatalogDatabase) -> Vec<Doubtful> {
        let Files::Here(named, _) = &self.files else { return Vec::new() };
        let map = || relation_map::read(&named.pgdata.join(&database.directory));
        let file = |number: u32| format!("{}/{number}", database.directory);
        let mut missing = map().unwrap_or_default();
        missing.retain(|(_, number)| self.is_missing(&file(*number)));
        if missing.is_empty() {
            return Vec::new();
        }
        // The same question again, as of the catalogs.
        let now = map().unwrap_or_default();
        let still = missing.into_iter().filter(|entry| now.contains(entry));
        still
            .map(|(oid, number)| {
                let relation = format!("catalog {oid} in {}", database.shown());
                let reason = "its database's pg_filenode.map names it".to_owned();
                Doubtful::missing(database, file(number), Some(relation), reason)
            })
            .collect()
    }

    /// Keeps what is missing of databases that are still there.
    fn settle(
        &mut self,
        databases: &mut dyn FnMut() -> Result<Vec<CatalogDatabase>>,
        doubtful: Vec<Doubtful>,
    ) -> Result<()> {
        if doubtful.is_empty() {
            return Ok(());
        }
        if self.is_standby {
            // A dropped database's files go a moment before its row does.
            pause(Duration::from_secs(1));
        }
        let now = databases()?;
        for Doubtful { database, lost, is_missing } in doubtful {
            if now.contains(&database) && (!is_missing || self.is_missing(&lost.path)) {
                self.found.add(lost);
            }
        }
        Ok(())
    }

    fn is_missing(&self, path: &str) -> bool {
        self.files.are_without(path)
    }

    fn note_silent(&mut self, silent: &[(String, String)]) {
        let Some((_, why)) = silent.first() else { return };
        let names: Vec<&str> = silent.iter().map(|(name, _)| name.as_str()).collect();
        self.notes.push(format!(
            "whether files of these databases were lost is not known, because they could not be asked: {} ({why}); \
             GRANT CONNECT and a line in pg_hba.conf let the role in",
            names.join(", ")
        ));
    }

    fn check_interrupt(&self) -> Result<()> {
        match self.observer.interrupted() {
            true => Err(Error::new(ErrorKind::Interrupted, "look for lost files", "a signal asked to stop")
                .hint("nothing of this set is kept; earlier sets are not touched")),
            false => Ok(()),
        }
    }
}

/// The segments behind the first of all main forks.
fn later_segments(table: &FileTable) -> impl Iterator<Item = (FileId, &str)> {
    let is_later = |path: &[u8]| matches!(classify(path), PathClass::Relation { fork: Fork::Main, segment_number, .. } if segment_number > 0);
    let paths = table.ids().map(|file| (file, table.path(file))).filter(move |(_, path)| is_later(path));
    paths.filter_map(|(file, path)| Some((file, std::str::from_utf8(path).ok()?)))
}

/// Path of the first segment, and the number of this one.
fn split_segment(path: &str) -> Option<(&str, u32)> {
    let (first, number) = path.rsplit_once('.')?;
    Some((first, number.parse().ok()?))
}
