//! `cargo xtask ci`: everything a change must pass. Format and tidy come first; the lints run while the tests are built.
//! `ci build` ends there and `ci tests` goes on, so that whoever needs minutes to make a machine ready for the tests can do it beside.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;

const FORMAT: &[&str] = &["fmt", "--all", "--check"];
const BUILD: &[&str] = &["test", "--locked", "--workspace", "--no-run"];
const TESTS: &[&str] = &["test", "--locked", "--workspace"];

/// Steps of [`run`].
type Steps = std::ops::Range<usize>;
/// All of them.
pub(crate) const ALL: Steps = 0..4;
/// Up to the build of the tests.
pub(crate) const TO_BUILD: Steps = 0..3;
/// What is left then.
pub(crate) const FROM_TESTS: Steps = 3..4;

/// Runs `wanted` of all steps until one fails. Returns the exit code of that one.
pub(crate) fn run(root: &Path, wanted: Steps) -> ExitCode {
    let steps: [(String, &dyn Fn() -> u8); 4] = [
        (title(FORMAT), &|| code_of(&mut cargo(FORMAT, root))),
        ("cargo xtask tidy".to_owned(), &|| u8::from(crate::tidy::run(root) != ExitCode::SUCCESS)),
        (format!("{}, with the lints", title(BUILD)), &|| code_of(linting(&mut cargo(BUILD, root)))),
        (title(TESTS), &|| run_tests(root).unwrap_or_else(|error| unable(&error))),
    ];
    for (title, step) in &steps[wanted] {
        println!("== {title}");
        let begin = Instant::now();
        let code = step();
        let elapsed_s = begin.elapsed().as_secs_f64();
        if code != 0 {
            println!("== FAILED after {elapsed_s:.1} s");
            return ExitCode::from(code);
        }
        println!("== passed in {elapsed_s:.1} s");
    }
    ExitCode::SUCCESS
}

fn title(args: &[&str]) -> String {
    format!("cargo {}", args.join(" "))
}

/// The programs that take longest. Were they begun in their turn, they would run alone at the end, for two minutes of mostly waiting.
const LONGEST: &str = "behaviour-*";

/// Runs the tests with two cargos at once, each of which runs the next test program that the other has not taken. One alone leaves the
/// cores idle at the end of each program, and in those that wait for disks and networks. The second begins with the longest; what it has
/// to say comes behind the first. The code of whichever failed.
fn run_tests(root: &Path) -> std::io::Result<u8> {
    let scratch = std::env::temp_dir().join(format!("pagehaul-tests-{}", std::process::id()));
    let (said, claims) = (scratch.join("said"), scratch.join("claims"));
    // What an earlier run of that number left would keep its programs from being run.
    if scratch.exists() {
        std::fs::remove_dir_all(&scratch)?;
    }
    std::fs::create_dir_all(&claims)?;
    let log = File::create(&said)?;
    let second_run = |programs| -> std::io::Result<u8> {
        let mut command = taking_turns(root, &claims, programs);
        Ok(code_of(command.stdout(log.try_clone()?).stderr(log.try_clone()?).stdin(Stdio::null())))
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| match second_run(LONGEST)? {
            0 => second_run("*"),
            code => Ok(code),
        });
        (code_of(&mut taking_turns(root, &claims, "*")), second.join())
    });
    let second = second.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    std::io::copy(&mut File::open(&said)?, &mut std::io::stdout())?;
    std::fs::remove_dir_all(&scratch)?;
    Ok(if first == 0 { second } else { first })
}

/// A run of those test programs with names like `programs` of which there is no directory in `claims` yet when their turn comes.
fn taking_turns(root: &Path, claims: &Path, programs: &str) -> Command {
    let script = format!(
        r#"case "${{1##*/}}" in {programs}) ;; *) echo "(later)"; exit 0 ;; esac
claim="$0/${{1##*/}}"
mkdir "$claim" 2>/dev/null && exec "$@"
[ -d "$claim" ] && echo "(by the other run)""#
    );
    let mut command = cargo(TESTS, root);
    command.arg("--config").arg(format!("target.'cfg(all())'.runner = ['sh', '-c', '''{script}''', {claims:?}]"));
    linting(&mut command).env(TEST_THREADS, test_threads());
    command
}

/// How many tests run at once in one program, for libtest.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// What the caller says, or three for two cores, in each of two runs: tests wait for servers, disks and networks longer than they compute.
fn test_threads() -> OsString {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::env::var_os(TEST_THREADS).unwrap_or_else(|| (cores + cores.div_ceil(2)).to_string().into())
}

fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn cargo(args: &[&str], root: &Path) -> Command {
    let mut command = Command::new(program());
    command.args(args).current_dir(root);
    command
}

/// Lets clippy's driver, which lies beside cargo, compile this workspace's crates, as `cargo clippy -- -D warnings` does, but
/// whole. A run of clippy of its own would read every library and every crate a second time, for four minutes of a core. The
/// driver gives the optimizer plainer code than rustc does, and checks no pointer for null or alignment; so for tests only.
fn linting(command: &mut Command) -> &mut Command {
    let driver = PathBuf::from(program()).with_file_name("clippy-driver");
    // How cargo-clippy hands its driver what stands behind `--` (src/main.rs of rust-clippy).
    let separator = "__CLIPPY_HACKERY__";
    command.env("RUSTC_WORKSPACE_WRAPPER", driver).env("CLIPPY_ARGS", format!("-D{separator}warnings{separator}"))
}

/// 0 for passed; 1 where there is no code (killed by a signal, or not started at all).
fn code_of(command: &mut Command) -> u8 {
    command.status().map_or_else(|error| unable(&error), code_of_status)
}

fn code_of_status(status: ExitStatus) -> u8 {
    if status.success() { 0 } else { status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1) }
}

fn unable(error: &std::io::Error) -> u8 {
    eprintln!("unable to run cargo: {error}");
    1
}
