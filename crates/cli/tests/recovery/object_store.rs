//! Recovery with everything in object stores: sets, their stripes over buckets, WAL, what expires.

use std::path::Path;

use pagehaul_testkit::damage::files_below;
use pagehaul_testkit::s3_server::{S3Server, told_target};
use serde_json::Value;

use super::archived::Archived;
use super::ledger::Ledger;

/// A bucket for the repository, two for stripes.
const BUCKETS: [&str; 3] = ["repo", "left", "right"];

#[test]
fn a_cluster_comes_back_from_buckets_alone() {
    let Some(target) = told_target() else {
        let server = S3Server::start(&BUCKETS);
        server.run_again("object_store::a_cluster_comes_back_from_buckets_alone", &server.target("repo/some/prefix"));
        let stripes = |bucket| stripes_below(&server.bucket_directory(bucket));
        assert_eq!(BUCKETS.map(stripes), [1, 2, 2], "the incremental is in the repository, the full one is not");
        return;
    };
    let archived = Archived::start_to(&target);
    archived.cluster.load_typed_tables(3_000);
    let mut ledger = Ledger::create(&archived.cluster);
    let pgdata = archived.cluster.server.data_directory().display().to_string();
    let backup = |flags: &[&str]| -> Value {
        let words = [&["backup", "main", "--pgdata", &pgdata, "--json"], flags].concat();
        archived.run_well(&words).json()
    };
    let [left, right] = ["left", "right"].map(|bucket| target.replace("repo/some/prefix", bucket));
    let full = backup(&["--stripes", "4", "--stripe-to", &left, "--stripe-to", &right]);
    ledger.write(&archived.cluster, 1, 20);
    let incremental = backup(&["--type", "incr", "--stripes", "1"]);
    assert_eq!(incremental["kind"], "incremental", "{incremental}");
    ledger.write(&archived.cluster, 100, 20);
    ledger.mark(&archived.cluster, "behind");
    ledger.write(&archived.cluster, 200, 20);
    archived.cluster.value("SELECT pg_switch_wal()");
    archived.wait_until_archived(&archived.cluster);

    let copy = archived.recover("name", &["--type", "name", "--target", "behind"]);
    assert_eq!(copy.report["label"], incremental["label"]);
    ledger.assert_prefix(&copy.cluster, 40, "a restore point");
    assert_eq!(
        copy.cluster.value("SELECT count(*) FROM pg_class"),
        archived.cluster.value("SELECT count(*) FROM pg_class")
    );
    copy.remove();
    for label in [&full["label"], &incremental["label"]] {
        let verified = archived.run_well(&["verify", "main", "--set", label.as_str().unwrap(), "--json"]).json();
        assert_eq!(verified["sound"], true, "{verified}");
    }
    let made = archived.run_well(&["synthesize", "main", "--stripes", "1", "--json"]).json();
    assert_eq!(made["kind"], "full", "{made}");
    archived.run_well(&["pin", full["label"].as_str().unwrap()]);
    archived.run_well(&["expire", "main", "--keep-full", "1", "--confirm"]);
    let listed = archived.run_well(&["info", "main", "--json"]).json();
    let labels: Vec<&Value> = listed[0]["sets"].as_array().unwrap().iter().map(|set| &set["label"]).collect();
    assert_eq!(labels, [&full["label"], &made["label"]], "{listed}");
    let copy = archived.recover("latest", &["--type", "latest"]);
    ledger.assert_prefix(&copy.cluster, 60, "all of it");
    copy.remove();
}

fn stripes_below(directory: &Path) -> usize {
    let files = files_below(directory);
    files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "phs")).count()
}
