//! What the tests share: a small cluster, a request, and an observer that acts at a given trial.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use pagehaul_engine::pipeline::limit::Direction;
use pagehaul_engine::pipeline::{LiveView, Observer};
use pagehaul_testkit::cluster::{Cluster, default_install, disk_directory};
use pagehaul_tune::figures::{Row, Trial};
use pagehaul_tune::objective::Objective;
use pagehaul_tune::rounds::TuneObserver;
use pagehaul_tune::session::TuneRequest;
use pagehaul_tune::space::Space;
use pagehaul_tune::trial::Targets;
use tempfile::TempDir;

/// A running cluster with some data, and a place for everything else.
pub(crate) struct Desk {
    pub(crate) cluster: Cluster,
    pub(crate) work: TempDir,
}

impl Desk {
    /// With tables of about `rows` rows.
    pub(crate) fn new(rows: u32) -> Self {
        let work = disk_directory();
        let cluster = Cluster::start(&default_install(), work.path());
        if rows > 0 {
            cluster.load_typed_tables(rows);
        }
        Desk { cluster, work }
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.work.path().join("repo")
    }

    /// A small search: three codecs, one of each other setting.
    pub(crate) fn request(&self) -> TuneRequest {
        let repo = self.repo().display().to_string();
        let request = self.cluster.backup_request();
        let one = vec![2];
        TuneRequest {
            source: "main".to_owned(),
            targets: Targets {
                pgdata: self.cluster.server.data_directory().to_owned(),
                connection: request.connection,
                restore_to: repo.clone(),
                repo,
                stripe_to: Vec::new(),
            },
            space: Space {
                compressions: ["none", "lz4", "zstd:3"].map(|text| text.parse().unwrap()).into(),
                readers: one.clone(),
                encoders: one.clone(),
                stripes: vec![1, 2],
                buffer_counts: Vec::new(),
                transfer_sizes: vec![1 << 20],
                stripe_readers: one.clone(),
                decoders: one,
                file_writers: vec![1, 2],
            },
            runs_grid: false,
            objective: Objective::default(),
            sample_size_bytes: 16 << 20,
            budget: None,
            parities: Vec::new(),
            repeat: 2,
            contestants: Vec::new(),
            max_impact: None,
            drops_caches: false,
            history: self.work.path().join("history.sqlite"),
            begins_anew: false,
            command: "pagehaul tune".to_owned(),
        }
    }

    /// Nothing of any trial is left below the repository.
    pub(crate) fn assert_no_leftovers(&self) {
        let names: Vec<_> = std::fs::read_dir(self.repo()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.is_empty(), "left behind: {names:?}");
    }
}

type Action<'a> = Box<dyn Fn() + Send + Sync + 'a>;

/// Acts when the data path of a trial begins, asks to stop after some, and keeps what it heard.
#[derive(Default)]
pub(crate) struct Watcher<'a> {
    pub(crate) at_trial: Option<(usize, Action<'a>)>,
    pub(crate) stop_after: Option<usize>,
    pub(crate) begun: AtomicUsize,
    pub(crate) ended: AtomicUsize,
    pub(crate) acted: AtomicBool,
    pub(crate) notes: Mutex<Vec<String>>,
    pub(crate) stages: Mutex<Vec<String>>,
}

impl Watcher<'_> {
    pub(crate) fn notes(&self) -> String {
        self.notes.lock().unwrap().join("\n")
    }
}

impl Observer for Watcher<'_> {
    fn phase(&self, name: &str) {
        if let Some((number, action)) = &self.at_trial
            && self.begun.load(SeqCst) > *number
            && name.starts_with("read, encode")
            && !self.acted.swap(true, SeqCst)
        {
            action();
        }
    }

    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }

    fn progress(&self, _direction: Direction, _live: &LiveView<'_>) {}

    fn interrupted(&self) -> bool {
        self.stop_after.is_some_and(|count| self.ended.load(SeqCst) >= count)
    }
}

impl TuneObserver for Watcher<'_> {
    fn stage(&self, name: &str) {
        self.stages.lock().unwrap().push(name.to_owned());
    }

    fn measured(&self, _what: &str, done: usize, total: usize) {
        assert!(done <= total);
    }

    fn trial_begins(&self, _what: &str) {
        self.begun.fetch_add(1, SeqCst);
    }

    fn trial_ended(&self, _trial: &Trial, rows: &[Row]) {
        assert!(!rows.is_empty());
        self.ended.fetch_add(1, SeqCst);
    }
}
