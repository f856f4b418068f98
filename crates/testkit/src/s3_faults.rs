//! What a server of objects does on bad days, at any request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame};
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Semaphore;

/// A body that may break off.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// One kind of bad day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum S3Fault {
    /// 503: slow down; nothing is done.
    SlowDown,
    /// 500, and for the request that joins parts an error inside an answer of 200; nothing is done.
    ErrorInside,
    /// The connection ends; nothing is done.
    Reset,
    /// It is done, and the connection ends before the answer.
    Lost,
    /// It is done, and the answer breaks off in the middle.
    Cut,
    /// Nothing is done and nothing is answered.
    Stall,
    /// 403: the credentials have expired.
    Expired,
    /// 403: the request was signed too early or too late.
    Skewed,
    /// Conditions are not obeyed: what is there is overwritten.
    Overwrites,
    /// 403 to whoever deletes, and to whoever writes without saying that nothing of that name may be there; all else is as always. The parts
    /// of an upload need not say it, which are nothing before they are joined.
    OnlyNew,
    /// 429: too many requests; nothing is done.
    TooMany,
    /// 200 without a word, and nothing is done.
    Empty,
    /// It is done, and of what was written or joined only the first half is kept.
    Halved,
    /// Lists leave out their first entry.
    PartialList,
    /// 307: somewhere else, in clear.
    Redirect,
    /// It is done after a while.
    Slow,
    /// Of those with content two at once are taken, each for a while; to the others it says `SlowDown`.
    Crowded,
    /// The first request that joins parts is done, after longer than a client waits; all others are told that there is no
    /// such upload.
    LateJoin,
    /// Parts are only joined if all but the last have one size, and that is no larger: Cloudflare's R2 has this rule.
    LikeParts,
}

/// All that may befall any request.
pub const S3_FAULTS: [S3Fault; 7] = [
    S3Fault::TooMany,
    S3Fault::SlowDown,
    S3Fault::ErrorInside,
    S3Fault::Reset,
    S3Fault::Lost,
    S3Fault::Cut,
    S3Fault::Stall,
];

/// What a store may claim that is not so.
pub const S3_LIES: [S3Fault; 2] = [S3Fault::Empty, S3Fault::Halved];

/// Longer than any client of a test waits.
const STALLED_FOR: Duration = Duration::from_secs(120);

/// A hundred times what a request takes here.
const SLOW_BY: Duration = Duration::from_millis(200);

/// Longer than a client of five seconds waits, and shorter than twice that.
const LATE_BY: Duration = Duration::from_secs(6);

/// The places of a crowded server, and for how long each is taken.
static PLACES: Semaphore = Semaphore::const_new(2);
const TAKEN_FOR: Duration = Duration::from_millis(30);
const LARGE_BYTES: u64 = 256 * 1024;

/// Where nobody should go.
const ELSEWHERE: HeaderValue = HeaderValue::from_static("http://127.0.0.1:9/elsewhere");

/// Which requests have a bad day.
#[derive(Default)]
pub struct S3Faults {
    armed: Mutex<Option<(S3Fault, std::ops::Range<usize>)>>,
    count: AtomicUsize,
    /// Requests that a crowded server did not take, or that join parts while that is done late.
    pub refused: AtomicUsize,
    /// Bytes of the parts of each upload while their sizes matter.
    uploads: Mutex<BTreeMap<String, BTreeMap<u32, u64>>>,
    /// Parts of the object that was joined of most of them, while their sizes mattered.
    pub joined: AtomicUsize,
}

impl S3Faults {
    /// From now on the requests of these indices have this fault; the next request has index 0.
    pub fn arm(&self, fault: S3Fault, requests: std::ops::Range<usize>) {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some((fault, requests));
        self.count.store(0, SeqCst);
    }

    /// All days are good again; the number of requests since it was armed, or since the last call.
    pub fn disarm(&self) -> usize {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.count.swap(0, SeqCst)
    }

    /// Takes note of a part of `bytes`, or says whether those that are to be joined are unlike.
    fn are_unlike(&self, query: &str, is_join: bool, bytes: u64) -> bool {
        let value = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key));
        let Some(upload) = value("uploadId=") else { return false };
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = value("partNumber=").and_then(|number| number.parse().ok()) {
            uploads.entry(upload.to_owned()).or_default().insert(part, bytes);
        }
        if !is_join {
            return false;
        }
        let sizes: Vec<u64> = uploads.remove(upload).unwrap_or_default().into_values().collect();
        self.joined.fetch_max(sizes.len(), SeqCst);
        let (last, others) = sizes.split_last().unwrap_or((&0, &[]));
        others.iter().any(|size| *size != others[0] || last > size)
    }

    /// The fault of the request that comes now.
    pub(crate) fn next(&self) -> Option<S3Fault> {
        let index = self.count.fetch_add(1, SeqCst);
        let armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        armed.as_ref().filter(|(_, requests)| requests.contains(&index)).map(|(fault, _)| *fault)
    }
}

/// What is answered instead of asking the service, whose objects are below `files`; Err ends the connection.
pub(crate) async fn before<B: Body>(
    fault: S3Fault,
    request: &Request<B>,
    files: &Path,
    faults: &S3Faults,
) -> Option<std::io::Result<Answer>> {
    let refused = &faults.refused;
    let is_join = *request.method() == Method::POST && request.uri().query().is_some_and(|it| it.contains("uploadId="));
    match fault {
        S3Fault::TooMany => Some(Ok(error(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"))),
        S3Fault::SlowDown => Some(Ok(error(StatusCode::SERVICE_UNAVAILABLE, "SlowDown"))),
        S3Fault::ErrorInside if is_join => Some(Ok(error(StatusCode::OK, "InternalError"))),
        S3Fault::ErrorInside => Some(Ok(error(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"))),
        S3Fault::Expired => Some(Ok(error(StatusCode::FORBIDDEN, "ExpiredToken"))),
        S3Fault::Skewed => Some(Ok(error(StatusCode::FORBIDDEN, "RequestTimeTooSkewed"))),
        S3Fault::Reset => Some(Err(gone())),
        S3Fault::Empty => Some(Ok(of_text(StatusCode::OK, String::new()))),
        S3Fault::Stall => {
            tokio::time::sleep(STALLED_FOR).await;
            Some(Err(gone()))
        }
        S3Fault::Slow => {
            tokio::time::sleep(SLOW_BY).await;
            None
        }
        S3Fault::LateJoin if is_join => {
            if refused.fetch_add(1, SeqCst) > 0 {
                return Some(Ok(error(StatusCode::NOT_FOUND, "NoSuchUpload")));
            }
            tokio::time::sleep(LATE_BY).await;
            None
        }
        S3Fault::Crowded if request.body().size_hint().lower() > LARGE_BYTES => match PLACES.try_acquire() {
            Ok(_place) => {
                tokio::time::sleep(TAKEN_FOR).await;
                None
            }
            Err(_) => {
                refused.fetch_add(1, SeqCst);
                Some(Ok(error(StatusCode::SERVICE_UNAVAILABLE, "SlowDown")))
            }
        },
        S3Fault::OnlyNew if !is_new(request) => Some(Ok(error(StatusCode::FORBIDDEN, "AccessDenied"))),
        S3Fault::Overwrites => {
            if request.headers().contains_key("if-none-match") {
                // Then the service finds nothing that it could refuse.
                std::fs::remove_file(files.join(request.uri().path().trim_start_matches('/'))).ok();
            }
            None
        }
        S3Fault::Redirect => {
            let mut answer = error(StatusCode::TEMPORARY_REDIRECT, "TemporaryRedirect");
            answer.headers_mut().insert("location", ELSEWHERE);
            Some(Ok(answer))
        }
        S3Fault::LikeParts => {
            let (query, bytes) = (request.uri().query().unwrap_or_default(), request.body().size_hint().lower());
            faults.are_unlike(query, is_join, bytes).then(|| Ok(error(StatusCode::BAD_REQUEST, "InvalidPart")))
        }
        S3Fault::Lost
        | S3Fault::Cut
        | S3Fault::Halved
        | S3Fault::OnlyNew
        | S3Fault::PartialList
        | S3Fault::Crowded
        | S3Fault::LateJoin => None,
    }
}

/// Whether a request changes nothing that is there.
fn is_new<B>(request: &Request<B>) -> bool {
    let writes = writes_an_object(request);
    *request.method() != Method::DELETE && (!writes || request.headers().contains_key("if-none-match"))
}

/// What becomes of the service's answer.
pub(crate) async fn after<B>(fault: Option<S3Fault>, answer: Response<B>) -> std::io::Result<Answer>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    let (mut parts, body) = answer.into_parts();
    match fault {
        Some(S3Fault::Lost) => Err(gone()),
        Some(S3Fault::Cut) => {
            let all = body.collect().await.map_err(broken)?.to_bytes();
            let half = all.slice(..all.len() / 2);
            let frames = [Ok(Frame::data(half)), Err(gone())];
            Ok(Response::from_parts(parts, BodyExt::boxed_unsync(StreamBody::new(futures::stream::iter(frames)))))
        }
        Some(S3Fault::PartialList) => {
            let all = body.collect().await.map_err(broken)?.to_bytes();
            let text = String::from_utf8_lossy(&all);
            let sent = match text.contains("<ListBucketResult") {
                true => {
                    parts.headers.remove("content-length");
                    Bytes::from(without_the_first(&text))
                }
                false => all.clone(),
            };
            let never = |cause: Infallible| match cause {};
            Ok(Response::from_parts(parts, Full::new(sent).map_err(never).boxed_unsync()))
        }
        _ => Ok(Response::from_parts(parts, body.map_err(broken).boxed_unsync())),
    }
}

/// Cuts what a request has written at this place in `files`, if it has.
pub(crate) fn halve(writes: bool, place: &str, files: &Path) {
    let object = std::fs::File::options().write(true).open(files.join(place.trim_start_matches('/')));
    if let Ok(object) = object
        && writes
    {
        let length = object.metadata().unwrap().len();
        object.set_len(length / 2).unwrap();
    }
}

/// Whether a request puts an object under its name.
pub(crate) fn writes_an_object<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let is_join = *request.method() == Method::POST && query.contains("uploadId=");
    *request.method() == Method::PUT && !query.contains("partNumber=") || is_join
}

/// A list without its first object or prefix; anything else as it is.
fn without_the_first(text: &str) -> String {
    for tag in ["CommonPrefixes", "Contents"] {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        if let Some((before, rest)) = text.split_once(&open)
            && let Some((_, after)) = rest.split_once(&close)
        {
            return format!("{before}{after}");
        }
    }
    text.to_owned()
}

fn broken(cause: impl std::fmt::Display) -> std::io::Error {
    std::io::Error::other(cause.to_string())
}

fn gone() -> std::io::Error {
    std::io::ErrorKind::ConnectionReset.into()
}

fn error(status: StatusCode, code: &str) -> Answer {
    let text = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>a bad day</Message></Error>");
    of_text(status, text)
}

fn of_text(status: StatusCode, text: String) -> Answer {
    let never = |cause: Infallible| match cause {};
    let mut answer = Response::new(Full::new(Bytes::from(text)).map_err(never).boxed_unsync());
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_unlike_sizes_are_told_from_those_of_one() {
        for (sizes, are_unlike) in
            [(&[5, 5, 3][..], false), (&[5, 5, 5], false), (&[3], false), (&[5, 6, 3], true), (&[5, 5, 6], true)]
        {
            let faults = S3Faults::default();
            for (part, bytes) in (1..).zip(sizes) {
                assert!(!faults.are_unlike(&format!("partNumber={part}&uploadId=a"), false, *bytes));
            }
            assert_eq!(faults.are_unlike("uploadId=a", true, 0), are_unlike, "{sizes:?}");
            assert_eq!(faults.joined.load(SeqCst), sizes.len());
        }
    }
}
