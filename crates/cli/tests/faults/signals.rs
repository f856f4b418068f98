//! Signals, and readers that go away: a tidy end within seconds, nothing left.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::bench::{Place, Ran};
use super::kill_restore::assert_does_not_start;

/// A command ends this soon after a signal.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// A command under way.
pub(crate) struct Started {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    said: String,
}

impl Started {
    pub(crate) fn new(place: &Place, arguments: &[String]) -> Self {
        Self::with_environment(place, arguments, &[])
    }

    pub(crate) fn with_environment(place: &Place, arguments: &[String], environment: &[(&str, &str)]) -> Self {
        // Tests that run under nohup hand an ignored SIGHUP down, which the program rightly leaves ignored.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_pagehaul")]).args(arguments);
        place.tidy_environment(&mut command);
        let mut child =
            command.envs(environment.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Started { child, stderr, said: String::new() }
    }

    pub(crate) fn wait_for_phase(&mut self, phase: &str) {
        while !self.said.lines().last().is_some_and(|line| line.contains(phase)) {
            let read = self.stderr.read_line(&mut self.said).unwrap();
            assert!(read > 0, "it ended before {phase:?}: {}", self.said);
        }
    }

    pub(crate) fn send(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", signal, &pid]).status().unwrap();
        assert!(status.success());
    }

    /// How it ended, which must be soon.
    fn end(self, why: &str) -> Ran {
        let started = Instant::now();
        let ran = self.wait();
        assert!(started.elapsed() < ENDS_WITHIN, "{why}: it took {:?}: {ran}", started.elapsed());
        ran
    }

    /// How it ended, whenever that is.
    pub(crate) fn wait(mut self) -> Ran {
        self.stderr.read_to_string(&mut self.said).unwrap();
        let mut output = self.child.wait_with_output().unwrap();
        output.stderr = self.said.into_bytes();
        Ran::from(output)
    }
}

pub(crate) fn slow(arguments: Vec<String>) -> Vec<String> {
    // Half a minute for the cluster of the bench.
    slow_at(arguments, "1MB/s")
}

/// Two seconds for what reads a backup of it, which counts the bytes of stripes.
fn slow_read(arguments: Vec<String>) -> Vec<String> {
    slow_at(arguments, "500kB/s")
}

pub(crate) fn slow_at(arguments: Vec<String>, rate: &str) -> Vec<String> {
    [arguments, ["--max-rate", rate].map(str::to_owned).into()].concat()
}

const BACKUP_PHASES: &[&str] = &["begin the backup", "list the files", "read, encode and write"];
const RESTORE_PHASES: &[&str] = &["open set", "prepare the target", "read, decode and write"];

#[test]
fn a_backup_ends_tidily() {
    let place = Place::new("signal_backup");
    let earlier = place.backup_label(&place.striped_backup_arguments());
    let arguments = slow(place.striped_backup_arguments());
    for phase in BACKUP_PHASES {
        for signal in ["TERM", "INT", "HUP"] {
            for delay_ms in [0, 700] {
                let mut started = Started::new(&place, &arguments);
                started.wait_for_phase(phase);
                std::thread::sleep(Duration::from_millis(delay_ms));
                started.send(signal);
                let why = format!("SIG{signal} {delay_ms} ms after {phase:?}");
                let ran = started.end(&why);
                ran.assert_error(130, &["a signal asked to stop", "\nhint: "]);
                assert_eq!(place.complete_sets(), std::slice::from_ref(&earlier), "{why}");
                place.assert_no_leftovers();
                place.assert_server_is_free();
            }
        }
    }
    place.assert_sound(&earlier);
}

#[test]
fn a_restore_ends_tidily() {
    let place = Place::new("signal_restore");
    place.run_well(&place.striped_backup_arguments());
    let target = place.directory.join("target");
    let quick = place.restore_arguments(&target);
    for phase in RESTORE_PHASES {
        for (signal, delay_ms) in [("TERM", 0), ("INT", 0), ("HUP", 300), ("TERM", 900)] {
            let mut started = Started::new(&place, &slow_read(quick.clone()));
            started.wait_for_phase(phase);
            std::thread::sleep(Duration::from_millis(delay_ms));
            started.send(signal);
            let ran = started.end(&format!("SIG{signal} {delay_ms} ms after {phase:?}"));
            ran.assert_error(130, &["a signal asked to stop", "\nhint: "]);
            if target.exists() {
                assert_does_not_start(&place, &target);
            }
        }
    }
    place.run_well(&quick);
    place.assert_whole(&target);
}

#[test]
fn a_verification_ends_at_a_signal() {
    let place = Place::new("signal_verify");
    place.run_well(&place.backup_arguments());
    let repo = place.repo().display().to_string();
    let arguments = slow_read(["verify", "--repo", &repo].map(str::to_owned).into());
    let started = Started::new(&place, &arguments);
    std::thread::sleep(Duration::from_millis(500));
    started.send("INT");
    started.end("SIGINT").assert_error(130, &["a signal asked to stop"]);
}

#[test]
fn a_second_interrupt_ends_at_once() {
    let place = Place::new("signal_twice");
    let earlier = place.backup_label(&place.backup_arguments());
    let mut started = Started::new(&place, &slow(place.backup_arguments()));
    started.wait_for_phase("read, encode and write");
    started.send("INT");
    started.send("INT");
    let ran = started.end("two SIGINT");
    assert_eq!(ran.code, Some(130), "{ran}");
    // Whether or not the first one still got its tidy end, the next backup needs no hands.
    assert_eq!(place.complete_sets(), [earlier]);
    place.assert_server_is_free();
    place.run_well(&place.backup_arguments());
    place.assert_no_leftovers();
}

#[test]
fn an_ignored_hangup_is_ignored() {
    let place = Place::new("signal_nohup");
    let command = [env!("CARGO_BIN_EXE_pagehaul").to_owned()];
    let words = [&command[..], &place.backup_arguments(), &["--max-rate".to_owned(), "20MB/s".to_owned()]].concat();
    let mut nohup = Command::new("nohup");
    nohup.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
    place.tidy_environment(&mut nohup);
    let child = nohup.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    Command::new("kill").args(["-s", "HUP", &child.id().to_string()]).status().unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran}");
}

/// Standard output, standard error or both are closed before the first word.
#[test]
fn readers_that_go_away() {
    let place = Place::new("signal_pipe");
    let target = place.directory.join("target");
    let backup = [place.backup_arguments(), vec!["--json".to_owned()]].concat();
    let restore = [place.restore_arguments(&target), vec!["--json".to_owned()]].concat();
    let mut complete_count = 0;
    for (stdout_gone, stderr_gone) in [(true, false), (false, true), (true, true)] {
        let gone = || {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            Stdio::from(writer)
        };
        let run = |arguments: &[String]| {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut command = place.pagehaul(&arguments);
            command.stdout(if stdout_gone { gone() } else { Stdio::piped() });
            command.stderr(if stderr_gone { gone() } else { Stdio::piped() });
            Ran::from(command.spawn().unwrap().wait_with_output().unwrap())
        };
        let ran = run(&backup);
        assert_eq!(ran.code, Some(0), "backup: {ran}");
        complete_count += 1;
        assert_eq!(place.complete_sets().len(), complete_count);
        place.assert_no_leftovers();
        let ran = run(&restore);
        assert_eq!(ran.code, Some(0), "restore: {ran}");
        place.assert_whole(&target);
        std::fs::remove_dir_all(&target).unwrap();
    }
    // Closed, not only broken: the command's own files must not get the numbers 1 and 2.
    let line = r#"exec "$0" "$@" 1>&- 2>&-"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", line, env!("CARGO_BIN_EXE_pagehaul")]).args(&backup);
    place.tidy_environment(&mut shell);
    let ran = Ran::of(&mut shell);
    assert_eq!(ran.code, Some(0), "{ran}");
    place.assert_no_leftovers();
    for label in place.complete_sets() {
        place.assert_sound(&label);
    }
}
