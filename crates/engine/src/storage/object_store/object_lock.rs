//! Object lock of S3 and what speaks it.
//!
//! A server that does not know `?retention` may take the request for one of the object itself, and a PUT would overwrite it.
//! So nothing is put before the bucket has said, in the words of object lock, that it has it. What protects an object is read
//! from the headers of the object, which every server with object lock sends, and read again after it was set.

use std::sync::{Arc, OnceLock};

use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::errors::{hint_of, quoted};
use super::runtime::wait;
use super::signed::{Answer, Requests, may_be_better_later};
use super::target::{Service, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::{LockMode, ObjectLock, Protection};

/// Requests that are under way at once: each is small, and waits for the store.
const AT_ONCE: usize = 16;
const MODE_HEADER: &str = "x-amz-object-lock-mode";
const UNTIL_HEADER: &str = "x-amz-object-lock-retain-until-date";
const ASK_RIGHTS: &str = "protecting takes the rights s3:GetBucketObjectLockConfiguration, s3:GetObjectRetention and \
                          s3:PutObjectRetention";

/// The object lock of one bucket.
pub(super) struct S3Lock {
    objects: Arc<Objects>,
    /// What the bucket said when it was asked whether it has it: nothing is wrong, or this. It is chosen when a bucket is
    /// made, so once is enough.
    said: OnceLock<Option<Refused>>,
}

/// An error that is told again.
struct Refused {
    kind: ErrorKind,
    action: String,
    cause: String,
    hint: String,
}

struct Objects {
    requests: Requests,
    target: Target,
}

#[derive(Deserialize)]
struct BucketAnswer {
    #[serde(rename = "ObjectLockEnabled")]
    enabled: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(rename = "Code")]
    code: Option<String>,
    #[serde(rename = "Message")]
    message: Option<String>,
}

impl S3Lock {
    /// The lock of the bucket of `target`; None if that is of another service.
    ///
    /// # Errors
    /// `Configuration` if settings do not fit each other.
    pub(super) fn of(target: &Target) -> Result<Option<Self>> {
        if target.service != Service::S3 {
            return Ok(None);
        }
        let requests = Requests::new(target).map_err(|cause| {
            Error::new(ErrorKind::Configuration, format!("use {}", target.to_text()), cause).hint(
                "region, endpoint and credentials come from the target's options, the environment and the tools' files",
            )
        })?;
        let objects = Arc::new(Objects { requests, target: target.clone() });
        Ok(Some(S3Lock { objects, said: OnceLock::new() }))
    }

    /// Does something for each of the names, several at once; the results in their order.
    fn each<T, F>(&self, names: &[String], work: impl Fn(Arc<Objects>, String) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        wait(async {
            let mut done: Vec<Option<T>> = names.iter().map(|_| None).collect();
            let mut running = JoinSet::new();
            let mut left = names.iter().enumerate();
            loop {
                while running.len() < AT_ONCE
                    && let Some((index, name)) = left.next()
                {
                    let work = work(Arc::clone(&self.objects), name.clone());
                    running.spawn(async move { (index, work.await) });
                }
                let Some(joined) = running.join_next().await else { break };
                let bug = |cause| Error::new(ErrorKind::Bug, "ask for the protection of an object", cause);
                let (index, result) = joined.map_err(bug)?;
                done[index] = Some(result?);
            }
            Ok(done.into_iter().flatten().collect())
        })?
    }
}

impl ObjectLock for S3Lock {
    fn check_enabled(&self) -> Result<()> {
        if self.said.get().is_none() {
            let refused = wait(self.objects.check_bucket())??.err().map(|error| Refused {
                kind: error.kind(),
                action: error.action().to_owned(),
                cause: error.cause().to_owned(),
                hint: error.hint_text().unwrap_or_default().to_owned(),
            });
            // Another thread that asked was told the same.
            self.said.set(refused).ok();
        }
        match self.said.get() {
            Some(Some(refused)) => {
                Err(Error::new(refused.kind, refused.action.clone(), &refused.cause).hint(refused.hint.clone()))
            }
            _ => Ok(()),
        }
    }

    fn protections(&self, names: &[String]) -> Result<Vec<Option<Protection>>> {
        self.each(names, |objects, name| async move { Ok(objects.protection(&name).await?.flatten()) })
    }

    fn protect(&self, names: &[String], wanted: Protection) -> Result<u64> {
        self.check_enabled()?;
        let changed = self.each(names, move |objects, name| async move { objects.protect(&name, wanted).await })?;
        Ok(changed.into_iter().filter(|is_changed| *is_changed).count() as u64)
    }
}

impl Objects {
    fn error(&self, verb: &str, name: &str, cause: &str) -> Error {
        let action = format!("{verb} {name} in {}", self.target.to_text());
        let hint = hint_of(verb, cause).unwrap_or("what is protected already stays so: run the command again to go on");
        Error::new(ErrorKind::Repository, action, cause).hint(hint)
    }

    /// The error of an answer that is none of success.
    fn refused(&self, verb: &str, name: &str, answer: &Answer) -> Error {
        if answer.status == StatusCode::NOT_FOUND {
            return self.error(verb, name, "it is not there");
        }
        let words = words_of(answer);
        let error = self.error(verb, name, &words);
        let is_by_right = answer.status == StatusCode::FORBIDDEN && hint_of(verb, &words).is_none();
        if is_by_right { error.hint(ASK_RIGHTS) } else { error }
    }

    /// Whether the bucket has object lock; the outer error is that of a store that could not say.
    async fn check_bucket(&self) -> Result<Result<()>> {
        let verb = "look at the object lock of";
        let sent = self.requests.send(Method::GET, "", "object-lock", "").await;
        let bucket = &self.target.container;
        let answer = sent.map_err(|cause| self.error(verb, bucket, &quoted(&cause)))?;
        let none = |cause: &str| {
            let action = format!("protect objects in {}", self.target.to_text());
            Error::new(ErrorKind::Configuration, action, cause).hint(
                "object lock is chosen when a bucket is made: make another one with it, and bring the backups there with \
                 `pagehaul copy`",
            )
        };
        if answer.status.is_success() {
            let found: Option<BucketAnswer> = quick_xml::de::from_str(&answer.body).ok();
            let is_enabled = found.and_then(|found| found.enabled).is_some_and(|enabled| enabled == "Enabled");
            return Ok(if is_enabled { Ok(()) } else { Err(none("the bucket has no object lock")) });
        }
        if may_be_better_later(&answer) {
            return Err(self.refused(verb, bucket, &answer));
        }
        Ok(Err(match refusal(&answer).code.as_deref() {
            Some("ObjectLockConfigurationNotFoundError" | "InvalidRequest") => none("the bucket has no object lock"),
            Some("NotImplemented" | "MethodNotAllowed") => none("the store has no object lock"),
            _ if answer.status == StatusCode::NOT_IMPLEMENTED => none("the store has no object lock"),
            Some("NoSuchBucket") => self.error(verb, bucket, "there is no such bucket"),
            _ => self.refused(verb, bucket, &answer),
        }))
    }

    /// None if the object is not there.
    async fn protection(&self, name: &str) -> Result<Option<Option<Protection>>> {
        let verb = "look at the protection of";
        let sent = self.requests.send(Method::HEAD, &self.target.key(name), "", "").await;
        let answer = sent.map_err(|cause| self.error(verb, name, &quoted(&cause)))?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => {
                protection_in(&answer).map(Some).map_err(|cause| self.error(verb, name, &cause))
            }
            _ => Err(self.refused(verb, name, &answer)),
        }
    }

    async fn protect(&self, name: &str, wanted: Protection) -> Result<bool> {
        let verb = "protect";
        let absent = || self.error(verb, name, "it is not there");
        let found = self.protection(name).await?.ok_or_else(absent)?;
        let place = || format!("{name} in {}", self.target.to_text());
        let is_more = wanted.is_more_than(found, Timestamp::now());
        let is_more = is_more.map_err(|cause| wanted.bound_otherwise(&place(), &cause))?;
        if !is_more {
            return Ok(false);
        }
        let body = retention(wanted);
        let sent = self.requests.send(Method::PUT, &self.target.key(name), "retention", &body).await;
        let answer = sent.map_err(|cause| self.error(verb, name, &quoted(&cause)))?;
        if !answer.status.is_success() {
            return Err(self.refused(verb, name, &answer));
        }
        // What the store says it has done is looked at.
        let found = self.protection(name).await?.ok_or_else(absent)?;
        if wanted.is_more_than(found, Timestamp::now()) == Ok(false) {
            return Ok(true);
        }
        let shown = found.map_or_else(|| "none".to_owned(), |found| format!("{} until {}", found.mode, found.until));
        let cause = format!("the store says it is done, and shows another protection: {shown}");
        Err(self.error(verb, name, &cause).hint(ASK_RIGHTS))
    }
}

fn retention(wanted: Protection) -> String {
    format!(
        "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>{}</Mode><RetainUntilDate>{}</RetainUntilDate>\
         </Retention>",
        wanted.mode.as_upper(),
        wanted.until
    )
}

/// What the headers of an object say.
fn protection_in(answer: &Answer) -> std::result::Result<Option<Protection>, String> {
    let header = |name| answer.headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(mode), Some(until)) = (header(MODE_HEADER), header(UNTIL_HEADER)) else { return Ok(None) };
    let until = until.parse().map_err(|_| format!("the time of its protection does not read: {}", quoted(until)))?;
    Ok(Some(Protection { until, mode: mode.parse::<LockMode>().map_err(|cause| quoted(&cause))? }))
}

fn refusal(answer: &Answer) -> Refusal {
    quick_xml::de::from_str(&answer.body).unwrap_or(Refusal { code: None, message: None })
}

fn words_of(answer: &Answer) -> String {
    let Refusal { code, message } = refusal(answer);
    let words = [Some(answer.status.to_string()), code, message];
    quoted(&words.into_iter().flatten().collect::<Vec<_>>().join(": "))
}

#[cfg(test)]
#[path = "object_lock_tests.rs"]
mod tests;
