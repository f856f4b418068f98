//! The page codec against zstd and lz4 on the files of ten databases: size and speed of one thread.

use std::fmt::Write as _;

use pagehaul_engine::error::Result;

use crate::benches;
use crate::page::frames::{self, Groups};
use crate::page::list::FilesOfDatabase;
use crate::page::measure::{Measured, Sum, measure};
use crate::page::options::PageOptions;
use crate::page::tables::{self, SIZE_BASE, SPEED_BASES};
use crate::page::{databases, goals, single};
use crate::results::{Results, Run};
use crate::setup::unwritable;
use pagehaul_tune::contestants::stopwatch::Cost;

/// What `--only` says to make the databases and measure nothing.
const MAKE: &str = "make";

/// What holds for codecs alone; bench/page/README.md says more.
const METHOD: &str = "\
One thread, CPU time of that thread, files in memory, cut into frames as a backup cuts them. Of 32 frames after another \
every codec in turns encodes all, then decodes all of them, and every byte is compared; so it goes through the database once a \
round, and of each frame the best round counts. What does not get smaller is stored as it is, a frame of zeros is not stored at \
all. bench/page/README.md says what the databases are and where they come from. Of the columns below those of whole commands (server, memory, durability) do not apply: \
contestants are the databases, settings the codecs.
";

/// One database, measured.
struct Database {
    name: String,
    measured: Measured,
    kinds: Groups,
}

/// Makes the databases, measures them, or both.
///
/// # Errors
/// What keeps the bench from running.
pub(crate) fn asked(options: &PageOptions) -> Result<bool> {
    if options.bench.only.iter().any(|only| only == MAKE) {
        let names = databases::wanted(options)?;
        drop(databases::make(options, &names)?);
        if options.whole {
            names.iter().try_for_each(|name| single::cluster(options, name).map(drop))?;
        }
        return Ok(true);
    }
    let run = if options.whole { super::page_whole::run } else { alone };
    benches::run("page", &options.bench, |_, results| run(options, results))
}

fn alone(options: &PageOptions, results: &mut Results) -> Result<String> {
    let lists = databases::lists(options, &databases::wanted(options)?)?;
    results.method = Some(METHOD.to_owned());
    let (mut done, mut data) = (Vec::new(), Vec::new());
    for list in &lists {
        let frames = frames::load(list, options.measuring.frame_size, options.measuring.sample)?;
        let measured = measure(list, &frames, &options.measuring, |codec, round, sum| {
            add(&list.database, codec, round, sum, results)
        })?;
        data.push(data_text(list, &measured));
        let text = tables::database(list, &frames, &measured);
        print!("{text}");
        results
            .sections
            .push((list.database.clone(), text + &tables::groups("kind", &measured, &frames::by_kind(list, &frames))));
        done.push(Database { name: list.database.clone(), measured, kinds: frames::by_kind(list, &frames) });
        // What is known so far is there even if something breaks later.
        write_kinds(&done, results)?;
    }
    let text = means(&done);
    print!("{text}");
    results.sections.insert(0, ("All databases: geometric means".to_owned(), text));
    let of: Vec<_> = done.iter().map(|database| (database.name.as_str(), &database.measured)).collect();
    let text = goals::table(&of);
    print!("{text}");
    results.sections.insert(0, ("Goals".to_owned(), text));
    Ok(data.join("; "))
}

fn data_text(list: &FilesOfDatabase, measured: &Measured) -> String {
    let measured_mb = measured.raw_bytes.iter().sum::<u64>() as f64 / 1e6;
    format!("{}: {measured_mb:.1} MB of {} files", list.database, list.files.len())
}

/// Two rows of raw.csv: time is CPU time of the one thread.
fn add(database: &str, codec: &str, round: u32, sum: &Sum, results: &mut Results) -> Result<()> {
    for (step, seconds) in [("encode", sum.encode_s), ("decode", sum.decode_s)] {
        results.add(Run {
            step,
            contestant: database.to_owned(),
            setting: codec.to_owned(),
            repetition: round,
            cost: Cost { wall_s: seconds, cpu_user_s: seconds, ..Cost::default() },
            data_path_s: seconds,
            source_bytes: sum.raw_bytes,
            stored_bytes: sum.stored_bytes,
            ..Run::default()
        })?;
    }
    Ok(())
}

/// kinds.csv: the best of all rounds, by database, what the pages hold, and codec; `all` is the whole database.
fn write_kinds(done: &[Database], results: &Results) -> Result<()> {
    let mut text = "database,kind,codec,raw_bytes,stored_bytes,encode_cpu_s,decode_cpu_s\n".to_owned();
    for Database { name, measured, kinds } in done {
        let all = ("all".to_owned(), (0..measured.raw_bytes.len()).collect::<Vec<usize>>());
        for (kind, frames) in std::iter::once((&all.0, &all.1)).chain(kinds) {
            for codec in &measured.codecs {
                let sum = measured.sum(codec, codec, frames.iter().copied());
                let row = writeln!(
                    text,
                    "{name},{kind},{},{},{},{:.4},{:.4}",
                    codec.name, sum.raw_bytes, sum.stored_bytes, sum.encode_s, sum.decode_s
                );
                debug_assert!(row.is_ok(), "a String takes everything");
            }
        }
    }
    let path = results.directory.join("kinds.csv");
    std::fs::write(&path, text).map_err(|cause| unwritable(&path, cause))
}

/// Every database counts alike, whatever its size.
fn means(done: &[Database]) -> String {
    let mut text = format!(
        "Sizes relative to {SIZE_BASE} of the same frames (above 1: smaller), CPU speeds of one thread relative to {} \
         (above 1: faster); kinds.csv has them by what the pages hold. Codecs that take minutes saw about 24 MiB of each \
         database, spread over all, once.\n\n| codec | smaller | {} |\n|---|---|{}\n",
        SPEED_BASES.join(" and "),
        SPEED_BASES.map(|base| format!("encode / {base} | decode / {base}")).join(" | "),
        "---|".repeat(2 * SPEED_BASES.len())
    );
    let Some(first) = done.first() else { return text };
    for name in first.measured.codecs.iter().map(|codec| &codec.name) {
        let of = |figure: &dyn Fn(&Measured) -> Option<f64>| {
            tables::geometric_mean(done.iter().map(|database| figure(&database.measured)))
        };
        let gain = of(&|measured| {
            let all: Vec<usize> = (0..measured.raw_bytes.len()).collect();
            tables::gain(measured, measured.codec(name)?, SIZE_BASE, &all)
        });
        text += &format!("| {name} | {} |", tables::cell(gain));
        for base in SPEED_BASES {
            let times: [fn(&Sum) -> f64; 2] = [|sum| sum.encode_s, |sum| sum.decode_s];
            for time in times {
                let speed = of(&|measured| tables::speedup(measured, measured.codec(name)?, base, time));
                text += &format!(" {} |", tables::cell(speed));
            }
        }
        text.push('\n');
    }
    text + "\n"
}
