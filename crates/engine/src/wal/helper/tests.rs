//! Helpers over archives that are maps in memory: slow, broken, late, watched.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::client::{Heard, get_at, push_at};
use super::get_role::{GetArchive, GetRole, Got};
use super::place::HelperPlace;
use super::push_role::{PushArchive, PushRole};
use super::serve::{HelperRole, run_role, take_lock};
use super::{HelperSettings, Role};
use crate::error::{Error, ErrorKind, Result};

/// An archive in memory.
#[derive(Default)]
struct Shelf {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Calls, by the names in each.
    calls: Mutex<Vec<Vec<String>>>,
    delay_ms: AtomicU64,
    /// A file that makes every call fail that holds it.
    poison: Mutex<Option<String>>,
    /// A file that is there with other bytes.
    conflicting: Mutex<Option<String>>,
    panics: AtomicBool,
    /// A segment that is still being streamed.
    unfinished: Mutex<Option<String>>,
}

impl Shelf {
    fn note(&self, names: Vec<String>) -> Result<()> {
        assert!(!self.panics.load(SeqCst), "asked to panic");
        std::thread::sleep(Duration::from_millis(self.delay_ms.load(SeqCst)));
        let poison = self.poison.lock().unwrap().clone();
        let is_poisoned = poison.is_some_and(|poison| names.contains(&poison));
        self.calls.lock().unwrap().push(names);
        if is_poisoned { Err(Error::new(ErrorKind::Repository, "store", "poison")) } else { Ok(()) }
    }

    fn put(&self, index: u64, content: &[u8]) {
        self.files.lock().unwrap().insert(segment(index), content.to_vec());
    }

    fn call_count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

impl PushArchive for Shelf {
    fn push(&self, files: &[PathBuf], _encoders: u16) -> Result<Vec<Result<()>>> {
        let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
        let read: Vec<_> = files.iter().map(|file| (name(file), std::fs::read(file))).collect();
        self.note(files.iter().map(name).collect())?;
        let mut outcomes = Vec::new();
        for (name, content) in read {
            let is_other = self.conflicting.lock().unwrap().as_ref() == Some(&name);
            outcomes.push(match content {
                Ok(_) if is_other => Err(Error::new(ErrorKind::Conflict, format!("store {name}"), "other bytes")),
                Ok(content) => {
                    self.files.lock().unwrap().insert(name, content);
                    Ok(())
                }
                Err(cause) => Err(Error::new(ErrorKind::Source, format!("read {name}"), cause)),
            });
        }
        Ok(outcomes)
    }
}

impl GetArchive for Shelf {
    fn get(&self, name: &str, to: &Path, _decoders: u16) -> Result<Got> {
        self.note(vec![name.to_owned()])?;
        let found = self.files.lock().unwrap().get(name).cloned();
        let Some(content) = found else { return Ok(Got::NotThere) };
        std::fs::write(to, &content).unwrap();
        Ok(if self.unfinished.lock().unwrap().as_deref() == Some(name) { Got::Unfinished } else { Got::Whole })
    }
}

fn segment(index: u64) -> String {
    format!("{:08X}{:08X}{:08X}", 1, index / 256, index % 256)
}

/// A `pg_wal` and a place for a socket.
struct Scene {
    directory: tempfile::TempDir,
    place: HelperPlace,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let wal_directory = directory.path().join("pg_wal");
        std::fs::create_dir_all(wal_directory.join("archive_status")).unwrap();
        let settings = HelperSettings {
            source: "main".parse().unwrap(),
            repo: "/nowhere".to_owned(),
            wal_directory,
            role: Role::Get { system_identifier: None, decoders: None },
            idle_s: 1,
            keys: crate::encryption::KeySources::default(),
        };
        Scene { place: HelperPlace::in_directory(directory.path(), &settings).unwrap(), directory }
    }

    fn wal(&self) -> PathBuf {
        self.directory.path().join("pg_wal")
    }

    fn make_ready(&self, name: &str, content: &[u8]) {
        std::fs::write(self.wal().join(name), content).unwrap();
        std::fs::write(self.wal().join("archive_status").join(format!("{name}.ready")), b"").unwrap();
    }

    /// Segments that were finished some time ago.
    fn make_backlog(&self, indexes: std::ops::Range<u64>) {
        for index in indexes {
            self.make_ready(&segment(index), format!("content {index}").as_bytes());
        }
        std::thread::sleep(Duration::from_millis(50));
    }

    /// Runs a helper while `work` runs.
    fn with_helper<R>(&self, role: &dyn HelperRole, work: impl FnOnce() -> R) -> R {
        let stopped = Stopper::default();
        std::thread::scope(|scope| {
            let (mut ready, mut is_ready) = UnixStream::pair().unwrap();
            let stopper = stopped.clone();
            let place = self.place.clone();
            scope.spawn(move || {
                let _lock = take_lock(&place).unwrap().expect("no other helper");
                run_role(role, &place, Duration::from_secs(60), &mut ready, &|| stopper.0.load(SeqCst)).unwrap();
            });
            is_ready.read_exact(&mut [0u8; 6]).unwrap();
            let _stops = stopped;
            work()
        })
    }

    fn push(&self, name: &str) -> Heard<()> {
        push_at(&self.place, name, &none_to_start)
    }

    fn push_well(&self, index: u64) {
        match self.push(&segment(index)) {
            Heard::Answer(Ok(())) => {}
            other => panic!("segment {index}: {other:?}"),
        }
    }

    fn get(&self, name: &str) -> Heard<bool> {
        let destination = self.wal().join("RECOVERYXLOG");
        std::fs::remove_file(&destination).ok();
        get_at(&self.place, name, &destination, &none_to_start)
    }

    /// The content of a segment that must come.
    fn content(&self, index: u64) -> Vec<u8> {
        match self.get(&segment(index)) {
            Heard::Answer(Ok(true)) => std::fs::read(self.wal().join("RECOVERYXLOG")).unwrap(),
            other => panic!("segment {index}: {other:?}"),
        }
    }

    fn prefetched(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.wal().join("pagehaul-prefetch")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    }
}

/// Stops its helper when it is dropped, so that a failed test ends too.
#[derive(Clone, Default)]
struct Stopper(Arc<AtomicBool>);

impl Drop for Stopper {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn none_to_start() -> Result<()> {
    Err(Error::new(ErrorKind::Configuration, "start a helper", "none is to be started"))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn push_role<'a>(shelf: &'a Shelf, scene: &Scene) -> PushRole<'a> {
    PushRole::new(shelf, &scene.wal(), 2, 2)
}

#[test]
fn a_burst_is_archived_in_a_few_bundles_and_all_of_it_is_durable() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    scene.make_backlog(0..300);
    wait_until("all are old", || super::stamp::FileStamp::of(&scene.wal().join(segment(299))).unwrap().is_settled());
    let role = push_role(&shelf, &scene);
    scene.with_helper(&role, || {
        for index in 0..300 {
            scene.push_well(index);
            assert!(shelf.files.lock().unwrap().contains_key(&segment(index)), "acknowledged means durable");
        }
    });
    let calls = shelf.calls.lock().unwrap();
    assert!(calls.len() < 25, "{calls:?}");
    assert_eq!(calls.iter().map(Vec::len).sum::<usize>(), 300, "each segment once");
    assert!(calls.iter().all(|names| names.windows(2).all(|pair| pair[0][..16] == pair[1][..16])));
}

#[test]
fn what_changed_or_is_young_is_pushed_again() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    scene.make_backlog(0..4);
    let role = push_role(&shelf, &scene);
    scene.with_helper(&role, || {
        scene.push_well(0);
        wait_until("all is archived", || shelf.files.lock().unwrap().len() == 4 && !role.is_busy());
        let calls = shelf.call_count();
        scene.push_well(1);
        assert_eq!(shelf.call_count(), calls, "answered from memory");
        // As if the name had been used again.
        std::fs::write(scene.wal().join(segment(2)), b"other bytes").unwrap();
        scene.push_well(2);
        assert_eq!(shelf.files.lock().unwrap()[&segment(2)], b"other bytes");
        scene.push_well(2);
        assert!(shelf.call_count() >= calls + 2, "so young a file is looked at twice");
        std::fs::remove_file(scene.wal().join(segment(3))).unwrap();
        assert!(
            matches!(scene.push(&segment(3)), Heard::Answer(Err(_))),
            "memory does not speak for a file that is gone"
        );
    });
}

#[test]
fn one_bad_file_fails_alone() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    scene.make_backlog(0..20);
    *shelf.poison.lock().unwrap() = Some(segment(7));
    let role = push_role(&shelf, &scene);
    scene.with_helper(&role, || {
        for index in (0..20).filter(|index| *index != 7) {
            scene.push_well(index);
        }
        match scene.push(&segment(7)) {
            Heard::Answer(Err(error)) => {
                assert_eq!(
                    (error.kind(), error.message()),
                    (ErrorKind::Repository, "unable to store: poison".to_owned())
                );
            }
            other => panic!("{other:?}"),
        }
        *shelf.poison.lock().unwrap() = None;
        scene.push_well(7);
    });
}

/// A server that went another way than the one whose WAL is archived has segments behind the conflict too.
#[test]
fn f11_nothing_behind_a_conflict_is_stored_unasked() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    scene.make_backlog(0..10);
    *shelf.conflicting.lock().unwrap() = Some(segment(0));
    let role = push_role(&shelf, &scene);
    scene.with_helper(&role, || {
        for _ in 0..2 {
            assert!(
                matches!(scene.push(&segment(0)), Heard::Answer(Err(error)) if error.kind() == ErrorKind::Conflict)
            );
            wait_until("the helper rests", || !role.is_busy());
            assert!(shelf.files.lock().unwrap().is_empty(), "what comes behind the conflict was stored");
        }
        *shelf.conflicting.lock().unwrap() = None;
        scene.push_well(0);
        wait_until("all is archived", || shelf.files.lock().unwrap().len() == 10 && !role.is_busy());
    });
}

#[test]
fn a_panic_in_a_worker_is_no_answer() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    scene.make_backlog(0..2);
    let role = push_role(&shelf, &scene);
    scene.with_helper(&role, || {
        shelf.panics.store(true, SeqCst);
        assert!(matches!(scene.push(&segment(0)), Heard::Alone(_)));
        shelf.panics.store(false, SeqCst);
        scene.push_well(0);
    });
}

#[test]
fn many_clients_at_once_and_slow_answers() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    scene.make_backlog(0..6);
    // Longer than two signs of life.
    shelf.delay_ms.store(1200, SeqCst);
    let role = push_role(&shelf, &scene);
    scene.with_helper(&role, || {
        std::thread::scope(|scope| {
            for index in (0..6).chain(0..6) {
                let scene = &scene;
                scope.spawn(move || scene.push_well(index));
            }
        });
    });
    assert_eq!(shelf.files.lock().unwrap().len(), 6);
    let pushed: usize = shelf.calls.lock().unwrap().iter().map(Vec::len).sum();
    assert_eq!(pushed, 6, "two clients for one file are one piece of work");
}

#[test]
fn a_stopped_helper_answers_first() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    scene.make_backlog(0..64);
    shelf.delay_ms.store(300, SeqCst);
    let role = push_role(&shelf, &scene);
    std::thread::scope(|scope| {
        let asked = scene.with_helper(&role, || {
            let scene = &scene;
            let asked = scope.spawn(move || scene.push_well(0));
            wait_until("the question arrives", || role.is_busy());
            asked
        });
        asked.join().unwrap();
    });
    assert!(!scene.place.socket.exists());
    assert!(shelf.call_count() <= 3, "what nobody waits for was dropped");
    assert!(matches!(scene.push(&segment(1)), Heard::Alone(_)));
}

#[test]
fn recovery_finds_everything_ready_and_what_comes_late_too() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    let content = |index: u64| {
        let mut content = vec![0u8; 1 << 20];
        content[..8].copy_from_slice(&index.to_le_bytes());
        content
    };
    (1..=60).for_each(|index| shelf.put(index, &content(index)));
    let role = GetRole::new(&shelf, &scene.wal(), 2).unwrap();
    scene.with_helper(&role, || {
        assert!(matches!(scene.get("00000002.history"), Heard::Answer(Ok(false))));
        for index in 1..=60 {
            assert_eq!(scene.content(index), content(index));
        }
        wait_until("the look-ahead meets the end", || !role.is_busy());
        for _ in 0..3 {
            assert!(matches!(scene.get(&segment(61)), Heard::Answer(Ok(false))));
        }
        shelf.put(61, &content(61));
        assert_eq!(scene.content(61), content(61), "the end of the archive is not remembered");
        wait_until("the next one is looked for", || !role.is_busy());
        shelf.put(62, &content(62));
        assert_eq!(scene.content(62), content(62), "nor what the look-ahead saw");
    });
    drop(role);
    assert!(!scene.wal().join("pagehaul-prefetch").exists());
}

#[test]
fn what_is_still_streamed_is_not_kept() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    (1..=3).for_each(|index| shelf.put(index, &vec![index as u8; 1 << 20]));
    *shelf.unfinished.lock().unwrap() = Some(segment(2));
    let role = GetRole::new(&shelf, &scene.wal(), 2).unwrap();
    scene.with_helper(&role, || {
        scene.content(1);
        wait_until("the look-ahead is done", || !role.is_busy());
        assert!(!scene.prefetched().iter().any(|name| name.contains(&segment(2))), "{:?}", scene.prefetched());
        shelf.put(2, &vec![9; 1 << 20]);
        assert_eq!(scene.content(2)[0], 9, "whoever asks gets the newest there is");
    });
}

#[test]
fn a_timeline_switch_leaves_nothing_and_a_lost_prefetch_is_fetched_again() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    let content = vec![1u8; 1 << 20];
    (1..=20).for_each(|index| shelf.put(index, &content));
    let switched = format!("{:08X}{:016X}", 2, 5);
    shelf.files.lock().unwrap().insert(switched.clone(), content.clone());
    let role = GetRole::new(&shelf, &scene.wal(), 2).unwrap();
    scene.with_helper(&role, || {
        for index in 1..5 {
            assert_eq!(scene.content(index), content);
        }
        wait_until("the look-ahead is done", || !role.is_busy());
        assert!(!scene.prefetched().is_empty());
        std::fs::remove_dir_all(scene.wal().join("pagehaul-prefetch")).unwrap();
        assert_eq!(scene.content(5), content);
        assert!(matches!(scene.get(&switched), Heard::Answer(Ok(true))));
        wait_until("what was ahead on the old timeline is gone", || !role.is_busy() && scene.prefetched().is_empty());
    });
}

#[test]
fn a_reader_that_leaves_costs_nothing_and_errors_arrive() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    shelf.put(1, &vec![1u8; 1 << 20]);
    let role = GetRole::new(&shelf, &scene.wal(), 2).unwrap();
    scene.with_helper(&role, || {
        shelf.delay_ms.store(700, SeqCst);
        let mut stream = UnixStream::connect(&scene.place.socket).unwrap();
        let question = format!("{{\"name\":\"{}\"}}", segment(1));
        stream.write_all(&(question.len() as u32).to_le_bytes()).unwrap();
        stream.write_all(question.as_bytes()).unwrap();
        wait_until("it is fetched", || shelf.call_count() > 0);
        drop(stream);
        shelf.delay_ms.store(0, SeqCst);
        wait_until("nobody took it", || !role.is_busy() && scene.prefetched().is_empty());
        *shelf.poison.lock().unwrap() = Some(segment(1));
        match scene.get(&segment(1)) {
            Heard::Answer(Err(error)) => assert_eq!(error.kind(), ErrorKind::Repository),
            other => panic!("{other:?}"),
        }
        for name in ["../secret", "a/b", ".hidden", ""] {
            assert!(matches!(scene.get(name), Heard::Answer(Err(_))), "{name:?}");
        }
    });
}

#[test]
fn f56_leftovers_go_and_something_else_in_their_place_stays() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    let directory = scene.wal().join("pagehaul-prefetch");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join(segment(3) + ".1-1"), b"left by the dead").unwrap();
    drop(GetRole::new(&shelf, &scene.wal(), 1).unwrap());
    assert!(!directory.exists());
    std::os::unix::fs::symlink(scene.directory.path(), &directory).unwrap();
    assert!(GetRole::new(&shelf, &scene.wal(), 1).is_err(), "a link leads elsewhere");
    assert!(scene.wal().exists());
}

#[test]
fn there_is_one_helper_and_a_dead_ones_socket_is_replaced() {
    let (scene, shelf) = (Scene::new(), Shelf::default());
    scene.make_backlog(0..1);
    // A socket whose helper was killed, and one that it had not named yet.
    for left in [scene.place.socket.clone(), scene.place.socket.with_extension("new")] {
        drop(UnixListener::bind(left).unwrap());
    }
    assert!(matches!(scene.push(&segment(0)), Heard::Alone(_)));
    let role = push_role(&shelf, &scene);
    scene.with_helper(&role, || {
        let mode = std::fs::metadata(&scene.place.socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        assert!(take_lock(&scene.place).unwrap().is_none(), "a second one sees the first");
        scene.push_well(0);
    });
    assert!(!scene.place.socket.exists());
    let held = take_lock(&scene.place).unwrap();
    let begun = Instant::now();
    assert!(take_lock(&scene.place).is_err(), "a holder that never serves");
    assert!(begun.elapsed() >= super::START_MAX);
    drop(held);
    assert!(take_lock(&scene.place).unwrap().is_some());
}

/// Whoever is on the other end and whatever it says: the client works alone, and in time.
#[test]
fn a_client_survives_any_helper() {
    let says: [(&str, &[u8]); 5] = [
        ("nothing, and closes", b""),
        ("half a message", b"\x40\0\0\0{"),
        ("another protocol", b"HTTP/1.1 200 OK\r\n\r\n"),
        ("the answer to another question", b"\x0b\0\0\0\"not_there\""),
        ("an unknown answer", b"\x08\0\0\0\"gladly\""),
    ];
    for (what, bytes) in says {
        let scene = Scene::new();
        let listener = UnixListener::bind(&scene.place.socket).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(bytes).unwrap();
            });
            assert!(matches!(scene.push(&segment(1)), Heard::Alone(_)), "{what}");
        });
    }
    // A helper that was stopped: it takes connections, as the kernel does that for it, and says nothing.
    let scene = Scene::new();
    let _listener = UnixListener::bind(&scene.place.socket).unwrap();
    let begun = Instant::now();
    assert!(matches!(scene.get(&segment(1)), Heard::Alone(_)));
    assert!(begun.elapsed() >= super::SILENCE_MAX && begun.elapsed() < 2 * super::SILENCE_MAX);
}
