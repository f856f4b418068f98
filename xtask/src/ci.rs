//! `cargo xtask ci`: everything a change must pass. Format and tidy come first; lints run beside the tests, which leave
//! two processors idle for a quarter of their time.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FORMAT: &[&str] = &["fmt", "--all", "--check"];
const BUILD: &[&str] = &["test", "--locked", "--workspace", "--no-run"];
const TESTS: &[&str] = &["test", "--locked", "--workspace"];
const LINTS: &[&str] = &["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"];

/// Runs everything. Returns the first failing step's exit code.
pub(crate) fn run(root: &Path) -> ExitCode {
    let steps: [(String, &dyn Fn() -> u8); 3] = [
        (title(FORMAT), &|| cargo(FORMAT, root)),
        ("cargo xtask tidy".to_owned(), &|| u8::from(crate::tidy::run(root) != ExitCode::SUCCESS)),
        (title(BUILD), &|| cargo(BUILD, root)),
    ];
    for (title, step) in steps {
        println!("== {title}");
        let begin = Instant::now();
        let code = step();
        println!("== {}", outcome(code == 0, begin));
        if code != 0 {
            return ExitCode::from(code);
        }
    }
    println!("== {}, {} beside it", title(TESTS), title(LINTS));
    ExitCode::from(tests_and_lints(root))
}

fn title(args: &[&str]) -> String {
    format!("cargo {}", args.join(" "))
}

fn outcome(is_passed: bool, begin: Instant) -> String {
    let elapsed_s = begin.elapsed().as_secs_f64();
    if is_passed { format!("passed in {elapsed_s:.1} s") } else { format!("FAILED after {elapsed_s:.1} s") }
}

/// How many tests run at once, for libtest.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Half as many again as there are cores: tests wait for servers and disks as long as they compute.
fn test_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cores + cores.div_ceil(2)
}

fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The exit code of `cargo ARGS`.
fn cargo(args: &[&str], root: &Path) -> u8 {
    code_of(Command::new(program()).args(args).current_dir(root).status())
}

/// 0 for passed; 1 where there is no code (killed by a signal, or not started at all).
fn code_of(status: std::io::Result<std::process::ExitStatus>) -> u8 {
    match status {
        Ok(status) if status.success() => 0,
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1),
        Err(error) => {
            eprintln!("unable to run cargo: {error}");
            1
        }
    }
}

/// Runs the tests that are built, and the lints beside them as soon as cargo has let go of the directory it builds in.
fn tests_and_lints(root: &Path) -> u8 {
    let threads = std::env::var_os(TEST_THREADS).unwrap_or_else(|| test_threads().to_string().into());
    // Read here, so cargo no longer sees by itself whether somebody looks.
    let color = if std::io::stderr().is_terminal() { "always" } else { "never" };
    let mut command = Command::new(program());
    command.args(TESTS).current_dir(root).env(TEST_THREADS, threads).env("CARGO_TERM_COLOR", color);
    let mut tests = match command.stderr(Stdio::piped()).spawn() {
        Ok(tests) => tests,
        Err(error) => return code_of(Err(error)),
    };
    let heard = listen(&mut tests, root);
    let code = code_of(tests.wait());
    let lints = heard.recv_timeout(LAST_WORDS).ok().map(JoinHandle::join);
    // What cargo says at its end; not for ever, should a server that a test left behind hold on to it.
    heard.recv_timeout(LAST_WORDS).ok();
    match lints {
        Some(Ok(lint_code)) if code == 0 => lint_code,
        // Where no test was run cargo has said why not.
        _ => code,
    }
}

const LAST_WORDS: Duration = Duration::from_secs(5);

/// Passes on what cargo says of the tests, to its end. The lints come through the channel once they run.
fn listen(tests: &mut Child, root: &Path) -> Receiver<JoinHandle<u8>> {
    let (sender, heard) = channel();
    let (stderr, root) = (tests.stderr.take(), root.to_path_buf());
    std::thread::spawn(move || {
        let mut lints = Some(move || lint(&root));
        let lines = stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).split(b'\n')).map_while(Result::ok);
        for mut line in lines {
            line.push(b'\n');
            // Whether it can be written or not, the exit code tells.
            std::io::stderr().write_all(&line).ok();
            if line.windows(RUNNING.len()).any(|word| word == RUNNING)
                && let Some(lint) = lints.take()
            {
                sender.send(std::thread::spawn(lint)).ok();
            }
        }
    });
    heard
}

/// What cargo says when the first test program starts: from here on it builds nothing.
const RUNNING: &[u8] = b"Running";

/// The exit code of the lints; what they say is shown in one piece, and only if they fail.
fn lint(root: &Path) -> u8 {
    let begin = Instant::now();
    // The tests have time limits, lints have none.
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program()).args(LINTS).current_dir(root);
    let (code, said) = match command.output() {
        Ok(Output { status, stderr, .. }) => (code_of(Ok(status)), stderr),
        Err(error) => (code_of(Err(error)), Vec::new()),
    };
    let said = if code == 0 { String::new() } else { String::from_utf8_lossy(&said).into_owned() };
    eprintln!("{said}== {} {}", title(LINTS), outcome(code == 0, begin));
    code
}
