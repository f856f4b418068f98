//! Uploads that were begun and never finished: their parts are in no list of objects, and are paid for.
//!
//! Only S3 has them: Google's are gone after a week, and Azure's blocks as well.

use futures::{StreamExt, stream};
use http::{Method, StatusCode};
use serde::Deserialize;

use super::errors::quoted;
use super::signed::{Requests, encoded_value};
use super::target::{Service, Target};
use crate::error::{Error, ErrorKind, Result};

/// Requests that are under way at once.
const AT_ONCE: usize = 16;
/// A list names so many, and the one after it what is left. A killed backup has one for each stripe.
const UPLOADS_LISTED: usize = 500;
const LISTS_MAX: usize = 8;

#[derive(Deserialize)]
struct Listed {
    #[serde(rename = "Upload", default)]
    uploads: Vec<Unfinished>,
    #[serde(rename = "IsTruncated", default)]
    is_truncated: bool,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Unfinished {
    #[serde(rename = "Key")]
    key: String,
    #[serde(rename = "UploadId")]
    id: String,
}

/// Ends all uploads of objects below `prefix`; gives how many. None if the store does not list them, or not to these credentials.
///
/// # Errors
/// `Configuration` if settings do not fit each other, `Repository` if the store does not answer.
pub(super) async fn abort_below(target: &Target, prefix: &str) -> Result<u64> {
    if target.service != Service::S3 {
        return Ok(0);
    }
    let action = || format!("end unfinished uploads below {prefix} in {}", target.to_text());
    let requests = Requests::new(target).map_err(|cause| Error::new(ErrorKind::Configuration, action(), cause))?;
    let failed = |cause: String| Error::new(ErrorKind::Repository, action(), quoted(&cause));
    let below = format!("{}/", target.key(prefix));
    let query = format!("uploads&max-uploads={UPLOADS_LISTED}&prefix={}", encoded_value(&below));
    let mut ended = 0;
    for _ in 0..LISTS_MAX {
        let answer = requests.send(Method::GET, "", &query, "").await.map_err(failed)?;
        let Some((uploads, is_truncated)) = answer.status.is_success().then(|| read(&answer.body, &below)).flatten()
        else {
            break;
        };
        let end = async |upload: Unfinished| {
            let id = format!("uploadId={}", encoded_value(&upload.id));
            requests.send(Method::DELETE, &upload.key, &id, "").await
        };
        let answers: Vec<_> = stream::iter(uploads).map(end).buffer_unordered(AT_ONCE).collect().await;
        let mut refused = answers.is_empty();
        for answer in answers {
            let status = answer.map_err(failed)?.status;
            ended += u64::from(status.is_success());
            refused |= !status.is_success() && status != StatusCode::NOT_FOUND;
        }
        if refused || !is_truncated {
            break;
        }
    }
    Ok(ended)
}

/// The uploads that `body` lists, of objects below `below` and no others, whatever the server took for the prefix; and whether there are more.
fn read(body: &str, below: &str) -> Option<(Vec<Unfinished>, bool)> {
    let mut listed: Listed = quick_xml::de::from_str(body).ok()?;
    // Without an id it would be a request to delete the object itself, and the steps of a path are resolved on the way.
    let is_plain = |key: &str| key.split('/').all(|part| !matches!(part, "" | "." | ".."));
    listed.uploads.retain(|upload| upload.key.starts_with(below) && is_plain(&upload.key) && !upload.id.is_empty());
    Some((listed.uploads, listed.is_truncated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_below_the_prefix_is_read() {
        let upload = |key: &str| {
            format!("<Upload><Key>{key}</Key><UploadId>id of {key}</UploadId><Owner><ID>me</ID></Owner></Upload>")
        };
        let no_id = "<Upload><Key>a/b/c</Key><UploadId/></Upload>".to_owned();
        let body = [["a/b/c.phs", "a/bc.phs", "a/b/d &amp; e", "z", "a/b/../c"].map(upload).concat(), no_id].concat();
        let body = format!(
            "<?xml version=\"1.0\"?><ListMultipartUploadsResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Bucket>b</Bucket>\
             <IsTruncated>true</IsTruncated>{body}</ListMultipartUploadsResult>"
        );
        let (uploads, is_truncated) = read(&body, "a/b/").unwrap();
        let keys: Vec<&str> = uploads.iter().map(|upload| upload.key.as_str()).collect();
        assert_eq!((&keys[..], is_truncated), (&["a/b/c.phs", "a/b/d & e"][..], true));
        assert_eq!(uploads[0].id, "id of a/b/c.phs");
        assert_eq!(read("<ListMultipartUploadsResult/>", "a/"), Some((Vec::new(), false)));
        assert_eq!(read("{}", "a/"), None);
    }
}
