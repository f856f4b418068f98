//! Expire while a recovery is under way that a restore has prepared: what it replays from stays until it has ended.

use pagehaul_engine::source::postgres::scratch_server::ScratchServer;
use pagehaul_testkit::cluster::{Cluster, QUICK, default_install};

use super::archived::{Archived, wait_for};
use super::ledger::Ledger;

#[test]
fn the_wal_of_a_recovery_stays_until_it_has_ended() {
    let archived = Archived::start(&default_install());
    let mut ledger = Ledger::create(&archived.cluster);
    let old = archived.backup();
    for round in 0..3 {
        ledger.write(&archived.cluster, 1 + round * 100, 10);
        archived.cluster.value("SELECT pg_switch_wal()");
    }
    archived.backup();
    archived.wait_until_archived(&archived.cluster);
    let lsn = ledger.entries[24].lsn.to_string();
    let flags = ["--set", &old, "--type", "lsn", "--target", &lsn];
    let set = archived.repo.join("main/sets").join(&old);
    let marks = || {
        let names = std::fs::read_dir(&set).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("recovery-")).count()
    };
    let refused = archived.restore(&archived.repo, &flags);
    assert_ne!(refused.code, Some(0));
    assert_eq!(archived.restore(&archived.target("planned"), &[&flags[..], &["--dry-run"]].concat()).code, Some(0));
    assert_eq!(marks(), 0, "nothing was restored");

    let target = archived.target("copy");
    let ran = archived.restore(&target, &flags);
    assert_eq!((ran.code, marks()), (Some(0), 1), "{ran:?}");
    let expire = ["expire", "main", "--keep-full", "1", "--confirm"];
    archived.run_well(&expire);
    assert!(set.join("manifest.json").exists(), "the set went under the recovery");

    let mut server = ScratchServer::adopt(archived.cluster.server.install(), &target).unwrap();
    server.start(QUICK).unwrap();
    let copy = Cluster { server, directory: target };
    wait_for("the promotion", || copy.value("SELECT pg_is_in_recovery()") == "f");
    ledger.assert_prefix(&copy, 25, "after an expire");
    assert_eq!(marks(), 0, "the recovery has ended");
    archived.run_well(&expire);
    assert!(!set.exists(), "nobody wants it any more");
}
