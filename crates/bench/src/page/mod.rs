//! The page codec against the others, on the files of real databases and nothing else: one thread, its CPU time, every
//! frame decoded again and compared.
//!
//! - `options`: the two command lines;
//! - `list`: the files of a database, what their pages hold, and how bench/page/files.sql says so;
//! - `frames`: those files cut into frames, as a backup does;
//! - `coder`: the codecs of pagehaul and the page codec, by their names;
//! - `measure`: rounds in turns, and what each frame took;
//! - `tables`: ratios and speeds in words;
//! - `databases`: the cluster with the databases, made once;
//! - `goals`: what the project wants of the codec, and whether it holds;
//! - `single`: a cluster for each database;
//! - `device`, `limited`: a slow device, and a slow pipe.

mod coder;
pub(crate) mod databases;
pub(crate) mod device;
pub(crate) mod frames;
pub(crate) mod goals;
pub(crate) mod limited;
pub(crate) mod list;
pub(crate) mod measure;
pub(crate) mod options;
pub(crate) mod single;
pub(crate) mod tables;

use pagehaul_engine::error::Result;

use options::PageSampleOptions;

/// `pagehaul-bench page-sample`: one database's list, no server, a table on standard output.
///
/// # Errors
/// `Source` if the list or a file cannot be read; `Bug` if a codec did not give the same bytes back.
pub(crate) fn sample(options: &PageSampleOptions) -> Result<()> {
    let list = list::FilesOfDatabase::read(&options.list)?;
    let frames = frames::load(&list, options.measuring.frame_size, options.measuring.sample)?;
    let measured = measure::measure(&list, &frames, &options.measuring, |_, _, _| Ok(()))?;
    print!("{}", tables::database(&list, &frames, &measured));
    if options.kinds {
        print!("{}", tables::groups("kind", &measured, &frames::by_kind(&list, &frames)));
    }
    if options.relations {
        print!("{}", tables::groups("relation", &measured, &frames::by_relation(&list, &frames)));
    }
    Ok(())
}
