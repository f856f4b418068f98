//! An expire killed at any change it makes: what is listed as complete is sound, and the next expire ends what was begun.

use std::path::Path;
use std::process::Command;

use super::bench::{Place, Random, sample_size};
use super::strace::{self, MUTATING};

#[test]
fn killed_while_sets_are_removed() {
    if !strace::is_usable("kill_expire") {
        return;
    }
    let place = Place::new("kill_expire");
    let backup = place.striped_backup_arguments();
    let gone = [place.backup_label(&backup), place.backup_label(&backup)];
    let kept = place.backup_label(&backup);
    let repo = place.repo().display().to_string();
    let arguments = ["expire", "main", "--repo", &repo, "--keep-full", "1", "--confirm"].map(str::to_owned);
    let pristine = Pristine::of(&place);

    let trace = strace::trace(&place, MUTATING, &arguments);
    assert_eq!(place.complete_sets(), std::slice::from_ref(&kept));
    place.assert_no_leftovers();
    let all = strace::places(&trace, |_| true);
    let all_count = all.len();
    let chosen = strace::sample(all, sample_size(40), &mut Random::for_test("kill_expire"));
    let mut killed_count = 0;
    for at in &chosen {
        pristine.bring_back(&place);
        killed_count += usize::from(strace::kill(&place, at, &arguments));
        let complete = place.complete_sets();
        assert!(complete.contains(&kept), "killed at {at}: {complete:?}");
        for label in complete.iter().filter(|label| gone.contains(label)) {
            place.assert_sound(label);
        }
        place.run_well(&arguments);
        assert_eq!(place.complete_sets(), std::slice::from_ref(&kept), "killed at {at}");
        place.assert_no_leftovers_after(&format!("killed at {at}"));
        place.assert_sound(&kept);
    }
    eprintln!("kill_expire: {killed_count} kills at {} of {all_count} places", chosen.len());
    assert!(killed_count * 2 > chosen.len(), "most places are reached");
    place.assert_restores(&kept);
}

/// The repository and the stripes as they were before.
struct Pristine {
    copy: std::path::PathBuf,
}

impl Pristine {
    fn of(place: &Place) -> Self {
        let copy = place.directory.join("pristine");
        std::fs::create_dir(&copy).unwrap();
        for directory in Self::directories(place) {
            copy_tree(&directory, &copy.join(directory.file_name().unwrap()));
        }
        Pristine { copy }
    }

    fn directories(place: &Place) -> Vec<std::path::PathBuf> {
        place.stripe_directories().into_iter().chain([place.repo()]).collect()
    }

    fn bring_back(&self, place: &Place) {
        for directory in Self::directories(place) {
            std::fs::remove_dir_all(&directory).unwrap();
            copy_tree(&self.copy.join(directory.file_name().unwrap()), &directory);
        }
    }
}

fn copy_tree(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}
