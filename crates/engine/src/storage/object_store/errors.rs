//! What a store's answers mean to the person who reads them.

use std::error::Error as _;

use opendal::ErrorKind as Answer;

use crate::error::{Error, ErrorKind};

/// Answers are quoted up to here: some stores send pages.
const QUOTED_BYTES_MAX: usize = 400;

/// The words of an answer, without control characters; never what was sent, which is signed.
pub(super) fn cause(answer: &opendal::Error) -> String {
    let mut words = format!("{}: {}", answer.kind(), answer.message());
    if answer.message().is_empty() {
        words += &status(answer)
            .map_or("the store said no more".to_owned(), |status| format!("the store answered with status {status}"));
    }
    let mut source = answer.source();
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    quoted(&words)
}

/// What others said, without control characters and not too long.
pub(super) fn quoted(words: &str) -> String {
    words.chars().filter(|letter| !letter.is_control()).take(QUOTED_BYTES_MAX).collect()
}

/// The status of an answer without words; the library has it in what it shows of the answer.
fn status(answer: &opendal::Error) -> Option<u16> {
    let shown = answer.to_string();
    let (_, behind) = shown.split_once("status: ")?;
    behind.get(..3)?.parse().ok()
}

/// The next step that the words of an answer to `verb` tell, whoever read them.
pub(super) fn hint_of(verb: &str, words: &str) -> Option<&'static str> {
    let has = |word: &str| words.contains(word);
    if has("credential expires before") || has("ExpiredToken") || has("TokenRefreshRequired") || has("RequestExpired") {
        return Some("the credentials have expired: renew them and run this again; what is stored is not touched");
    }
    if has("failed to load signing credential") {
        return Some(
            "there are no credentials: set the store's variables (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or write its tools' files; if a \
             role is to give them, who gives them refused or did not answer",
        );
    }
    if has("PermanentRedirect") || has("TemporaryRedirect") || has("status 30") {
        return Some(
            "the store sends this elsewhere, which is not followed: name the bucket's own region and endpoint",
        );
    }
    if has("NoSuchBucket") || has("ContainerNotFound") || has("specified bucket does not exist") {
        return Some("make the bucket first, or look at its name, the endpoint and the region");
    }
    if has("InvalidBucketName") {
        return Some("the store takes no bucket of this name: look at it again");
    }
    if has("InvalidContentType") && has("corrupt message") {
        return Some("what answers there does not speak TLS: is it http:// or another port?");
    }
    if verb == "delete" && (has("AccessDenied") || has("retention") || has("legal hold") || has("WORM")) {
        return Some("the store keeps it: by a retention of its own, or as these credentials may not delete");
    }
    has("RequestTimeTooSkewed").then_some("the clocks of this machine and of the store differ too much for signatures")
}

/// The error of `verb` on object `name` of the store.
pub(super) fn error(store: &str, verb: &str, name: &str, answer: &opendal::Error) -> Error {
    let words = cause(answer);
    let error = Error::new(ErrorKind::Repository, format!("{verb} {name} in {store}"), &words);
    if let Some(hint) = hint_of(verb, &words) {
        return error.hint(hint);
    }
    match answer.kind() {
        Answer::PermissionDenied => error.hint("check the credentials, and what they may do in this bucket"),
        Answer::NotFound => error.hint("is the bucket there, and the endpoint right?"),
        Answer::RateLimited => error.hint("the store asks for fewer requests: use fewer stripes or --max-rate"),
        Answer::ConfigInvalid => error.hint("check region, endpoint and credentials"),
        _ => error.hint("earlier backups are not touched: look at the store and the way to it"),
    }
}
