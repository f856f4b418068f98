//! `cargo xtask ci`: everything a change must pass, cheapest first, stopping at the first failure.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// One thing a change must pass.
enum Step {
    /// A cargo command, by its arguments.
    Cargo(&'static [&'static str]),
    /// `cargo xtask tidy`, run in this process.
    Tidy,
}

/// The tests come last, so that their result lines end the output.
const STEPS: &[Step] = &[
    Step::Cargo(&["fmt", "--all", "--check"]),
    Step::Cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    Step::Tidy,
    Step::Cargo(&["test", "--locked", "--workspace"]),
];

/// Runs the steps in order. Returns the first failing step's exit code.
pub(crate) fn run(root: &Path) -> ExitCode {
    for (index, step) in STEPS.iter().enumerate() {
        println!("== {}", step.title());
        let begin = Instant::now();
        let code = step.run(root);
        let elapsed_s = begin.elapsed().as_secs_f64();
        if code != 0 {
            println!("== {} FAILED after {elapsed_s:.1} s", step.title());
            return ExitCode::from(code);
        }
        // Nothing after the last step: cargo test's own result lines close the output.
        if index + 1 < STEPS.len() {
            println!("== passed in {elapsed_s:.1} s");
        }
    }
    ExitCode::SUCCESS
}

impl Step {
    fn title(&self) -> String {
        match self {
            Step::Cargo(args) => format!("cargo {}", args.join(" ")),
            Step::Tidy => "cargo xtask tidy".to_owned(),
        }
    }

    /// Runs the step in the workspace's directory; returns its exit code, 0 for passed.
    fn run(&self, root: &Path) -> u8 {
        match self {
            Step::Cargo(args) => cargo(args, root),
            Step::Tidy => u8::from(!tidy_passes(root)),
        }
    }
}

fn tidy_passes(root: &Path) -> bool {
    crate::tidy::run(root) == ExitCode::SUCCESS
}

/// How many tests run at once, for libtest.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Half as many again as there are cores: tests wait for servers and disks as long as they compute.
fn test_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cores + cores.div_ceil(2)
}

/// The exit code of `cargo ARGS`; 1 where there is none (killed by a signal, or not started at all).
fn cargo(args: &[&str], root: &Path) -> u8 {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let threads = std::env::var_os(TEST_THREADS).unwrap_or_else(|| test_threads().to_string().into());
    match Command::new(program).args(args).current_dir(root).env(TEST_THREADS, threads).status() {
        Ok(status) if status.success() => 0,
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
        Err(error) => {
            eprintln!("unable to run cargo: {error}");
            1
        }
    }
}
