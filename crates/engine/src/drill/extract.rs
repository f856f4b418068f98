//! One table out of a set: its database restored to scratch, started in a sandbox, and dumped.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::str::FromStr;
use std::time::Instant;

use serde::Serialize;

use super::{Drill, DrillFailure, DrillRequest, Restorer, Started};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::Observer;
use crate::terms::{BackupLabel, SourceName};

/// A table by its full name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    /// Its database.
    pub database: String,
    /// Its schema.
    pub schema: String,
    /// Its own name.
    pub table: String,
}

impl FromStr for TableName {
    type Err = Error;

    /// `DATABASE.SCHEMA.TABLE`; a part in double quotes may hold anything, two quotes for one.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            Error::new(ErrorKind::Usage, format!("use {text:?} for --table"), "not of the form DATABASE.SCHEMA.TABLE")
                .hint("parts with dots in them stand in double quotes: app.public.\"odd.name\"")
        };
        let mut parts = vec![String::new()];
        let (mut quoted, mut characters) = (false, text.chars().peekable());
        while let Some(character) = characters.next() {
            let part = parts.last_mut().ok_or_else(bad)?;
            match character {
                '"' if quoted && characters.peek() == Some(&'"') => {
                    characters.next();
                    part.push('"');
                }
                '"' => quoted = !quoted,
                '.' if !quoted => parts.push(String::new()),
                other => part.push(other),
            }
        }
        match <[String; 3]>::try_from(parts) {
            Ok(parts) if !quoted && parts.iter().all(|part| !part.is_empty()) => {
                let [database, schema, table] = parts;
                Ok(TableName { database, schema, table })
            }
            _ => Err(bad()),
        }
    }
}

impl TableName {
    /// Schema and table as a pattern of pg_dump that means this one table.
    fn pattern(&self) -> String {
        let quote = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        format!("{}.{}", quote(&self.schema), quote(&self.table))
    }
}

/// What is taken out, and whereto.
#[derive(Clone, Debug)]
pub struct ExtractRequest {
    /// Which set, where, with what.
    pub drill: DrillRequest,
    /// Which table.
    pub table: TableName,
    /// A file that does not exist yet; None is standard output.
    pub output: Option<PathBuf>,
}

/// What was done; the keys of `extract-table --json`.
#[derive(Clone, Debug, Serialize)]
pub struct ExtractReport {
    /// The set.
    pub label: BackupLabel,
    /// Whose.
    pub source: SourceName,
    /// The file that was written; null is standard output.
    pub output: Option<String>,
    /// Its bytes.
    pub output_bytes: Option<u64>,
    /// Bytes of all files that were restored.
    pub restored_bytes: u64,
    /// Seconds of the restore.
    pub restore_s: f64,
    /// Seconds until the server took connections.
    pub replay_s: f64,
    /// Seconds of the dump.
    pub dump_s: f64,
    /// Wall time of everything.
    pub elapsed_s: f64,
    /// What else is worth knowing.
    pub notes: Vec<String>,
}

/// Restores the table's database to scratch and writes the table as SQL; `restorer` restores no other database.
///
/// # Errors
/// `Usage` if there is no such table, `Target` if the output is there already or cannot be written, `Damage` if the set
/// does not restore or start; those of a restore.
pub fn extract_table(
    request: &ExtractRequest,
    restorer: Restorer<'_>,
    observer: &dyn Observer,
) -> Result<ExtractReport> {
    let started = Instant::now();
    let mut drill = Drill::prepare(&request.drill)?;
    if !drill.install.has_tool("pg_dump") {
        let action = format!("find pg_dump in {}", drill.install.bin_directory().display());
        return Err(Error::new(ErrorKind::Configuration, action, "it is not there")
            .hint("install PostgreSQL's client programs of that version, or name their directory with --pg-bin"));
    }
    let output = request.output.as_ref().map(Output::create).transpose()?;
    // Replay may touch pages of the databases that were left out, without bringing them whole (restore/databases.rs).
    let running = match drill.start(restorer, &[("ignore_invalid_pages", "on")], observer) {
        Ok(running) => running,
        Err(DrillFailure::Failed(error)) => return Err(error),
        Err(DrillFailure::Broken { step, cause, .. }) => {
            return Err(Error::new(ErrorKind::Damage, format!("{step} set {}", drill.manifest.label), cause)
                .hint("`pagehaul info` lists other backups; `pagehaul verify` says what of this one is damaged"));
        }
    };
    let Started { mut sandbox, restore, replay_s } = running;
    observer.phase("dump the table");
    let dumping = Instant::now();
    let stdout = output.as_ref().map(Output::stdio).transpose()?.unwrap_or_else(Stdio::inherit);
    let table = dump(request, &sandbox, stdout)?;
    let output_bytes = output.map(Output::keep).transpose()?;
    let dump_s = dumping.elapsed().as_secs_f64();
    sandbox.stop()?;
    drop(sandbox);
    let Drill { manifest, scratch, mut notes, .. } = drill;
    notes.extend(table);
    if let Err(error) = scratch.remove() {
        notes.push(error.message());
    }
    Ok(ExtractReport {
        label: manifest.label,
        source: manifest.source,
        output: request.output.as_ref().map(|path| path.display().to_string()),
        output_bytes,
        restored_bytes: restore.restored_bytes,
        restore_s: restore.elapsed_s,
        replay_s,
        dump_s,
        elapsed_s: started.elapsed().as_secs_f64(),
        notes,
    })
}

/// Runs pg_dump; a note if it had something to say.
fn dump(
    request: &ExtractRequest,
    sandbox: &crate::source::postgres::sandbox::Sandbox,
    stdout: Stdio,
) -> Result<Option<String>> {
    let name = &request.table;
    // From 16 on the partitions of a table can be asked for with it.
    let option = if sandbox.install().major() >= 16 { "--table-and-children" } else { "--table" };
    let pattern = format!("{option}={}", name.pattern());
    let arguments = ["--no-password", "--dbname", name.database.as_str(), &pattern];
    let mut command = sandbox.tool_command("pg_dump", &arguments);
    let failed = |cause: &dyn std::fmt::Display| Error::new(ErrorKind::Source, "dump the table", cause);
    let child = command.stdout(stdout).stderr(Stdio::piped()).spawn().map_err(|cause| failed(&cause))?;
    let done = child.wait_with_output().map_err(|cause| failed(&cause))?;
    let words = String::from_utf8_lossy(&done.stderr).trim().to_owned();
    if done.status.success() {
        return Ok((!words.is_empty()).then_some(words));
    }
    if words.contains("no matching tables") || words.contains("no matching schemas") {
        let action = format!("find table {} in database {}", name.pattern(), name.database);
        return Err(Error::new(ErrorKind::Usage, action, "the backup has none of that name")
            .hint("names are as PostgreSQL keeps them: in small letters unless they were quoted"));
    }
    Err(failed(&words))
}

/// A new file that goes away again unless the dump is whole.
struct Output {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl Output {
    fn create(path: &PathBuf) -> Result<Self> {
        let failed = |cause: std::io::Error| {
            Error::new(ErrorKind::Target, format!("create {}", path.display()), cause)
                .hint("give --output a file that does not exist yet, or - for standard output")
        };
        Ok(Output { path: path.clone(), file: File::create_new(path).map_err(failed)?, kept: false })
    }

    fn stdio(&self) -> Result<Stdio> {
        let failed = |cause| Error::new(ErrorKind::Target, format!("write {}", self.path.display()), cause);
        Ok(self.file.try_clone().map_err(failed)?.into())
    }

    /// Makes it durable; gives its length.
    fn keep(mut self) -> Result<u64> {
        let failed = |cause| Error::new(ErrorKind::Target, format!("write {}", self.path.display()), cause);
        self.file.sync_all().map_err(failed)?;
        let length = self.file.metadata().map_err(failed)?.len();
        self.kept = true;
        Ok(length)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.kept {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_three_parts_with_or_without_quotes() {
        let name: TableName = "app.public.orders".parse().unwrap();
        assert_eq!((name.database.as_str(), name.pattern().as_str()), ("app", "\"public\".\"orders\""));
        let odd: TableName = "\"a.b\".\"S\"\"x\".\"T t\"".parse().unwrap();
        assert_eq!((odd.database.as_str(), odd.pattern().as_str()), ("a.b", "\"S\"\"x\".\"T t\""));
        for bad in ["", "orders", "public.orders", "a.b.c.d", "a..c", "a.b.\"c"] {
            assert!(bad.parse::<TableName>().is_err(), "{bad}");
        }
    }
}
