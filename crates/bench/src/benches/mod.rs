//! The benches: which contestants meet, in which settings, and what is compared.

pub(crate) mod auto;
pub(crate) mod bak;
pub(crate) mod engine;
pub(crate) mod files;
pub(crate) mod frames;
pub(crate) mod incremental;
pub(crate) mod memory;
pub(crate) mod page;
mod page_whole;
pub(crate) mod peers;
pub(crate) mod tune;
pub(crate) mod wal;
pub(crate) mod xpress;

use std::path::PathBuf;

use pagehaul_engine::error::{Error, Result};
use pagehaul_engine::source::postgres::pg_install::PgInstall;

use crate::cluster::remove_tree;
use crate::incremental_tools::backrest_program;
use crate::options::BenchOptions;
use crate::readme::{self, About, without_places};
use crate::results::Results;
use crate::setup::work_directory;
use crate::targets::Targets;
use crate::{machine, pagehaul};

/// Runs a bench and writes what it gives; false if something in it did not work.
///
/// # Errors
/// What keeps the whole bench from running.
pub(crate) fn run(
    name: &'static str,
    options: &BenchOptions,
    bench: impl FnOnce(&BenchOptions, &mut Results) -> Result<String>,
) -> Result<bool> {
    let targets = Targets::new(&options.targets)?;
    let date = jiff::Zoned::now().strftime("%Y-%m-%d").to_string();
    let out = options.out.clone().unwrap_or_else(|| PathBuf::from("bench/runs").join(format!("{date}-{name}")));
    let mut results = Results::begin(name, &out)?;
    // What was measured until something broke is written all the same.
    let (data, broken) = match bench(options, &mut results) {
        Ok(data) => (data, None),
        Err(error) => (String::new(), Some(error)),
    };
    if let Some(error) = &broken {
        results.failures.push(format!("the bench broke off: {}", error.message()));
    }
    let work = work_directory(options);
    let pg_bin = PgInstall::find(options.pg_bin.as_deref())
        .map(|install| install.bin_directory().to_owned())
        .unwrap_or_default();
    let backrest = if name == "incremental" { backrest_program() } else { "pgbackrest".to_owned() };
    let words: Vec<String> = std::env::args().skip(2).map(|word| without_places(&word)).collect();
    let about = About {
        bench: name,
        date,
        command: format!("cargo xtask bench {name} {}", words.join(" ")),
        machine: machine::describe(&work),
        versions: machine::versions(&options.pagehaul, &pg_bin, &backrest),
        data,
        targets: &targets,
    };
    readme::write(&out, &about, &results)?;
    // What is left of the last contestant is of no use to anybody.
    remove_tree(&work)?;
    println!("written: {}", out.display());
    match broken {
        Some(error) => Err(error),
        None => Ok(results.failures.is_empty()),
    }
}

/// Flags that put pagehaul's encoders on every core.
fn on_all_cores(cores: u16, compression: &str) -> Vec<String> {
    pagehaul::flags(&format!("--compression {compression} --encoders {cores}"))
}

/// The error of a bench in which nothing was left to run.
fn nothing_to_run() -> Error {
    Error::new(pagehaul_engine::error::ErrorKind::Usage, "run the bench", "--only leaves nothing to run")
}
