//! Who holds something and stands still, or dies: a lease is no clock's matter, and what the server gave goes with its
//! session.

use std::time::{Duration, Instant};

use super::bench::Place;
use super::signals::{Started, slow, slow_at};

#[test]
fn f42_a_backup_that_stands_still_keeps_its_set_and_ends_well_when_it_goes_on() {
    let place = Place::new("f42_stopped");
    let repo = place.repo().display().to_string();
    place.backup_label(&place.backup_arguments());
    let mut stopped =
        Started::new(&place, &[slow_at(place.backup_arguments(), "4MB/s"), vec!["--json".to_owned()]].concat());
    stopped.wait_for_phase("read, encode");
    stopped.send("STOP");
    // Whoever comes meanwhile cleans up after the dead, and this one is not dead.
    let second = place.backup_label(&place.backup_arguments());
    let expire = ["expire", "main", "--repo", &repo, "--keep-full", "1", "--confirm"].map(str::to_owned);
    place.run_well(&expire);
    let states: Vec<String> = place.sets().into_iter().map(|(_, state)| state).collect();
    assert!(states.contains(&"running".to_owned()), "{states:?}");
    assert_eq!(place.complete_sets(), std::slice::from_ref(&second));
    stopped.send("CONT");
    let ran = stopped.wait();
    assert_eq!(ran.code, Some(0), "{ran}");
    let label = ran.json()["label"].as_str().unwrap().to_owned();
    for label in [&second, &label] {
        place.assert_sound(label);
    }
    place.assert_restores(&label);
    place.assert_no_leftovers();
}

#[test]
fn f45_the_slot_and_the_session_of_a_killed_backup_go_with_it() {
    let place = Place::new("f45_killed");
    let cluster = &place.bench.cluster;
    let mut killed = Started::new(&place, &slow(place.backup_arguments()));
    killed.wait_for_phase("read, encode");
    let held = "SELECT count(*) FROM pg_stat_activity a LEFT JOIN pg_replication_slots s ON s.active_pid = a.pid \
                WHERE a.usename = 'f45_killed'";
    assert_eq!(cluster.value(held), "2", "the session in backup mode, and that of the slot");
    let slot = cluster
        .value(&format!("SELECT s.slot_name {}", &held["SELECT count(*) ".len()..]).replace("LEFT JOIN", "JOIN"));
    assert!(slot.starts_with("pagehaul_"), "{slot}");
    killed.send("KILL");
    assert_eq!(killed.wait().signal, Some(9));
    let left = format!("SELECT ({held}) + (SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}')");
    let started = Instant::now();
    while cluster.value(&left) != "0" {
        assert!(started.elapsed() < Duration::from_secs(10), "the server still has a session or {slot}");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Backup mode has ended too: before 15 the server itself says so.
    let in_backup = "SELECT to_regprocedure('pg_catalog.pg_is_in_backup()') IS NULL";
    assert!(cluster.value(in_backup) == "t" || cluster.value("SELECT pg_is_in_backup()") == "f");
    let label = place.backup_label(&place.backup_arguments());
    place.assert_no_leftovers();
    place.assert_sound(&label);
}
