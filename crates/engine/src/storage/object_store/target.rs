//! The text that names an object store, and what it says.
//!
//! ```text
//! target  = scheme "://" container ["/" prefix] ["?" option {"&" option}]
//! scheme  = "s3" | "gs" | "azblob"
//! option  = ("endpoint" | "region" | "virtual-host" | "part-size" | "parallel" | "timeout" | "retries" | "ca-file") "=" value
//! ```
//!
//! Credentials are never part of it: a set records where its stripes lie, and arguments are seen by everybody.

use std::time::Duration;

use url::Url;

use super::parts::memory_bytes;
use super::signed::endpoint_of_environment;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Uploads;
use crate::terms::{OBJECT_STORE_SCHEMES, bytes_from_text};

/// What speaks to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    S3,
    Gcs,
    Azblob,
}

/// In the order of [`OBJECT_STORE_SCHEMES`].
const SERVICES: [Service; OBJECT_STORE_SCHEMES.len()] = [Service::S3, Service::Gcs, Service::Azblob];

/// S3's limits: parts but the last have at least 5 MiB, and an object has at most 10 000 of them.
const PART_BYTES_MIN: u64 = 5 << 20;
const PART_BYTES_MAX: u64 = 1 << 30;
const PART_BYTES: u64 = 8 << 20;
pub(super) const PARTS_MAX: u64 = 10_000;
/// An object of Google's, whatever its parts.
const GCS_BYTES_MAX: u64 = 5 << 40;
/// What is expected of an object should fit into so many parts of up to 32 MiB. The guess leaves out WAL, and that a stripe on a fast
/// disk gets more than its share; an object may turn out more than twice as large.
const PARTS_EXPECTED: u64 = 4_500;
pub(crate) const PART_BYTES_LARGE: u64 = 32 << 20;
/// With still larger parts, which cost memory, it should fit at all; they come in steps of 32 MiB.
pub(crate) const PARTS_NEEDED: u64 = 9_000;
/// Parts that the objects of a process have under way together, shared out evenly, unless it is said how many each has. With
/// 16 stripes, four for each carry no more to a store nearby, and take twice the memory (bench/runs/2026-11-25-stores-parallel).
const PARALLEL_IN_ALL: u64 = 32;
/// The most of them that one object has; of larger parts so many fewer as they are larger, but two, and of parts beyond 32 MiB one where
/// many objects are written.
const PARALLEL: u64 = 4;
const PARALLEL_LARGE: u64 = 2;
const PARALLEL_HUGE_IN_ALL: u64 = 16;
const PARALLEL_MAX: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Attempts of one request after the first; with their delays they take about half a minute.
const RETRIES: usize = 6;
const RETRIES_MAX: usize = 20;

const OPTIONS: [&str; 8] =
    ["endpoint", "region", "virtual-host", "part-size", "parallel", "timeout", "retries", "ca-file"];

/// A store and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) service: Service,
    /// Bucket or container.
    pub(super) container: String,
    /// Parts joined by `/`, without one at either end; may be empty.
    pub(super) prefix: String,
    /// Ways to the same store, all with the same path; none for the provider's own.
    pub(super) endpoints: Vec<String>,
    pub(super) region: Option<String>,
    pub(super) virtual_host: bool,
    /// Bytes of a part, or 32 MiB if an object needs them; None for what it needs.
    pub(super) part_bytes: Option<u64>,
    /// Parts of one object that are under way at once; None to share some with the objects that are written at the same time.
    pub(super) parallel: Option<usize>,
    /// How long one request may take without an answer.
    pub(super) timeout: Duration,
    /// Attempts of one request after the first.
    pub(super) retries: usize,
    /// Certificates to trust besides the system's.
    pub(super) ca_file: Option<String>,
}

impl Target {
    /// Reads the text.
    ///
    /// # Errors
    /// `Usage`; credentials in it are refused, and not repeated.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let shown =
            if text.contains('@') { text.split("//").next() } else { text.split('?').next() }.unwrap_or_default();
        let refuse = |cause: &str| {
            Error::new(ErrorKind::Usage, format!("open {shown}"), cause)
                .hint("a store reads s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION (or gs://, azblob://)")
        };
        let url = Url::parse(text).map_err(|cause| refuse(&cause.to_string()))?;
        let service = OBJECT_STORE_SCHEMES.iter().position(|name| *name == url.scheme()).map(|index| SERVICES[index]);
        let service = service.ok_or_else(|| refuse("stores of this kind are not known"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refuse("it has credentials in it")
                .more_hint("credentials come from the environment or the files of the store's own tools"));
        }
        let container = url.host_str().filter(|name| !name.is_empty()).ok_or_else(|| refuse("it names no bucket"))?;
        let prefix = url.path().trim_matches('/');
        // Asked of the text itself, from which the parser has resolved the steps upwards.
        let is_safe = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('%');
        let written = text.split(['?', '#']).next().unwrap_or_default();
        let written = written.splitn(4, '/').nth(3).unwrap_or_default().trim_matches('/');
        let is_plain = written == prefix && (prefix.is_empty() || prefix.split('/').all(is_safe));
        if url.port().is_some() || url.fragment().is_some() || !is_plain {
            return Err(refuse("a prefix is made of plain names with one / between them"));
        }
        let mut target = Target {
            service,
            container: container.to_owned(),
            prefix: prefix.to_owned(),
            endpoints: Vec::new(),
            region: None,
            virtual_host: false,
            part_bytes: None,
            parallel: None,
            timeout: TIMEOUT,
            retries: RETRIES,
            ca_file: None,
        };
        for (key, value) in url.query_pairs() {
            target.set(&key, &value).map_err(|cause| refuse(&cause))?;
        }
        Ok(target)
    }

    /// Parts of `part_size` bytes that each of `uploads` objects has under way at once.
    pub(super) fn parallel(&self, uploads: u64, part_size: u64) -> usize {
        let is_huge = part_size > PART_BYTES_LARGE && self.part_bytes.is_none();
        let in_all = if is_huge { PARALLEL_HUGE_IN_ALL } else { PARALLEL_IN_ALL };
        let shared = (in_all / uploads.max(1)).clamp(1, PARALLEL);
        let of_large = shared.min((PARALLEL * PART_BYTES / part_size).max(PARALLEL_LARGE));
        self.parallel.unwrap_or(of_large as usize)
    }

    /// Those that are named, here or in the environment.
    fn s3_endpoints(&self) -> Vec<String> {
        let named = self.endpoints.clone();
        if named.is_empty() { endpoint_of_environment().into_iter().collect() } else { named }
    }

    /// Whether the machine is asked for the credentials of its role: for Amazon's stores, and where the environment says who gives them. Any
    /// other machine would wait for an address that only Amazon's have.
    pub(super) fn asks_for_role(&self) -> bool {
        let is_amazons = |endpoint: &String| {
            let url = Url::parse(endpoint).ok();
            let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
            [".amazonaws.com", ".amazonaws.com.cn"].iter().any(|end| host.ends_with(end))
        };
        self.s3_endpoints().iter().all(is_amazons) || std::env::var_os("AWS_EC2_METADATA_SERVICE_ENDPOINT").is_some()
    }

    /// Bytes of the parts of an object that may get `largest_bytes`. All of them have this size but the last: R2 takes no others.
    pub(super) fn part_size(&self, largest_bytes: u64) -> u64 {
        let roomy = largest_bytes.div_ceil(PARTS_EXPECTED).next_power_of_two().min(PART_BYTES_LARGE);
        match self.part_bytes {
            Some(asked) => asked.max(roomy),
            None => {
                let needed = largest_bytes.div_ceil(PARTS_NEEDED).next_multiple_of(PART_BYTES_LARGE);
                let needed = if needed > PART_BYTES_LARGE { needed.min(PART_BYTES_MAX) } else { PART_BYTES };
                needed.max(roomy)
            }
        }
    }

    /// The most bytes that an object gets of which `largest_bytes` are expected.
    pub(super) fn longest_bytes(&self, largest_bytes: u64) -> u64 {
        let of_parts = PARTS_MAX * self.part_size(largest_bytes);
        if self.service == Service::Gcs { of_parts.min(GCS_BYTES_MAX) } else { of_parts }
    }

    /// How long the request of a part may take, its content included: the least rate is that of a part of 32 MiB.
    pub(super) fn part_timeout(&self, part_size: u64) -> Duration {
        self.timeout.mul_f64((part_size as f64 / PART_BYTES_LARGE as f64).max(1.0))
    }

    /// Memory that each of `uploads` takes: the parts that are under way, one that the library keeps back until it gets the next one, and the one
    /// that is filled. A single part is sent while the writer waits, so that no other is filled.
    pub(super) fn upload_bytes(&self, uploads: Uploads) -> u64 {
        let size = self.part_size(uploads.largest_bytes);
        let parts = match (self.service, self.parallel(uploads.count, size)) {
            // One after the other, of which two are kept back.
            (Service::Gcs, _) => 3,
            (_, 1) => 2,
            (_, parallel) => parallel as u64 + 2,
        };
        memory_bytes(parts, size)
    }

    fn set(&mut self, key: &str, value: &str) -> std::result::Result<(), String> {
        let number = || value.parse::<u64>().map_err(|_| format!("{key} is not a number: {value}"));
        match key {
            "endpoint" => {
                let refused = || "an endpoint reads https://HOST:PORT, without credentials".to_owned();
                let url = Url::parse(value).map_err(|_| refused())?;
                let is_plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
                if !matches!(url.scheme(), "http" | "https") || !is_plain {
                    return Err(refused());
                }
                let same = |url: &Url| (url.scheme().to_owned(), url.path().trim_end_matches('/').to_owned());
                let first = self.endpoints.first().and_then(|first| Url::parse(first).ok());
                if first.is_some_and(|first| same(&first) != same(&url)) {
                    return Err("the endpoints of one store have the same scheme and path".to_owned());
                }
                self.endpoints.push(value.trim_end_matches('/').to_owned());
            }
            "region" => self.region = Some(value.to_owned()),
            "virtual-host" => {
                self.virtual_host = value.parse().map_err(|_| format!("{key} is true or false, not {value}"))?;
            }
            "part-size" => {
                let size = bytes_from_text(value).filter(|size| (PART_BYTES_MIN..=PART_BYTES_MAX).contains(size));
                self.part_bytes = Some(size.ok_or_else(|| format!("{key} is 5MiB to 1GiB, not {value}"))?);
            }
            "parallel" => {
                let count = usize::try_from(number()?).ok().filter(|count| (1..=PARALLEL_MAX).contains(count));
                self.parallel = Some(count.ok_or_else(|| format!("{key} is 1 to {PARALLEL_MAX}, not {value}"))?);
            }
            "timeout" => {
                let seconds = value.strip_suffix('s').unwrap_or(value).parse::<f64>().ok();
                let seconds = seconds.filter(|seconds| (0.1..=3600.0).contains(seconds));
                let seconds = seconds.ok_or_else(|| format!("{key} is 0.1s to 3600s, not {value}"))?;
                self.timeout = Duration::from_secs_f64(seconds);
            }
            "retries" => {
                let count = usize::try_from(number()?).ok().filter(|count| *count <= RETRIES_MAX);
                self.retries = count.ok_or_else(|| format!("{key} is 0 to {RETRIES_MAX}, not {value}"))?;
            }
            "ca-file" => self.ca_file = Some(value.to_owned()),
            other => return Err(format!("there is no option {other}; there are {}", OPTIONS.join(", "))),
        }
        Ok(())
    }

    /// The key of the object `name`.
    pub(super) fn key(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        }
    }

    fn without_options(&self) -> String {
        let scheme = OBJECT_STORE_SCHEMES[SERVICES.iter().position(|service| *service == self.service).unwrap_or(0)];
        let separator = if self.prefix.is_empty() { "" } else { "/" };
        format!("{scheme}://{}{separator}{}", self.container, self.prefix)
    }

    /// Where the store is: at each of its endpoints, or at the provider's own.
    pub(super) fn places(&self) -> Vec<String> {
        let store = self.without_options();
        let endpoints = if self.service == Service::S3 { self.s3_endpoints() } else { self.endpoints.clone() };
        // However its host is spelt, and with its port or without.
        let plain =
            |text: &String| Url::parse(text).map_or(text.clone(), |url| url.as_str().trim_end_matches('/').to_owned());
        match endpoints.is_empty() {
            true => vec![store],
            false => endpoints.iter().map(|endpoint| format!("{store}?endpoint={}", plain(endpoint))).collect(),
        }
    }

    /// The text that names the same store.
    pub(super) fn to_text(&self) -> String {
        let text = self.without_options();
        let mut options = Vec::new();
        options.extend(self.endpoints.iter().map(|endpoint| format!("endpoint={endpoint}")));
        options.extend(self.region.as_ref().map(|region| format!("region={region}")));
        options.extend(self.virtual_host.then(|| "virtual-host=true".to_owned()));
        options.extend(self.part_bytes.map(|bytes| format!("part-size={bytes}")));
        options.extend(self.parallel.map(|count| format!("parallel={count}")));
        options.extend((self.timeout != TIMEOUT).then(|| format!("timeout={}s", self.timeout.as_secs_f64())));
        options.extend((self.retries != RETRIES).then(|| format!("retries={}", self.retries)));
        options.extend(self.ca_file.as_ref().map(|file| format!("ca-file={file}")));
        match options.is_empty() {
            true => text,
            false => format!("{text}?{}", options.join("&")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn targets_read_and_are_written_as_they_were() {
        for text in [
            "s3://bucket",
            "s3://bucket/a/b",
            "gs://bucket/a",
            "azblob://container/a",
            "s3://b/p?endpoint=http://127.0.0.1:9000&region=eu-1&virtual-host=true&part-size=16777216&parallel=8&timeout=5s&retries=2",
            "s3://b?ca-file=/etc/ca.pem",
            "s3://b?endpoint=http://10.0.0.1:9000&endpoint=http://10.0.0.2:9000",
        ] {
            assert_eq!(Target::parse(text).unwrap().to_text(), text);
        }
        assert_eq!(Target::parse("s3://b/p/?part-size=16MiB").unwrap().to_text(), "s3://b/p?part-size=16777216");
        // What is asked for is no default, whatever its value: as it is, parts may grow beyond 32 MiB.
        assert_eq!(Target::parse("s3://b/p?part-size=8MiB").unwrap().to_text(), "s3://b/p?part-size=8388608");
    }

    #[test]
    fn uploads_share_the_parts_that_are_under_way_unless_it_is_said_how_many_each_has() {
        let target = Target::parse("s3://b").unwrap();
        for (uploads, parallel) in [(0, 4), (1, 4), (8, 4), (9, 3), (16, 2), (32, 1), (500, 1)] {
            assert_eq!(target.parallel(uploads, 8 << 20), parallel, "{uploads}");
            let held = |parallel| if parallel == 1 { 2 } else { parallel as u64 + 2 };
            let bytes = |largest_bytes| target.upload_bytes(Uploads { count: uploads, largest_bytes });
            assert_eq!(bytes(4_500 * (8 << 20)), held(parallel) * (17 << 19));
            let of_large = parallel.min(2);
            assert_eq!(bytes(4_500 * (8 << 20) + 1), held(of_large) * (17 << 20), "{uploads}");
        }
        assert_eq!(Target::parse("s3://b?parallel=6").unwrap().parallel(500, 64 << 20), 6);
        let of_google = Target::parse("gs://b").unwrap().upload_bytes(Uploads { count: 1, largest_bytes: 0 });
        assert_eq!(of_google, 3 * (17 << 19));
    }

    #[test]
    fn parts_are_as_large_as_the_object_needs_them_and_all_alike() {
        let target = Target::parse("s3://b").unwrap();
        for (largest_bytes, size_mib) in [
            (0, 8),
            (37, 8),
            (38, 16),
            (75, 16),
            (76, 32),
            (301, 32),
            (303, 64),
            (1200, 128),
            (5000, 544),
            (99_000, 1024),
        ] {
            let largest_bytes = largest_bytes * GB;
            assert_eq!(target.part_size(largest_bytes), size_mib << 20, "{largest_bytes}");
        }
        let asked = |size: &str| Target::parse(&format!("s3://b?part-size={size}")).unwrap();
        assert_eq!([0, 10_000 * GB].map(|largest| asked("5MiB").part_size(largest)), [5 << 20, 32 << 20]);
        assert_eq!(target.longest_bytes(1200 * GB), 10_000 * (128 << 20));
        assert_eq!(asked("32MiB").longest_bytes(1200 * GB), 10_000 * (32 << 20));
        assert_eq!(Target::parse("gs://b").unwrap().longest_bytes(99_000 * GB), 5 << 40);
        let minutes = |mib: u64| target.part_timeout(mib << 20).as_secs_f64() / 60.0;
        assert_eq!([8, 32, 128, 1024].map(minutes), [1.0, 1.0, 4.0, 32.0]);
        // Four stripes of huge parts, and as many objects of checksums, have two under way each.
        assert_eq!([1, 8, 9, 16].map(|uploads| target.parallel(uploads, 64 << 20)), [2, 2, 1, 1]);
        assert_eq!([8, 9, 32].map(|uploads| asked("64MiB").parallel(uploads, 64 << 20)), [2, 2, 1]);
        assert_eq!([0, 10_000 * GB].map(|largest| asked("64MiB").part_size(largest)), [64 << 20; 2]);
    }

    #[test]
    fn roles_are_asked_for_where_the_store_is_amazons() {
        let asks = |text: &str| Target::parse(text).unwrap().asks_for_role();
        assert!(asks("s3://b") && asks("s3://b?endpoint=https://bucket.vpce-1.s3.eu-1.vpce.amazonaws.com"));
        assert!(
            !asks("s3://b?endpoint=https://store.example") && !asks("s3://b?endpoint=https://amazonaws.com.example")
        );
    }

    #[test]
    fn bad_targets_are_refused_and_s02_credentials_in_them_not_repeated() {
        for bad in [
            "s3://",
            "s3:///a",
            "s3://b/a//c",
            "s3://b/../c",
            "s3://b/%2e%2e",
            "s3://b?part-size=1MiB",
            "s3://b?parallel=0",
            "s3://b?endpoint=ftp://x",
            "s3://b?endpoint=http://x/a&endpoint=http://y/b",
            "s3://b?endpoint=https://x&endpoint=http://y",
            "s3://b?nothing=1",
            "s3://b?timeout=x",
            "s3://b:9000/x",
            "s3://b#x",
            "other://b",
        ] {
            assert_eq!(Target::parse(bad).unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
        for bad in ["s3://canary:hidden@b/a", "s3://b?endpoint=https://canary:hidden@host", "s3://b?secret=hidden"] {
            let error = Target::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{error}");
        }
    }
}
