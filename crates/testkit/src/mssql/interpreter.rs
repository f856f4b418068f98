//! What the batches that are sent here do to the world. A batch that nobody knows is an error.

use std::sync::Mutex;
use std::time::Duration;

use super::model::Cost;
use super::statements::{Options, Statement, statement};
use super::wire::{ATTENTION, Link, done, message, rows};
use super::{BackupSet, Database, DatabaseFile, Happening, World};

/// An error, as (number, text).
type Errors = Vec<(i32, String)>;

/// Runs one batch; None ends the connection.
pub(super) fn run_batch(link: &mut Link, text: &str, world: &Mutex<World>, fault: Option<&Happening>) -> Option<()> {
    let first = text.lines().find(|line| !line.trim().is_empty() && !line.starts_with("--")).unwrap_or_default();
    let word = first.split([' ', ';']).next().unwrap_or_default().to_uppercase();
    match fault {
        Some(Happening::Errors(errors)) => return refuse(link, errors),
        Some(Happening::Chatter) => return chatter(link, world),
        Some(Happening::Rows) => return endless_rows(link),
        _ => {}
    }
    match word.as_str() {
        "SET" => link
            .send(
                &[message(5703, 0, "Changed language setting to us_english."), done(false, false, false)].concat(),
                true,
            )
            .ok(),
        "BACKUP" => {
            let outcome = backup(&mut world.lock().unwrap(), &statement(text));
            answer(link, world, outcome, fault)
        }
        "RESTORE" => restore(link, &statement(text), world, fault),
        "DECLARE" | "PRINT" => prints(link, text, world),
        "IF" if text.contains("DROP DATABASE") => drop_database(link, text, world),
        "EXEC" => delete_file(link, text, world),
        "ALTER" => suspend(link, text, world),
        "WAITFOR" => wait_for(link, text, world),
        "SELECT" => {
            let answer = [rows(&["one", "none"], &[vec![Some("1".to_owned()), None]]), done(false, false, false)];
            link.send(&answer.concat(), true).ok()
        }
        _ => refuse(link, &[(102, format!("Incorrect syntax near '{word}'."))]),
    }
}

fn refuse(link: &mut Link, errors: &[(i32, String)]) -> Option<()> {
    let mut bytes: Vec<u8> = errors.iter().flat_map(|(number, text)| message(*number, 16, text)).collect();
    bytes.extend(done(false, true, false));
    link.send(&bytes, true).ok()
}

/// A running statement: what it says at last.
struct Work {
    lines: Vec<(i32, String)>,
}

/// Progress, then the last words; a fault comes in between.
fn answer(
    link: &mut Link,
    world: &Mutex<World>,
    outcome: Result<Work, Errors>,
    fault: Option<&Happening>,
) -> Option<()> {
    let work = match outcome {
        Ok(work) => work,
        Err(errors) => return refuse(link, &errors),
    };
    for percent in (10..=100).step_by(10) {
        match fault {
            Some(Happening::Disconnect(at)) if percent > *at => return None,
            Some(Happening::Hang(at)) if percent > *at => return hang(link, world),
            _ => {}
        }
        link.send(&message(3211, 0, &format!("{percent} percent processed.")), false).ok()?;
    }
    let mut bytes: Vec<u8> = work.lines.iter().flat_map(|(number, text)| message(*number, 0, text)).collect();
    bytes.extend(done(false, false, false));
    link.send(&bytes, true).ok()
}

/// Messages until an attention.
fn chatter(link: &mut Link, world: &Mutex<World>) -> Option<()> {
    link.tcp().set_read_timeout(Some(Duration::from_millis(1))).ok()?;
    while link.tcp().peek(&mut [0]).is_err() {
        link.send(&message(0, 0, "and so on"), false).ok()?;
    }
    link.tcp().set_read_timeout(None).ok()?;
    hang(link, world)
}

/// Rows until the client goes away.
fn endless_rows(link: &mut Link) -> Option<()> {
    let row = vec![Some("x".repeat(2000))];
    let head = rows(&["text"], &[]);
    link.send(&head, false).ok()?;
    let some = rows(&["text"], &vec![row; 200])[head.len()..].to_vec();
    loop {
        link.send(&some, false).ok()?;
    }
}

/// Nothing more until an attention.
fn hang(link: &mut Link, world: &Mutex<World>) -> Option<()> {
    let (kind, _) = link.read_message()?;
    assert_eq!(kind, ATTENTION, "a statement runs: nothing but an attention may come");
    world.lock().unwrap().attentions += 1;
    link.send(&done(false, false, true), true).ok()
}

fn backup(world: &mut World, statement: &Statement) -> Result<Work, Errors> {
    let terminating = || (3013, format!("BACKUP {} is terminating abnormally.", statement.kind));
    let fail = |number, text: String| Err(vec![(number, text), terminating()]);
    let (name, options) = (&statement.database, &statement.options);
    let Some(database) = world.databases.get(name) else {
        return fail(911, format!("Database '{name}' does not exist. Make sure that the name is entered correctly."));
    };
    if statement.kind == "LOG" && database.recovery_model == "SIMPLE" {
        return fail(4208, "The statement BACKUP LOG is not allowed while the recovery model is SIMPLE.".to_owned());
    }
    let (bytes, data_files) = (database.data_bytes, database.files.clone());
    let is_zstd = options.packing.as_ref().is_some_and(|(algorithm, _)| algorithm == "ZSTD");
    if is_zstd && world.version[0] < 17 {
        return fail(15129, "'ZSTD' is not a valid value for configuration option 'ALGORITHM'.".to_owned());
    }
    let count = statement.devices.len();
    if world.limits.buffer_bytes(options, count) > world.limits.buffer_bytes_max {
        let text = "There is insufficient system memory in resource pool 'internal' to run this query.";
        return fail(701, text.to_owned());
    }
    let is_nul = statement.devices.iter().all(|device| device == "NUL");
    if let Some(bad) = statement.devices.iter().find(|device| !is_nul && device.contains("/readonly/")) {
        return fail(3201, format!("Cannot open backup device '{bad}'. Operating system error 5(Access is denied.)."));
    }
    let is_metadata = options.has("METADATA_ONLY");
    if is_metadata != world.databases[name].is_suspended {
        return fail(3081, format!("Database '{name}' must be suspended for a METADATA_ONLY backup, and only then."));
    }
    let cost = if is_metadata { Cost::default() } else { world.limits.backup(bytes, options, count, is_nul) };
    world.spend(&cost);
    if !is_nul {
        for device in &statement.devices {
            world.backup_files.insert(device.clone(), cost.stored_bytes / count as u64);
        }
    }
    note_set(world, statement, bytes, &cost);
    Ok(Work { lines: last_words(statement, &data_files, bytes, cost.wall_s) })
}

fn note_set(world: &mut World, statement: &Statement, bytes: u64, cost: &Cost) {
    let options = &statement.options;
    let kind = match statement.kind.as_str() {
        "LOG" => 'L',
        _ if options.has("DIFFERENTIAL") => 'I',
        _ => 'D',
    };
    let is_copy_only = options.has("COPY_ONLY");
    if let Some(database) = world.databases.get_mut(&statement.database) {
        if kind == 'D' && !is_copy_only {
            database.differential_base = Some(options.description.clone());
        }
        database.is_suspended &= !options.has("METADATA_ONLY");
    }
    world.sets.push(BackupSet {
        database: statement.database.clone(),
        description: options.description.clone(),
        backup_size: bytes,
        stored_size: cost.stored_bytes,
        algorithm: options.packing.as_ref().map(|(algorithm, _)| algorithm.clone()),
        has_checksums: options.has("CHECKSUM"),
        is_copy_only,
        kind,
        files: statement.devices.clone(),
    });
}

/// What the server says at the end of a BACKUP or RESTORE.
fn last_words(statement: &Statement, files: &[DatabaseFile], bytes: u64, wall_s: f64) -> Vec<(i32, String)> {
    let pages = bytes / 8192;
    let mut lines: Vec<(i32, String)> = files
        .iter()
        .map(|file| {
            let own = if file.is_log { 2 } else { pages };
            let text =
                format!("Processed {own} pages for database '{}', file '{}' on file 1.", statement.database, file.name);
            (4035, text)
        })
        .collect();
    let rate = bytes as f64 / 1_048_576.0 / wall_s.max(0.001);
    let text = format!(
        "{} {} successfully processed {} pages in {wall_s:.3} seconds ({rate:.3} MB/sec).",
        statement.verb,
        statement.kind,
        pages + 2
    );
    lines.push((3014, text));
    lines
}

impl World {
    /// Lets the time pass that something takes.
    fn spend(&mut self, cost: &Cost) {
        self.clock_us += (cost.wall_s * 1e6) as u64;
        self.cpu_ms += cost.cpu_s * 1e3;
        let mut wait = |name, seconds: f64| *self.waits_ms.entry(name).or_default() += seconds.max(0.0) * 1e3;
        wait("ASYNC_IO_COMPLETION", cost.read_s);
        wait("BACKUPIO", cost.write_s);
        wait("BACKUPBUFFER", cost.wall_s - cost.read_s);
        wait("BACKUPTHREAD", 0.1);
    }
}

fn restore(link: &mut Link, statement: &Statement, world: &Mutex<World>, fault: Option<&Happening>) -> Option<()> {
    match statement.kind.as_str() {
        "DATABASE" => {
            let outcome = restore_database(&mut world.lock().unwrap(), statement);
            answer(link, world, outcome, fault)
        }
        "VERIFYONLY" => {
            let found = set_of(&world.lock().unwrap(), statement)
                .map(|_| Work { lines: vec![(3262, "The backup set on file 1 is valid.".to_owned())] });
            answer(link, world, found, fault)
        }
        _ => look(link, statement, world),
    }
}

fn set_of(world: &World, statement: &Statement) -> Result<BackupSet, Errors> {
    let terminating = (3013, format!("RESTORE {} is terminating abnormally.", statement.kind));
    if let Some(absent) = statement.devices.iter().find(|device| !world.backup_files.contains_key(*device)) {
        let text = format!(
            "Cannot open backup device '{absent}'. Operating system error 2(The system cannot find the file specified.)."
        );
        return Err(vec![(3201, text), terminating]);
    }
    let mut wanted = statement.devices.clone();
    wanted.sort();
    let is_own = |set: &&BackupSet| {
        let mut files = set.files.clone();
        files.sort();
        files == wanted
    };
    let text = "The media set has more families than are given. All members must be provided.";
    world.sets.iter().rev().find(is_own).cloned().ok_or_else(|| vec![(3132, text.to_owned()), terminating])
}

fn restore_database(world: &mut World, statement: &Statement) -> Result<Work, Errors> {
    let terminating = || (3013, "RESTORE DATABASE is terminating abnormally.".to_owned());
    let set = set_of(world, statement)?;
    let (name, options) = (&statement.database, &statement.options);
    if world.databases.contains_key(name) && !options.has("REPLACE") {
        let text = format!("The backup set holds a backup of a database other than the existing '{name}' database.");
        return Err(vec![(3154, text), terminating()]);
    }
    if options.has("CHECKSUM") && !set.has_checksums {
        let text =
            "RESTORE WITH CHECKSUM cannot be specified because the backup set does not contain checksum information.";
        return Err(vec![(3187, text.to_owned()), terminating()]);
    }
    let origin = world.databases[&set.database].clone();
    let mut files = Vec::new();
    for file in &origin.files {
        let path = options.moves.iter().find(|(name, _)| *name == file.name).map_or(&file.path, |(_, path)| path);
        let is_taken = |database: &Database| database.files.iter().any(|other| other.path == *path);
        if !options.has("REPLACE") && world.databases.values().any(is_taken) {
            let text =
                format!("The file '{path}' cannot be overwritten. It is being used by database '{}'.", set.database);
            return Err(vec![(1834, text), terminating()]);
        }
        files.push(DatabaseFile { path: path.clone(), ..file.clone() });
    }
    let packing = set.algorithm.clone().map(|algorithm| (algorithm, String::new()));
    let packed_as = Options { packing, ..Options::default() };
    let cost = world.limits.restore(set.backup_size, &packed_as, options, statement.devices.len());
    world.spend(&cost);
    let lines = last_words(statement, &files, set.backup_size, cost.wall_s);
    world.databases.insert(name.clone(), Database { files, differential_base: None, ..origin });
    Ok(Work { lines })
}

/// HEADERONLY, FILELISTONLY and LABELONLY.
fn look(link: &mut Link, statement: &Statement, world: &Mutex<World>) -> Option<()> {
    let found = {
        let world = world.lock().unwrap();
        set_of(&world, statement).map(|set| (world.databases[&set.database].files.clone(), set))
    };
    let (files, set) = match found {
        Ok(found) => found,
        Err(errors) => return refuse(link, &errors),
    };
    let text = |text: &str| Some(text.to_owned());
    let result = match statement.kind.as_str() {
        "FILELISTONLY" => {
            let kind = |file: &DatabaseFile| if file.is_log { "L" } else { "D" };
            let all: Vec<_> =
                files.iter().map(|file| vec![text(&file.name), text(&file.path), text(kind(file))]).collect();
            rows(&["LogicalName", "PhysicalName", "Type"], &all)
        }
        "LABELONLY" => rows(&["MediaName", "FamilyCount"], &[vec![None, Some(set.files.len().to_string())]]),
        _ => rows(
            &["DatabaseName", "BackupDescription", "BackupType", "BackupSize"],
            &[vec![text(&set.database), text(&set.description), text("1"), Some(set.backup_size.to_string())]],
        ),
    };
    link.send(&[result, done(false, false, false)].concat(), true).ok()
}

/// `PRINT N'text';` and `PRINT CONCAT(N'text', @name);` with what the world has under that name.
fn prints(link: &mut Link, text: &str, world: &Mutex<World>) -> Option<()> {
    let world = world.lock().unwrap();
    let mut bytes = Vec::new();
    for line in text.lines().map(str::trim) {
        let Some(what) = line.strip_prefix("PRINT ") else { continue };
        let unquoted = |text: &str| text.trim_start_matches("N'").replace("''", "'");
        if let Some(inner) = what.strip_prefix("CONCAT(").and_then(|rest| rest.strip_suffix(");")) {
            let (head, name) = inner.rsplit_once("', @").unwrap_or_else(|| panic!("a PRINT that is not known: {line}"));
            for value in world.values(name, text) {
                bytes.extend(message(0, 0, &format!("{}{value}", unquoted(head))));
            }
        } else {
            bytes.extend(message(0, 0, &unquoted(what.trim_end_matches("';"))));
        }
    }
    drop(world);
    bytes.extend(done(false, false, false));
    link.send(&bytes, true).ok()
}

/// Whether a batch of the form `... IF @taken = 1 SET NOEXEC ON;` finds the database that it asks for.
pub(super) fn turns_execution_off(batch: &str, world: &World) -> bool {
    batch.contains("IF @taken = 1 SET NOEXEC ON;") && world.databases.contains_key(&text_behind(batch, "DB_ID("))
}

/// The text in `N'...'` behind `before`.
fn text_behind(batch: &str, before: &str) -> String {
    let Some((_, rest)) = batch.split_once(before) else { panic!("no {before} in {batch}") };
    let quoted = rest.trim_start().trim_start_matches("N'");
    let mut text = String::new();
    let mut signs = quoted.chars().peekable();
    while let Some(sign) = signs.next() {
        if sign == '\'' && signs.next_if_eq(&'\'').is_none() {
            break;
        }
        text.push(sign);
    }
    text
}

impl World {
    /// The values of the variable `name` in `batch`.
    fn values(&self, name: &str, batch: &str) -> Vec<String> {
        // Every server has it, and no test looks for it.
        let master = Database {
            data_bytes: 4 << 20,
            files: vec![DatabaseFile { name: "master".to_owned(), is_log: false, path: "/m/master.mdf".to_owned() }],
            recovery_model: "SIMPLE".to_owned(),
            is_suspended: false,
            differential_base: None,
        };
        let database = || match text_behind(batch, "DECLARE @database nvarchar(128) =").as_str() {
            "master" => Some(&master),
            name => self.databases.get(name),
        };
        let own = |value: &dyn Fn(&Database) -> String| vec![database().map(value).unwrap_or_default()];
        let each = |value: &dyn Fn(&DatabaseFile) -> String| {
            database().map(|database| database.files.iter().map(value).collect()).unwrap_or_default()
        };
        let set = |value: &dyn Fn(&BackupSet) -> String| {
            let key = text_behind(batch, "description =");
            vec![self.sets.iter().rev().find(|set| set.description == key).map(value).unwrap_or_default()]
        };
        let bit = |is_set: bool| u8::from(is_set).to_string();
        let one = |text: &str| vec![text.to_owned()];
        match name {
            "time_utc" => vec![self.time_text()],
            "cpu_ms" => vec![format!("{:.0}", self.cpu_ms)],
            "BACKUPIO" | "BACKUPBUFFER" | "ASYNC_IO_COMPLETION" | "BACKUPTHREAD" => {
                vec![format!("{:.0}", self.waits_ms.get(name).copied().unwrap_or_default())]
            }
            "server" => one("mock"),
            "product_version" => vec![format!("{}.0.{}.1", self.version[0], self.version[2])],
            "edition" => vec![self.edition.1.clone()],
            "engine_edition" => vec![self.edition.0.to_string()],
            "platform" => one(if self.is_windows { "Windows" } else { "Linux" }),
            "cpu_count" => vec![self.limits.cores.to_string()],
            "memory_bytes" => one("17179869184"),
            "memory_free_bytes" => one("8589934592"),
            "recovery_model" => own(&|database| database.recovery_model.clone()),
            "is_encrypted" => own(&|_| "0".to_owned()),
            "state" => own(&|_| "ONLINE".to_owned()),
            "data_bytes" => own(&|database| database.data_bytes.to_string()),
            "volume_count" => own(&|_| "1".to_owned()),
            "default_data_path" | "default_log_path" => one("/var/opt/mssql/data/"),
            "backup_compression_default" | "backup_checksum_default" => one("0"),
            "file_type" => each(&|file| if file.is_log { "LOG" } else { "ROWS" }.to_owned()),
            "file_name" => each(&|file| file.name.clone()),
            "file_path" => each(&|file| file.path.clone()),
            "taken" => vec![bit(self.databases.contains_key(&text_behind(batch, "DB_ID(")))],
            "backup_size" => set(&|set| set.backup_size.to_string()),
            "stored_size" => set(&|set| set.stored_size.to_string()),
            "algorithm" => set(&|set| set.algorithm.clone().unwrap_or_default()),
            "has_checksums" => set(&|set| bit(set.has_checksums)),
            "is_copy_only" => set(&|set| bit(set.is_copy_only)),
            "is_damaged" => set(&|_| bit(false)),
            "base" => set(&|set| {
                let base = self.databases.get(&set.database).and_then(|database| database.differential_base.clone());
                base.filter(|_| set.kind == 'I').unwrap_or_default()
            }),
            "suspended" => own(&|database| bit(database.is_suspended)),
            _ => panic!("a variable that nobody knows here: {name}"),
        }
    }
}

fn drop_database(link: &mut Link, text: &str, world: &Mutex<World>) -> Option<()> {
    let name = text_behind(text, "DB_ID(");
    assert!(text.contains(&format!("DROP DATABASE [{}]", name.replace(']', "]]"))), "another name is dropped: {text}");
    assert_ne!(name, "shop", "the source is dropped");
    world.lock().unwrap().databases.remove(&name);
    link.send(&done(false, false, false), true).ok()
}

fn delete_file(link: &mut Link, text: &str, world: &Mutex<World>) -> Option<()> {
    let path = match text.split_once("xp_delete_files") {
        Some(_) => text_behind(text, "xp_delete_files"),
        None => text_behind(text, "xp_delete_file 0,"),
    };
    world.lock().unwrap().backup_files.remove(&path);
    link.send(&done(false, false, false), true).ok()
}

fn suspend(link: &mut Link, text: &str, world: &Mutex<World>) -> Option<()> {
    set_suspended(&mut world.lock().unwrap(), text);
    link.send(&done(false, false, false), true).ok()
}

fn set_suspended(world: &mut World, text: &str) {
    let name = super::statements::pieces(text)
        .into_iter()
        .find_map(|piece| match piece {
            super::statements::Piece::Name(name) => Some(name),
            _ => None,
        })
        .unwrap();
    let turns_on = text.contains("SUSPEND_FOR_SNAPSHOT_BACKUP = ON");
    world.databases.get_mut(&name).unwrap().is_suspended = turns_on;
}

/// Waits until the world says that the time is over; a client that goes away ends it.
fn wait_for(link: &mut Link, text: &str, world: &Mutex<World>) -> Option<()> {
    link.tcp().set_read_timeout(Some(Duration::from_millis(20))).ok()?;
    loop {
        if world.lock().unwrap().waitfor_is_over {
            set_suspended(&mut world.lock().unwrap(), text);
            link.tcp().set_read_timeout(None).ok()?;
            return link.send(&done(false, false, false), true).ok();
        }
        let mut byte = [0];
        match link.tcp().peek(&mut byte) {
            Ok(0) => return None,
            Ok(_) => {
                link.tcp().set_read_timeout(None).ok()?;
                return hang(link, world);
            }
            Err(cause) if matches!(cause.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return None,
        }
    }
}
