//! A pipe of a limited speed: what stands for a slow device with programs that know none.

use std::fs::File;
use std::io::{Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use pagehaul_engine::error::{Error, ErrorKind, Result};

/// How much moves at once: at 200 MB/s 1.3 ms.
const PIECE_BYTES: usize = 256 << 10;

/// Options of `limited`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LimitedOptions {
    /// Bytes a second at most
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Write standard input to this file and sync it
    #[arg(long, value_name = "FILE", conflicts_with = "from", required_unless_present = "from")]
    to: Option<PathBuf>,
    /// Write this file to standard output
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

/// Copies at no more than the rate.
///
/// # Errors
/// `Target` if reading or writing fails.
pub(crate) fn run(options: &LimitedOptions) -> Result<()> {
    let copied = match (&options.to, &options.from) {
        (Some(path), _) => File::create(path).and_then(|mut file| {
            copy(&mut stdin().lock(), &mut file, options.rate)?;
            file.sync_all()
        }),
        (None, Some(path)) => File::open(path).and_then(|mut file| copy(&mut file, &mut stdout().lock(), options.rate)),
        (None, None) => Ok(()),
    };
    copied.map_err(|cause| Error::new(ErrorKind::Target, "copy at a limited speed", cause))
}

fn copy(from: &mut dyn Read, to: &mut dyn Write, rate: u64) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut due = Instant::now();
    loop {
        let length = from.read(&mut piece)?;
        if length == 0 {
            return to.flush();
        }
        // A device is no faster after a pause: time in which nothing came is no credit.
        due = due.max(Instant::now()) + Duration::from_secs_f64(length as f64 / rate as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        to.write_all(&piece[..length])?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_its_time_and_changes_nothing() {
        let (content, started) = (vec![7; 1 << 20], Instant::now());
        let mut copied = Vec::new();
        copy(&mut content.as_slice(), &mut copied, 10 << 20).unwrap();
        assert!(copied == content);
        assert!(started.elapsed() >= Duration::from_millis(95), "{:?}", started.elapsed());
    }
}
