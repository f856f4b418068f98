//! `pagehaul mssql` as typed: the server, and which verb.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use pagehaul_engine::error::{Error, ErrorKind, Result};
use pagehaul_engine::source::mssql::address::{Authorities, Encryption, Password, ServerAddress};

use super::mssql_backup::MssqlBackupArgs;
use super::mssql_restore::MssqlRestoreArgs;
use super::mssql_tune::{MssqlImportArgs, MssqlScriptArgs, MssqlTuneArgs};
use super::tune::parse_time;

/// The verbs that drive SQL Server.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum MssqlVerb {
    /// Have the server back a database up, by its own BACKUP
    #[command(after_help = BACKUP_HELP)]
    Backup(Box<MssqlBackupArgs>),
    /// Have the server restore a database, or look at a backup, by its own RESTORE
    #[command(after_help = RESTORE_HELP)]
    Restore(Box<MssqlRestoreArgs>),
    /// Find the best settings of BACKUP and RESTORE by measuring them on the server
    #[command(after_help = TUNE_HELP)]
    Tune(Box<MssqlTuneArgs>),
    /// Print the whole T-SQL of such a measurement, to read it or to run it by hand
    #[command(after_help = SCRIPT_HELP)]
    Script(Box<MssqlScriptArgs>),
    /// Read the results of a script that was run by hand
    #[command(after_help = IMPORT_HELP)]
    Import(Box<MssqlImportArgs>),
}

/// For `--help` of the group.
pub(crate) const MSSQL_HELP: &str = "\
Built to Microsoft's documentation and tried with a scripted server; it has not been run against SQL Server yet. Read what \
--dry-run prints before you rely on it.

Examples:
  pagehaul mssql backup --server db1 --user backup --password-file ~/.mssql --database shop --to /var/opt/mssql/backup/shop.bak
  pagehaul mssql tune --server db1 --user sa --password-file ~/.mssql --database shop --to /var/opt/mssql/backup --report tune.html";

const BACKUP_HELP: &str = "\
Paths are the server's. Full and log backups are COPY_ONLY unless --in-chain says that the server's own chain is meant; \
every page is checked on the way unless --no-checksum is given.

Examples:
  Four files, packed as the server does best since 2025; the text first, then the deed:
    pagehaul mssql backup --server db1 --user backup --database shop --to /b/1.bak --to /b/2.bak --to /b/3.bak --to /b/4.bak --compression zstd:low --buffer-count 50 --max-transfer-size 4MiB --dry-run
    pagehaul mssql backup --server db1 --user backup --database shop --to /b/1.bak --to /b/2.bak --to /b/3.bak --to /b/4.bak --compression zstd:low --buffer-count 50 --max-transfer-size 4MiB
  The log, as a part of the server's chain:
    pagehaul mssql backup --server db1 --user backup --database shop --type log --in-chain --to /b/shop-1200.trn
  To S3 (2022 and later; the server needs a credential for it):
    pagehaul mssql backup --server db1 --user backup --database shop --to s3://minio:9000/backup/shop.bak --compression ms_xpress
  A snapshot of the storage, taken by a program of yours while writes stand still (2022 and later):
    pagehaul mssql backup --server db1 --user backup --database shop --to /b/shop.bkm --snapshot-command /usr/local/bin/snap-shop --freeze-limit 10s";

const RESTORE_HELP: &str = "\
Nothing that is there is overwritten unless --replace says so. --data-to moves every file of the database there under its \
new name.

Examples:
  Beside the original:
    pagehaul mssql restore --server db1 --user sa --database shop_copy --from /b/1.bak --from /b/2.bak --data-to /var/opt/mssql/data
  What is in a backup, and is it whole:
    pagehaul mssql restore --server db1 --user sa --look header --from /b/1.bak --from /b/2.bak
    pagehaul mssql restore --server db1 --user sa --look verify --from /b/1.bak --from /b/2.bak
  To a point in time:
    pagehaul mssql restore --server db1 --user sa --database shop --from /b/full.bak --recovery norecovery --replace
    pagehaul mssql restore --server db1 --user sa --database shop --type log --from /b/shop-1200.trn --stop-at 2026-11-22T11:58:00";

const TUNE_HELP: &str = "\
Backups are COPY_ONLY and carry a description of their own; restores go to a scratch database, which is dropped, and the \
backup files are removed. Needs room for one backup and one restored copy. A run that was interrupted goes on where it \
ended when the same command is given again. `pagehaul tune --source mssql` is the same command.

Examples:
  pagehaul mssql tune --server db1 --user sa --database shop --to /var/opt/mssql/backup --report tune.html
  pagehaul mssql tune --server db1 --user sa --database shop --to /b1 --to /b2 --rto 30m --max-cpu 50% --budget 6h
  pagehaul mssql tune --server db1 --user sa --database shop --to /b --compression none,zstd:low --files 1,4 --grid full --dry-run";

const SCRIPT_HELP: &str = "\
Nobody is asked but for facts. Where even that must not be: --questions prints the batch that a DBA runs, and --facts reads \
what it printed.

Examples:
  pagehaul mssql script --server db1 --user sa --database shop --to /b --grid full > run.sql
  pagehaul mssql script --database shop --to /b --questions > facts.sql
  sqlcmd -x -S db1 -i facts.sql -o facts.txt
  pagehaul mssql script --database shop --to /b --facts facts.txt --grid full > run.sql
  sqlcmd -x -S db1 -i run.sql -o results.txt
  pagehaul mssql import results.txt --database shop --report tune.html";

const IMPORT_HELP: &str = "\
Example:
  pagehaul mssql import results.txt --database shop --objective backup --report tune.html";

impl MssqlVerb {
    /// Whether a JSON document is asked for.
    pub(crate) fn wants_json(&self) -> bool {
        match self {
            MssqlVerb::Backup(args) => args.json,
            MssqlVerb::Restore(args) => args.json,
            MssqlVerb::Tune(args) => args.json,
            MssqlVerb::Script(_) => false,
            MssqlVerb::Import(args) => args.json,
        }
    }
}

/// `tune --source mssql ...` is `mssql tune ...`: the words as they are meant.
pub(crate) fn as_meant(arguments: &[std::ffi::OsString]) -> Vec<std::ffi::OsString> {
    let mut words = arguments.to_vec();
    let Some(tune) = words.iter().position(|word| word == "tune") else { return words };
    let flag = words[tune..].iter().position(|word| word == "--source" || word == "--source=mssql").map(|at| tune + at);
    let Some(flag) = flag else { return words };
    if words[flag] == "--source=mssql" {
        words.remove(flag);
    } else if words.get(flag + 1).is_some_and(|kind| kind == "mssql") {
        words.drain(flag..=flag + 1);
    } else {
        return words;
    }
    words.insert(tune, "mssql".into());
    words
}

/// How the server is reached.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerArgs {
    /// Host of the server, and port if it is not 1433: db1, db1:1500
    #[arg(long, value_name = "HOST", help_heading = "Server")]
    pub(crate) server: Option<String>,

    /// Log-in of SQL Server; its password comes from --password-file or PAGEHAUL_MSSQL_PASSWORD
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) user: Option<String>,

    /// File with the password, which only you can read
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) password_file: Option<PathBuf>,

    /// What is encrypted: strict (TDS 8), mandatory, optional (the log-in) or plain (nothing)
    #[arg(long, value_name = "MODE", default_value = "mandatory", help_heading = "Server")]
    pub(crate) encrypt: String,

    /// File of PEM with the authority of the server's certificate, or with that itself [default: the system's authorities]
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub(crate) ca_file: Option<PathBuf>,

    /// Name that the certificate is for, if it is not the host's
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub(crate) host_in_certificate: Option<String>,

    /// Believe any certificate; who sits in between can then read and change everything
    #[arg(long, conflicts_with = "ca_file", help_heading = "Server")]
    pub(crate) trust_server_certificate: bool,

    /// Time to connect and log in
    #[arg(long, value_name = "TIME", default_value = "15s", help_heading = "Server")]
    pub(crate) connect_timeout: String,
}

impl ServerArgs {
    /// The server.
    ///
    /// # Errors
    /// `Usage` for what is missing or wrong, `Configuration` for the password.
    pub(crate) fn address(&self) -> Result<ServerAddress> {
        let missing = |flag: &str| {
            Error::new(ErrorKind::Usage, "reach SQL Server", format!("{flag} is missing"))
                .hint("name the server with --server HOST and the log-in with --user NAME")
        };
        let server = self.server.as_deref().ok_or_else(|| missing("--server"))?;
        let user = self.user.as_deref().ok_or_else(|| missing("--user"))?;
        let timeout: Duration = parse_time("--connect-timeout", &self.connect_timeout)?;
        let encryption: Encryption = self.encrypt.parse()?;
        let address = ServerAddress::parse(server, user, Password::find(self.password_file.as_deref())?)?;
        Ok(ServerAddress {
            encryption,
            authorities: match &self.ca_file {
                Some(path) => Authorities::File(path.clone()),
                None if self.trust_server_certificate => Authorities::Anyone,
                None => Authorities::System,
            },
            host_in_certificate: self.host_in_certificate.clone(),
            connect_timeout: timeout,
            ..address
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tune_of_the_source_mssql_is_mssql_tune() {
        let meant = |text: &str| {
            let words: Vec<std::ffi::OsString> = text.split(' ').map(Into::into).collect();
            let meant = as_meant(&words);
            meant.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(meant("pagehaul -q tune --source mssql --to /b"), "pagehaul -q mssql tune --to /b");
        assert_eq!(meant("pagehaul tune --to /b --source=mssql"), "pagehaul mssql tune --to /b");
        for same in ["pagehaul tune main --repo /b", "pagehaul pin x --source mssql", "pagehaul tune --source other"] {
            assert_eq!(meant(same), same);
        }
    }
}
