//! A backup killed at any change it makes: earlier sets stay, nothing unfinished is listed as complete, the server is
//! free, and the next backup needs no hands.

use super::bench::{Place, Random, sample_size};
use super::signals::Started;
use super::strace::{self, MUTATING};

/// After so many kills a set is read back and restored as well.
const DEEP_EVERY: usize = 8;

#[test]
fn killed_with_an_earlier_set_beside_it() {
    sweep("kill_beside", true);
}

#[test]
fn killed_while_the_repository_is_made() {
    sweep("kill_first", false);
}

/// The last frames are still encoded and written then, and what the set needs of the server is asked for.
#[test]
fn f45_killed_while_the_server_ends_the_backup() {
    let place = Place::new("kill_end");
    let arguments = place.parity_backup_arguments();
    let earlier = place.backup_label(&arguments);
    for round in 0..sample_size(4) {
        let mut backup = Started::new(&place, &arguments);
        backup.wait_for_phase("end the backup");
        backup.send("KILL");
        let ran = backup.wait();
        check_after(&place, Some(&earlier), &arguments, round == 0).unwrap_or_else(|wrong| panic!("{wrong}: {ran}"));
        start_over(&place, Some(&earlier));
    }
    place.assert_sound(&earlier);
}

fn sweep(name: &str, has_earlier: bool) {
    if !strace::is_usable(name) {
        return;
    }
    let place = Place::new(name);
    let arguments = if has_earlier { place.parity_backup_arguments() } else { place.striped_backup_arguments() };
    let earlier = has_earlier.then(|| place.backup_label(&arguments));
    let trace = strace::trace(&place, MUTATING, &arguments);
    start_over(&place, earlier.as_deref());
    let all = strace::places(&trace, |_| true);
    let all_count = all.len();
    let mut random = Random::for_test(name);
    let chosen = strace::sample(all, sample_size(20), &mut random);
    let mut killed_count = 0;
    for (round, at) in chosen.iter().enumerate() {
        let was_killed = strace::kill(&place, at, &arguments);
        killed_count += usize::from(was_killed);
        check_after(&place, earlier.as_deref(), &arguments, round % DEEP_EVERY == 0)
            .unwrap_or_else(|wrong| panic!("killed at {at}: {wrong}"));
        start_over(&place, earlier.as_deref());
    }
    eprintln!("{name}: {killed_count} kills at {} of {all_count} places", chosen.len());
    assert!(killed_count * 2 > chosen.len(), "most places are reached");
    if let Some(earlier) = &earlier {
        place.assert_sound(earlier);
        place.assert_restores(earlier);
    }
}

fn start_over(place: &Place, earlier: Option<&str>) {
    if earlier.is_some() {
        place.forget_sets_but(earlier);
    } else {
        for directory in place.stripe_directories().into_iter().chain([place.repo()]) {
            std::fs::remove_dir_all(directory).ok();
        }
    }
}

fn check_after(place: &Place, earlier: Option<&str>, arguments: &[String], deep: bool) -> Result<(), String> {
    let complete = place.complete_sets();
    if let Some(earlier) = earlier
        && !complete.iter().any(|label| label == earlier)
    {
        return Err(format!("the earlier set is not listed: {complete:?}"));
    }
    for label in complete.iter().filter(|label| Some(label.as_str()) != earlier) {
        // Killed after the commit.
        place.assert_sound(label);
    }
    place.assert_server_is_free();
    let next = place.run(&[arguments, &["--json".to_owned()]].concat());
    if next.code != Some(0) {
        return Err(format!("the next backup fails: {next}"));
    }
    place.assert_no_leftovers();
    if deep {
        let label = next.json()["label"].as_str().unwrap().to_owned();
        place.assert_sound(&label);
        place.assert_restores(&label);
    }
    Ok(())
}
