//! What goes wrong in the middle: signals, kills, full targets, servers that restart, tools that fail, a slow server.

use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::source::postgres::scratch_server::StopMode;
use pagehaul_tune::contestants::{BaseBackup, Contestant};
use pagehaul_tune::rows::role;
use pagehaul_tune::session::{TuneRequest, tune};

use super::desk::{Desk, Watcher};

#[test]
fn an_interrupted_run_goes_on_where_it_ended() {
    let desk = Desk::new(5_000);
    let stopping = Watcher { stop_after: Some(2), ..Watcher::default() };
    let error = tune(&desk.request(), &stopping).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    desk.assert_no_leftovers();
    let going_on = Watcher::default();
    let done = tune(&desk.request(), &going_on).unwrap();
    assert!(going_on.notes().contains("interrupted after 2 trials"), "{}", going_on.notes());
    assert_eq!(*going_on.stages.lock().unwrap(), ["trials: real backups and restores, in turns"], "facts were kept");
    let baselines = done.trials.iter().filter(|trial| trial.role == role::BASELINE).count();
    assert_eq!(baselines, 2, "the first round's was not run again");
    // A run that ended is not gone on with.
    let again = Watcher::default();
    tune(&TuneRequest { repeat: 1, ..desk.request() }, &again).unwrap();
    assert!(!again.notes().contains("interrupted"), "{}", again.notes());
}

#[test]
fn a_server_that_restarts_in_a_trial_costs_one_repetition() {
    let mut desk = Desk::new(5_000);
    let mut request = desk.request();
    request.space.compressions.truncate(1);
    let settings: Vec<(&str, &str)> = pagehaul_testkit::cluster::QUICK.to_vec();
    let server = Mutex::new(&mut desk.cluster.server);
    let watcher = Watcher {
        at_trial: Some((
            1,
            Box::new(|| {
                let mut server = server.lock().unwrap();
                server.stop(StopMode::Immediate).unwrap();
                server.start(&settings).unwrap();
            }),
        )),
        ..Watcher::default()
    };
    let done = tune(&request, &watcher).unwrap();
    let notes = watcher.notes();
    drop(watcher);
    assert!(notes.contains("failed and was run again"), "{notes}");
    assert!(done.trials.iter().all(|trial| trial.failed.is_none()), "{:?}", done.trials);
    desk.assert_no_leftovers();
}

#[test]
fn a_tool_that_fails_is_a_row_and_the_rest_goes_on() {
    let desk = Desk::new(2_000);
    let broken = Contestant::BaseBackup(BaseBackup { is_plain: false, compress: "server-nonsense:1".to_owned() });
    let done = tune(&TuneRequest { contestants: vec![broken], ..desk.request() }, &Watcher::default()).unwrap();
    let row = done.rows.iter().find(|row| row.role == role::CONTESTANT).unwrap();
    assert_eq!(row.rank, 0);
    assert!(row.failed.as_ref().unwrap().contains("nonsense"), "{:?}", row.failed);
    assert!(done.recommendation.is_some());
}

#[test]
fn a_full_target_refuses_the_trial_and_says_what_is_needed() {
    let desk = Desk::new(2_000);
    std::fs::create_dir(desk.repo()).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(desk.repo()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no file system can be mounted here: a full target is not tested");
        return;
    }
    let result = tune(&desk.request(), &Watcher::default());
    let leftovers = std::fs::read_dir(desk.repo()).unwrap().count();
    assert!(Command::new("umount").arg(desk.repo()).status().unwrap().success());
    let error = result.unwrap_err();
    assert!(error.message().contains("free"), "{error}");
    assert!(error.hint_text().is_some(), "{error}");
    assert_eq!(leftovers, 0);
}

#[test]
fn a_server_that_slows_down_stops_the_trials() {
    let desk = Desk::new(5_000);
    let request = TuneRequest { max_impact: Some(Duration::from_nanos(1)), ..desk.request() };
    let watcher = Watcher::default();
    // Every answer takes longer than a nanosecond.
    let done = tune(&request, &watcher);
    desk.assert_no_leftovers();
    let text = match done {
        Ok(done) => done.notes.join("\n"),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("--max-impact"), "{text}");
}
