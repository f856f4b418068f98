//! A store that is as slow as the user says: `throttle:write=100MB/s,read=200MB/s:TARGET`.
//!
//! It shows what a backup or restore would be like on a slower disk, network or bucket before that is bought or rented.
//! Each direction is one device with a token bucket: an operation takes as long as its bytes take at that rate, and
//! operations of several threads queue up. Only content is paced; looking up, listing and removing cost what they cost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::{
    HEAD_BYTES, HeadedBytes, Lease, ObjectLock, ObjectReader, ObjectWriter, StagedObject, Storage, Uploads,
    open_storage,
};
use crate::error::{Error, ErrorKind, Result};
use crate::io::AlignedBytes;
use crate::terms::bytes_from_text;

/// What a throttled target's text begins with.
pub(super) const SCHEME: &str = "throttle:";

/// What a device gives at once after it had nothing to do. It has to cover the time by which a sleep ends late and a
/// thread comes back late (below a millisecond, on busy cores some), so that the mean rate is the one that was asked
/// for; more would hide the device behind its own cache.
const BURST: Duration = Duration::from_millis(20);

/// Shorter waits are left to the next operation: a system call takes about as long as they are.
const WAIT_MIN: Duration = Duration::from_micros(500);

/// One direction of a device.
#[derive(Debug)]
struct Pace {
    bytes_per_s: u64,
    /// When all that was asked for so far has passed.
    free_at: Mutex<Instant>,
}

impl Pace {
    fn new(bytes_per_s: u64) -> Self {
        Pace { bytes_per_s, free_at: Mutex::new(Instant::now()) }
    }

    /// Books `bytes` behind everybody who came before; gives when they have passed.
    fn book(&self, bytes: usize, now: Instant) -> Instant {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let begins = (*free_at).max(now.checked_sub(BURST).unwrap_or(now));
        *free_at = begins + takes;
        *free_at
    }

    /// Returns when `bytes` have passed.
    fn pass(&self, bytes: usize) {
        let done = self.book(bytes, Instant::now());
        while let Some(left) = done.checked_duration_since(Instant::now()).filter(|left| *left >= WAIT_MIN) {
            std::thread::sleep(left);
        }
    }
}

/// Both directions; one that is None is as fast as what lies behind it.
#[derive(Debug)]
struct Device {
    read: Option<Pace>,
    write: Option<Pace>,
}

/// Every device in use, by the text that names it: who opens the same text again shares its rates.
static DEVICES: Mutex<BTreeMap<String, Weak<Device>>> = Mutex::new(BTreeMap::new());

fn device(target: &str, rates: &Rates) -> Arc<Device> {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    devices.retain(|_, device| device.strong_count() > 0);
    if let Some(known) = devices.get(target).and_then(Weak::upgrade) {
        return known;
    }
    let device = Arc::new(Device { read: rates.read.map(Pace::new), write: rates.write.map(Pace::new) });
    devices.insert(target.to_owned(), Arc::downgrade(&device));
    device
}

/// Bytes a second.
#[derive(Debug, Default, PartialEq, Eq)]
struct Rates {
    read: Option<u64>,
    write: Option<u64>,
}

/// Splits a target's text, without its scheme, into rates and what is behind them; the cause if it is not of that form.
fn parse(text: &str) -> std::result::Result<(Rates, &str), String> {
    let (settings, behind) = text.split_once(':').ok_or("there is no `:TARGET` behind the rates")?;
    if behind.is_empty() {
        return Err("the target behind the rates is empty".to_owned());
    }
    if behind.starts_with(SCHEME) {
        return Err("a throttle behind a throttle means nothing".to_owned());
    }
    let mut rates = Rates::default();
    for setting in settings.split(',') {
        let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is not KEY=RATE"))?;
        let rate = match key {
            "read" => &mut rates.read,
            "write" => &mut rates.write,
            _ => return Err(format!("{key:?} is neither read nor write")),
        };
        if rate.is_some() {
            return Err(format!("{key} is given twice"));
        }
        let bytes = value.strip_suffix("/s").filter(|size| !size.contains(' ')).and_then(bytes_from_text);
        *rate = Some(bytes.filter(|bytes| *bytes > 0).ok_or_else(|| format!("{value:?} is not a rate"))?);
    }
    Ok((rates, behind))
}

/// Another store behind a device of limited speed. It describes itself as that store: rates belong to a run, the
/// bytes lie where they lie.
pub struct ThrottledStorage {
    inner: Box<dyn Storage>,
    device: Arc<Device>,
}

impl ThrottledStorage {
    /// The store that a whole `throttle:...` text names.
    ///
    /// # Errors
    /// `Usage` if the text is not of that form; those of the target behind it.
    pub fn open(target: &str) -> Result<Self> {
        let (rates, behind) = parse(target.strip_prefix(SCHEME).unwrap_or(target)).map_err(|cause| {
            Error::new(ErrorKind::Usage, format!("open {target:?}"), cause).hint(
                "the form is throttle:write=100MB/s,read=200MB/s:DIRECTORY, where either rate may be left out; a \
                 directory whose own name begins like that is written ./throttle:...",
            )
        })?;
        Ok(ThrottledStorage { inner: open_storage(behind)?, device: device(target, &rates) })
    }
}

fn pass(pace: Option<&Pace>, bytes: usize) {
    if let Some(pace) = pace {
        pace.pass(bytes);
    }
}

struct ThrottledWriter {
    inner: Box<dyn ObjectWriter>,
    device: Arc<Device>,
}

impl ObjectWriter for ThrottledWriter {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append(bytes)?;
        pass(self.device.write.as_ref(), bytes.len());
        Ok(())
    }

    fn append_from(&mut self, memory: &mut AlignedBytes, pieces: &[HeadedBytes]) -> Result<()> {
        self.inner.append_from(memory, pieces)?;
        pieces.iter().for_each(|piece| pass(self.device.write.as_ref(), HEAD_BYTES + piece.bytes.len()));
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<u64> {
        self.inner.finish()
    }
}

struct ThrottledStaged {
    inner: Box<dyn StagedObject>,
    device: Arc<Device>,
}

impl StagedObject for ThrottledStaged {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.inner.append(bytes)?;
        pass(self.device.write.as_ref(), bytes.len());
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<bool> {
        self.inner.commit()
    }
}

struct ThrottledReader {
    inner: Box<dyn ObjectReader>,
    device: Arc<Device>,
}

impl ObjectReader for ThrottledReader {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_at(buffer, offset)?;
        pass(self.device.read.as_ref(), buffer.len());
        Ok(())
    }

    fn is_remote(&self) -> bool {
        self.inner.is_remote()
    }
}

impl Storage for ThrottledStorage {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn places(&self) -> Vec<String> {
        self.inner.places()
    }

    fn create(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn ObjectWriter>> {
        Ok(Box::new(ThrottledWriter {
            inner: self.inner.create(name, largest_bytes)?,
            device: Arc::clone(&self.device),
        }))
    }

    fn put_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let created = self.inner.put_new(name, bytes)?;
        pass(self.device.write.as_ref(), bytes.len());
        Ok(created)
    }

    fn stage(&self, name: &str, largest_bytes: u64) -> Result<Box<dyn StagedObject>> {
        Ok(Box::new(ThrottledStaged {
            inner: self.inner.stage(name, largest_bytes)?,
            device: Arc::clone(&self.device),
        }))
    }

    fn make_durable(&self, name: &str) -> Result<()> {
        self.inner.make_durable(name)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn ObjectReader>>> {
        let Some(inner) = self.inner.open(name)? else { return Ok(None) };
        Ok(Some(Box::new(ThrottledReader { inner, device: Arc::clone(&self.device) })))
    }

    fn read_small(&self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>> {
        let found = self.inner.read_small(name, most_bytes)?;
        pass(self.device.read.as_ref(), found.as_ref().map_or(0, Vec::len));
        Ok(found)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        self.inner.list(prefix)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name)
    }

    fn sweep(&self, prefix: &str) -> Result<u32> {
        self.inner.sweep(prefix)
    }

    fn abandon(&self, prefix: &str) -> Result<u64> {
        self.inner.abandon(prefix)
    }

    fn remove_prefix(&self, prefix: &str) -> Result<()> {
        self.inner.remove_prefix(prefix)
    }

    fn lease(&self, name: &str) -> Result<Option<Box<dyn Lease>>> {
        self.inner.lease(name)
    }

    fn is_leased(&self, name: &str) -> Result<bool> {
        self.inner.is_leased(name)
    }

    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }

    fn discards(&self) -> bool {
        self.inner.discards()
    }

    fn object_lock(&self) -> Option<&dyn ObjectLock> {
        self.inner.object_lock()
    }

    fn writer_bytes(&self, uploads: Uploads) -> u64 {
        self.inner.writer_bytes(uploads)
    }

    fn longest_bytes(&self, largest_bytes: u64) -> u64 {
        self.inner.longest_bytes(largest_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_rates_either_rate_and_any_target() {
        let rates = |read, write| Rates { read, write };
        let both = (rates(Some(200_000_000), Some(100_000_000)), "/path/of/dir");
        assert_eq!(parse("write=100MB/s,read=200MB/s:/path/of/dir").unwrap(), both);
        assert_eq!(parse("read=1GiB/s:NUL").unwrap(), (rates(Some(1 << 30), None), "NUL"));
        assert_eq!(parse("write=64K/s:/a:b").unwrap(), (rates(None, Some(65_536)), "/a:b"));
        let storage = open_storage("throttle:write=1MB/s:/path/of/dir").unwrap();
        assert_eq!((storage.describe().as_str(), storage.discards()), ("/path/of/dir", false));
        assert!(open_storage("throttle:read=1MB/s:nul").unwrap().discards());
    }

    #[test]
    fn everything_else_is_refused_with_the_form() {
        let bad = "|/dir|write=1MB/s|write=1MB/s:|:/dir|write:/dir|write=:/dir|write=1MB:/dir|write=0MB/s:/dir|\
            write=fast/s:/dir|write=1 MB/s:/dir|write=-1MB/s:/dir|write=1MB/h:/dir|speed=1MB/s:/dir|,write=1MB/s:/dir|\
            write=1MB/s,write=2MB/s:/dir|write=1MB/s:throttle:read=1MB/s:/dir|WRITE=1MB/s:/dir";
        for text in bad.split('|') {
            let error = open_storage(&format!("throttle:{text}")).err().unwrap_or_else(|| panic!("{text:?} is taken"));
            assert_eq!(error.kind(), ErrorKind::Usage, "{text}");
            assert!(error.hint_text().unwrap().contains("throttle:write=100MB/s,read=200MB/s:DIRECTORY"), "{text}");
        }
        let behind = open_storage("throttle:write=1MB/s:nfs://host").err().unwrap();
        assert!(behind.message().contains("kind nfs"), "{behind}");
    }

    #[test]
    fn bytes_pass_at_the_rate_and_an_idle_device_gives_one_burst() {
        let pace = Pace::new(1_000_000);
        let begin = Instant::now() + Duration::from_secs(10);
        let at = |ms: u64| begin + Duration::from_millis(ms);
        // After ten idle seconds: one burst of 20 ms, then the rate.
        assert_eq!(pace.book(20_000, at(0)), at(0));
        assert_eq!(pace.book(100_000, at(0)), at(100));
        // Who comes late by less than the burst loses nothing.
        assert_eq!(pace.book(50_000, at(110)), at(150));
        // Who comes later has lost what lies before the burst.
        assert_eq!(pace.book(50_000, at(200)), at(230));
        // Several at once queue up.
        let ends: Vec<_> = (0..3).map(|_| pace.book(10_000, at(230))).collect();
        assert_eq!(ends, [at(240), at(250), at(260)]);
    }

    #[test]
    fn sleeping_threads_keep_the_mean_rate() {
        // Sleeps only ever end late, so that the lower bound holds on any machine; the upper one is left to benches.
        let pace = Pace::new(50_000_000);
        let started = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..50).for_each(|_| pace.pass(100_000)));
            }
        });
        // 10 MB at 50 MB/s are 200 ms, less one burst and a wait that is not worth a sleep.
        assert!(started.elapsed() >= Duration::from_millis(179), "{:?}", started.elapsed());
    }

    #[test]
    fn one_text_is_one_device() {
        let rates = |write| Rates { read: None, write: Some(write) };
        let first = device("throttle:write=7kB/s:/one", &rates(7000));
        assert!(Arc::ptr_eq(&first, &device("throttle:write=7kB/s:/one", &rates(7000))));
        assert!(!Arc::ptr_eq(&first, &device("throttle:write=7kB/s:/two", &rates(7000))));
        let weak = Arc::downgrade(&first);
        drop(first);
        assert!(weak.upgrade().is_none(), "a device that nobody uses is forgotten");
    }
}
