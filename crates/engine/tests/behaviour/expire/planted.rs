//! What somebody who may add objects and not delete any plants for the expire, or the backup, of somebody who may.

use std::path::Path;
use std::process::Command;

use pagehaul_engine::backup::BackupRequest;
use pagehaul_engine::catalog::newest_set;
use pagehaul_engine::error::ErrorKind;
use pagehaul_engine::pipeline::NoObserver;
use pagehaul_engine::retention::{ExpireRequest, Fate, Outcome, expire};
use pagehaul_engine::terms::BackupLabel;
use pagehaul_testkit::damage::files_below;

use super::Shelf;

/// What a host can do that may put objects and not delete any, through the expire of somebody who may.
#[test]
fn s19_planted_tombstones_cost_no_set_and_nothing_elsewhere() {
    let (shelf, labels) = Shelf::with_sets(3);
    let second = shelf.work.path().join("second");
    let copied = Command::new("cp").arg("-a").arg(shelf.cluster.repo()).arg(&second).status().unwrap();
    assert!(copied.success());
    let plant = |label: &BackupLabel| {
        let text = serde_json::json!({
            "format_version": 1, "label": label, "set_id": "00000000000000000000000000000000",
            "expired_at": "2026-11-22T00:00:00Z", "reasons": [], "stripe_directories": [second], "stored_bytes": 1
        });
        std::fs::create_dir_all(shelf.set_directory(label)).unwrap();
        std::fs::write(shelf.set_directory(label).join("expired.json"), text.to_string()).unwrap();
    };
    let elsewhere = || files_below(&second);
    let all = elsewhere();
    plant(&labels[0]);
    plant(&labels[2]);
    // An older set is not taken for the newest in silence.
    let refused = newest_set(&shelf.repository(), &shelf.source()).unwrap_err();
    assert!(refused.message().contains(labels[2].as_str()) && refused.kind() == ErrorKind::Damage, "{refused}");

    let report = shelf.expire(1, true);
    let outcomes: Vec<_> = report.sets.iter().map(|set| (set.decision, set.outcome.clone())).collect();
    assert_eq!(
        outcomes,
        [(Fate::Remove, Some(Outcome::Removed)), (Fate::Keep, None), (Fate::Keep, None)],
        "{report:?}"
    );
    assert!(!shelf.set_directory(&labels[0]).exists(), "the rules did not want it");
    let stripes = shelf.work.path().join("stripes/main/sets");
    assert!(!stripes.join(labels[0].as_str()).exists(), "by its manifest, not by what was planted");
    assert_eq!(elsewhere(), all);
    // A set that there never was, or not any more, with the label of one elsewhere.
    plant(&labels[0]);
    let expired = expire(&shelf.expire_request(1, true), &NoObserver).unwrap_or_else(|error| panic!("{error}"));
    let failed = expired.failed.expect("it cannot be removed");
    assert!(failed.to_string().contains("with its manifest"), "{failed}");
    assert_eq!(elsewhere(), all);

    std::fs::remove_file(shelf.set_directory(&labels[2]).join("expired.json")).unwrap();
    assert_eq!(shelf.complete(), &labels[1..]);
    shelf.assert_sound(&labels[2]);
}

/// The same host, and a place for stripes that two repositories share: what one repository says costs the other nothing, in an
/// expire as in a backup that removes what others have left.
#[test]
fn s19_what_one_repository_says_costs_another_no_stripe_in_a_place_they_share() {
    let (shelf, _) = Shelf::with_sets(1);
    let (stripes, other) = (shelf.work.path().join("stripes"), shelf.work.path().join("other").display().to_string());
    let stripe_to = vec![other.clone(), stripes.display().to_string()];
    let there = BackupRequest { repo: other.clone(), stripe_to, ..shelf.request.clone() };
    let theirs = shelf.cluster.backup(&there).label;
    let (place, planted) = (stripes.join("main/sets").join(theirs.as_str()), shelf.set_directory(&theirs));
    let all = files_below(&place);
    assert!(all.iter().any(|file| file.ends_with("owner.json")), "{all:?}");
    let plant = |name: &str, text: serde_json::Value| {
        std::fs::create_dir_all(&planted).unwrap();
        std::fs::write(planted.join(name), text.to_string()).unwrap();
    };
    let expire_in = |repo: &str| {
        let request = ExpireRequest { repo: repo.to_owned(), ..shelf.expire_request(1, true) };
        expire(&request, &NoObserver).unwrap_or_else(|error| panic!("{error}")).failed.map(|error| error.to_string())
    };
    plant(
        "expired.json",
        serde_json::json!({
            "format_version": 1, "label": theirs, "set_id": "00000000000000000000000000000000",
            "expired_at": "2026-11-22T00:00:00Z", "reasons": [], "stripe_directories": [stripes], "stored_bytes": 1
        }),
    );
    let failed = expire_in(&shelf.cluster.repo()).expect("it cannot be removed");
    assert!(failed.contains("of a set of that label in another repository"), "{failed}");
    assert_eq!(files_below(&place), all);

    std::fs::remove_file(planted.join("expired.json")).unwrap();
    let owner: serde_json::Value = serde_json::from_slice(&std::fs::read(place.join("owner.json")).unwrap()).unwrap();
    // The other repository itself as well.
    let theirs_too = files_below(Path::new(&other));
    plant("plan.json", serde_json::json!({ "stripe_directories": [stripes, other], "owner": owner["owner"] }));
    // In the same second: it takes a label that nobody has there.
    shelf.back_up();
    assert!(!planted.exists(), "what is left of a backup goes here");
    assert_eq!((files_below(&place), files_below(Path::new(&other))), (all, theirs_too));

    // Whose it is may remove it.
    shelf.cluster.backup(&there);
    assert_eq!(expire_in(&other), None);
    assert!(!place.exists());
}
