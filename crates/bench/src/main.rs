//! `pagehaul-bench NAME`: measured runs, each paired with a baseline or a peer in the same run.
//!
//! A bench lines up contestants, runs them in turns (A B C A B C), writes every single run into `raw.csv` as it ends,
//! and at last a README.md with medians, ratios and the limit that pagehaul itself named. One module a concern:
//!
//! - `benches/`: which contestants meet, in which settings, and what is compared;
//! - `pagehaul`: how it is called; the other tools, and the stopwatch, are in `pagehaul_tune::contestants`;
//! - `wal_source`, `wal_tools`, `archiver`: WAL, who archives it, and PostgreSQL's part in that;
//! - `incremental_tools`, `changed_pages`: who makes incremental backups, and the pages that changed;
//! - `bak_chunks`: the chunks of a SQL Server backup file, decoded and nothing else;
//! - `libwim`: the reference encoder of XPRESS;
//! - `page`: databases of many kinds, their files cut into frames, and codecs run over them;
//! - `worker`, `workload`: the baselines, measured in a process of their own;
//! - `cluster`, `load`: the PostgreSQL cluster that is backed up;
//! - `results`, `readme`, `machine`: what is written down.

mod archiver;
mod bak_chunks;
mod benches;
mod changed_pages;
mod cluster;
mod incremental_tools;
mod libwim;
mod load;
mod machine;
mod options;
mod page;
mod pagehaul;
mod readme;
mod results;
mod setup;
mod targets;
mod wal_source;
mod wal_tools;
mod worker;
mod workload;

use std::process::ExitCode;

use clap::Parser;

use options::{Asked, Options};

fn main() -> ExitCode {
    let outcome = match Options::parse().asked {
        Asked::Archiver(options) => archiver::run(&options).map(|()| true),
        Asked::Limited(options) => page::limited::run(&options).map(|()| true),
        Asked::Worker(work) => worker::run(&work).map(|()| true),
        Asked::Auto(options) => benches::run("auto", &options, benches::auto::run),
        Asked::Engine(options) => benches::run("engine", &options, benches::engine::run),
        Asked::Frames(options) => benches::run("frames", &options, benches::frames::run),
        Asked::Peers(options) => benches::run("peers", &options, benches::peers::run),
        Asked::Files(options) => benches::run("files", &options, benches::files::run),
        Asked::Tune(options) => benches::run("tune", &options, benches::tune::run),
        Asked::Memory(options) => benches::run("memory", &options, benches::memory::run),
        Asked::Wal(options) => benches::run("wal", &options, benches::wal::run),
        Asked::Xpress(options) => benches::run("xpress", &options, benches::xpress::run),
        Asked::Bak(options) => benches::run("bak", &options, benches::bak::run),
        Asked::Page(options) => benches::page::asked(&options),
        Asked::PageSample(options) => page::sample(&options).map(|()| true),
        Asked::Incremental(options) => benches::run("incremental", &options, benches::incremental::run),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
